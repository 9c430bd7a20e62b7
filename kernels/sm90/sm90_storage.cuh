// Shared memory of sm90_forward, and its barriers.
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

// A tile of query rows of one head, as announced by the producer.
struct alignas(16) Sm90Work {
  int sequence;  // kNoWork: no more tiles
  int head;      // query head
  int row;       // first row, in the sequence
  int q_begin;   // the sequence's first row in q and o
  int k_begin;   // the same in k and v; kIsCached: keys before it are not seen
  int seqlen_q;
  int seqlen_k;
  int batch;  // kIsCached: batch entry of q and o; kSplitsKeys: part of the keys

  static constexpr int kNoWork = -1;

  // Returns the position of the sequence in the tensors.
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

// kIsCached: the hidden keys of the tiles (sm90_cached_loader.cuh). They are announced together with k. Consumers read
// them after releasing k, but before they wait for the next k. So more tiles must fit here than in the buffers of k.
template <class Config, bool kIsCached = Config::kIsCached>
struct Sm90Hidden {
  static constexpr int kTiles = kSm90HiddenTiles * Config::kStages;
  Sm90KeyBits<Config> of_tile[kTiles];
  static_assert(sizeof(of_tile) == kTiles * kSm90HiddenBytes);
};
template <class Config>
struct Sm90Hidden<Config, false> {};

// Per-key part of the Philox state of the key tiles. It is announced and released together with k.
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
  unsigned char q[Config::kQBuffers][Shape::kQBytes];  // later holds o of the same rows
  unsigned char k[Config::kStages][Shape::kKBytes];
  unsigned char v[Config::kStages][Shape::kVBytes];
  [[no_unique_address]] Sm90Quads<Config> quads;
  [[no_unique_address]] Sm90Hidden<Config> hidden;
  Sm90Work work[kSm90WorkSlots];
  Mbarrier work_full[kSm90WorkSlots];   // the tile is announced and may be read
  Mbarrier work_empty[kSm90WorkSlots];  // each warp that reads the tile has left it
  Mbarrier q_full[Config::kQBuffers];   // q has arrived
  Mbarrier q_empty[Config::kQBuffers];  // each consumer: o has left q's buffer; or each warp has read q
  Mbarrier k_full[Config::kStages];     // k, its bias and its Philox quads have arrived
  Mbarrier v_full[Config::kStages];
  // kIsVarlen: rows have arrived, some of which must be cleared before they are announced.
  Mbarrier v_tail[Shape::kTails];
  Mbarrier k_empty[Config::kStages];  // each consumer warp has read k: the buffer may be filled
  Mbarrier v_empty[Config::kStages];

  // Initialises the barriers. One thread calls this; the block must synchronise afterwards.
  __device__ __forceinline__ void init_barriers() {
    constexpr int kReaders = Config::kConsumers * kWarpgroup / 32;
    // If lanes copy keys, each lane arrives with its copies, and then its warp arrives.
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

// A position in a ring of buffers, stored as the number of buffers that its user has passed. It needs one register; a
// stage and a parity would need two. Consumers have several rings and no spare registers.
template <int kBuffers>
struct RingPlace {
  uint32 count = 0;

  [[nodiscard]] __device__ __forceinline__ uint32 buffer() const { return count % kBuffers; }
  [[nodiscard]] __device__ __forceinline__ uint32 parity() const { return count / kBuffers % 2; }
  [[nodiscard]] __device__ __forceinline__ RingPlace before() const { return {count - 1}; }
  __device__ __forceinline__ void advance() { ++count; }
};

}  // namespace attend
