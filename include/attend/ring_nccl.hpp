// Rings of GPUs over NCCL: one rank a GPU, in one process or many. libnccl is loaded by the first call here, from where
// the loader finds it or from pip's nvidia-nccl packages; ATTEND_NCCL_PATH names its file or folder instead.
//
//   const attend::NcclId id = attend::make_nccl_id();              // on one rank, which tells the others
//   const attend::RingContext ring = attend::make_nccl_ring(id, rank, size, device);
//   attend::ring_forward(ring, q, k, v, o, &lse, {.causal = true}, attend::Sharding::kZigzag, stream);
#pragma once

#include <array>
#include <cstddef>

#include "attend/ring.hpp"

namespace attend {

/// What the ranks of a new communicator have in common: an ncclUniqueId, to be sent to them as it is.
struct NcclId {
  std::array<std::byte, 128> bytes;  ///< as NCCL made them
};

/// How a ring over NCCL waits and sends.
struct NcclRingOptions {
  /// How long a rank waits for the others to begin a call, or to get as far as itself in one. After that, and after an
  /// error of NCCL's, it throws. 0: no end.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);

  /// Blocks between GPUs of one machine travel by their copy engines, which take no multiprocessor from the products as
  /// NCCL's kernels do: where all ranks want it and each gets at the memory of the others of its machine (peer access,
  /// IPC of CUDA, shared memory of the host). Else, and between machines, NCCL takes them. A message's memory that has
  /// grown is kept beside the new until the ranks that had it open have come back for the next message.
  bool copy_engines = true;
};

/// @throws Error (kMissingHardware) where there is no libnccl.
[[nodiscard]] ATTEND_API NcclId make_nccl_id();

/// A rank of a new communicator. All ranks have to call, each on a thread of its own; the call returns when they have.
///
/// @param id       the same on every rank, of one make_nccl_id()
/// @param rank     0 to size - 1
/// @param size     number of ranks
/// @param device   the GPU of this rank's tensors; no two ranks may have the same
/// @param options  see NcclRingOptions
/// A rank that fails in a call aborts its communicator: the others' next call, if not the present one, ends in an Error
/// after the time-out. Nothing of the ring can be used then. The last context of a rank waits for those of the other
/// ranks on the machine to go too, for as long as the time-out.
/// @throws Error where rank, size or device make no sense, there is no libnccl, or NCCL refuses.
[[nodiscard]] ATTEND_API RingContext make_nccl_ring(const NcclId& id, int rank, int size, int device,
                                                    const NcclRingOptions& options = {});

/// The rank of a communicator that the caller has made, an ncclComm_t, which has to outlive the context and is not
/// destroyed, nor aborted where a call fails. Of one that has carried nothing yet the first call makes the connections
/// and waits without an end for a rank that does not come to it. It carries nothing else while a call of the ring is
/// under way: a call is, from its beginning until the stream has reached its end.
[[nodiscard]] ATTEND_API RingContext make_nccl_ring(void* comm, const NcclRingOptions& options = {});

}  // namespace attend
