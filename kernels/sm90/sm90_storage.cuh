// Shared memory of sm90_forward, including its barriers.
#pragma once

#include "../attention/score_mods.cuh"
#include "../attention/sequence.cuh"
#include "../common/element.cuh"
#include "../common/warp_reduce.cuh"
#include "../isa/mbarrier.cuh"
#include "../isa/wgmma.cuh"
#include "factored_philox.cuh"
#include "sm90_forward_shape.cuh"
#include "sm90_terms_tile.cuh"

namespace attend {

// A tile of query rows of one head. The producer writes it to shared memory, and the other warps read it.
struct alignas(16) Sm90Work {
  int sequence;  // index of the sequence; kNoWork if there are no more tiles
  int head;      // index of the query head
  int row;       // first row of the tile, as an index in the sequence
  int q_begin;   // position of the sequence's first row in q and o
  int k_begin;   // position of the sequence's first key in k and v; if kIsCached is set, keys before this index are
                 // hidden
  int seqlen_q;
  int seqlen_k;
  int batch;  // If kIsCached is set, the batch entry of q and o. If kSplitsKeys is set, the index of the part of the
              // keys

  static constexpr int kNoWork = -1;

  // Returns the position of the sequence in the tensors q, k, v and o.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ SequenceSpan span() const {
    const int in_tensors = Config::kIsCached ? batch : Config::kIsVarlen ? 0 : sequence;
    return {static_cast<uint32>(in_tensors), q_begin, k_begin, seqlen_q, seqlen_k};
  }
};
static_assert(sizeof(Sm90Work) == kSm90WorkBytes);

// One bit for each key of a tile.
template <class Config>
struct Sm90KeyBits {
  static constexpr int kWords = (Config::kBlockN + kWarpThreads - 1) / kWarpThreads;
  alignas(kSm90HiddenBytes) uint32 word[kWords];

  [[nodiscard]] __device__ __forceinline__ bool any() const {
    uint32 all = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) all |= word[i];
    return all != 0;
  }
};

// If kIsCached is set, holds the hidden keys of each tile (sm90_cached_loader.cuh). The barrier of k covers these bits,
// too. Consumers read them after releasing k, but before they wait for the next k. So this ring must be longer than the
// ring of k.
template <class Config, bool kIsCached = Config::kIsCached>
struct Sm90Hidden {
  static constexpr int kTiles = kSm90HiddenTiles * Config::kStages;
  Sm90KeyBits<Config> of_tile[kTiles];
  static_assert(sizeof(of_tile) == kTiles * kSm90HiddenBytes);
};
template <class Config>
struct Sm90Hidden<Config, false> {};

// Per-key parts of the Philox state for the key tiles in the ring of k. The barriers of k cover them, too.
template <class Config, bool kDrops = Score<Config>::kDrops>
struct Sm90Quads {
  static_assert(Config::kBlockN % 4 == 0);
  PhiloxQuad of_tile[Config::kStages][Config::kBlockN / 4];
  static_assert(sizeof(of_tile) == Config::kStages * sm90_forward_quad_bytes(Config::kBlockN));
};
template <class Config>
struct Sm90Quads<Config, false> {};

template <class Config>
struct alignas(kSwizzleAtom) Sm90Storage
    : Sm90TermsTiles<Config::kTermsTiles ? Config::kStages : 0, Sm90Shape<Config>::kTermsBytes> {
  static_assert(kFitsTiles<Config>);
  using Shape = Sm90Shape<Config>;
  unsigned char q[Config::kQBuffers][Shape::kQBytes];  // q, and later o of the same rows
  unsigned char k[Config::kStages][Shape::kKBytes];
  unsigned char v[Config::kStages][Shape::kVBytes];
  [[no_unique_address]] Sm90Quads<Config> quads;
  [[no_unique_address]] Sm90Hidden<Config> hidden;
  Sm90Work work[kSm90WorkSlots];
  Mbarrier work_full[kSm90WorkSlots];   // The producer has written a query tile to this slot, and other warps may read
                                        // it.
  Mbarrier work_empty[kSm90WorkSlots];  // Each reading warp has left the tile of this slot, so the slot may be
                                        // overwritten.
  Mbarrier q_full[Config::kQBuffers];   // q has arrived.
  Mbarrier q_empty[Config::kQBuffers];  // The buffer of q is free. Each consumer arrives once o has left the buffer. If
                                        // o is not stored from this buffer, each warp arrives once it has read q.
  Mbarrier k_full[Config::kStages];     // k has arrived, together with its bias and its Philox quads.
  Mbarrier v_full[Config::kStages];
  // Completes when TMA has written rows of v, some of which a warp must clear before v_full may complete. Used for
  // packed sequences.
  Mbarrier v_tail[Shape::kTails];
  Mbarrier k_empty[Config::kStages];  // Each consumer warp has read k, so the buffer may be filled again.
  Mbarrier v_empty[Config::kStages];

  // Initialises the barriers. One thread must call this, and the block must synchronise afterwards.
  __device__ __forceinline__ void init_barriers() {
    constexpr int kReaders = Config::kConsumers * kWarpgroup / 32;
    // If lanes copy keys with cp.async, each lane's copies arrive, and then its warp arrives.
    const uint32 of_loader = Shape::kCopiesKeys ? kWarpThreads + arrivals_of_warps(1) : 1;
    const uint32 of_keys = Shape::kKeyLoaders * of_loader;
    for (int slot = 0; slot < kSm90WorkSlots; ++slot) {
      work_full[slot].init(1);
      work_empty[slot].init(arrivals_of_warps(kReaders + (Score<Config>::kDrops ? 1 : 0) + Shape::kKeyLoaders - 1));
    }
    for (int buffer = 0; buffer < Config::kQBuffers; ++buffer) {
      q_full[buffer].init(1);
      q_empty[buffer].init(Shape::kStagesO ? Config::kConsumers : arrivals_of_warps(kReaders));
    }
    for (int stage = 0; stage < Config::kStages; ++stage) {
      k_full[stage].init(of_keys + (Config::kTermsTiles ? 1 : 0) + (Score<Config>::kDrops ? arrivals_of_warps(1) : 0));
      v_full[stage].init(of_keys);
      k_empty[stage].init(arrivals_of_warps(kReaders));
      v_empty[stage].init(arrivals_of_warps(kReaders));
    }
    for (Mbarrier& tail : v_tail) tail.init(1);
    mbarrier_init_fence();
  }
};

// A position in a ring of buffers, stored as the number of buffers that its user has passed. This needs one register,
// while a buffer index and a parity would need two. Consumers have several rings and no registers to spare.
template <int kBuffers>
struct RingPlace {
  uint32 count = 0;

  [[nodiscard]] __device__ __forceinline__ uint32 buffer() const { return count % kBuffers; }
  [[nodiscard]] __device__ __forceinline__ uint32 parity() const { return count / kBuffers % 2; }
  [[nodiscard]] __device__ __forceinline__ RingPlace before() const { return {count - 1}; }
  __device__ __forceinline__ void advance() { ++count; }
};

}  // namespace attend
