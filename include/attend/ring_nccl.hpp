// Rings of GPUs over NCCL: one rank per GPU, in one or several processes. The first call here loads libnccl. The
// loader's search path and pip's nvidia-nccl packages are searched; ATTEND_NCCL_PATH overrides the file or folder.
//
//   const attend::NcclId id = attend::make_nccl_id();              // on one rank, which sends it to the others
//   const attend::RingContext ring = attend::make_nccl_ring(id, rank, size, device);
//   attend::ring_forward(ring, q, k, v, o, &lse, {.causal = true}, attend::Sharding::kZigzag, stream);
#pragma once

#include <array>
#include <cstddef>

#include "attend/ring.hpp"

namespace attend {

/// An ncclUniqueId, which identifies a new communicator. One rank makes it and sends the bytes to all other ranks.
struct NcclId {
  std::array<std::byte, 128> bytes;  ///< bytes from NCCL
};

/// Options for waiting and sending in a ring over NCCL.
struct NcclRingOptions {
  /// Longest wait for the other ranks to begin a call, or to reach the same point in a call. After that, and after an
  /// error of NCCL, the rank throws. 0: no limit.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);

  /// Copy engines move blocks between GPUs of one machine. Unlike NCCL's kernels, they use no multiprocessor. This
  /// requires that all ranks set the option and that each rank can access the memory of the other ranks of its machine
  /// (peer access, CUDA IPC, shared host memory). Otherwise, and between machines, NCCL moves the blocks. When a
  /// message buffer grows, the old buffer is kept until the ranks that had it open arrive at the next message.
  bool copy_engines = true;
};

/// Makes an id for a new communicator.
/// @throws Error (kMissingHardware) if libnccl is not found.
[[nodiscard]] ATTEND_API NcclId make_nccl_id();

/// Makes a rank of a new communicator. All ranks have to call, each on a separate thread. The call returns when all
/// ranks have called.
///
/// @param id       the same on every rank, from one make_nccl_id()
/// @param rank     0 to size - 1
/// @param size     number of ranks
/// @param device   the GPU of this rank's tensors, different for each rank
/// @param options  see NcclRingOptions
///
/// A rank that fails in a call aborts its communicator. The current or next call of the other ranks then throws an
/// Error after the timeout, and the ring becomes unusable. When the last context of a rank is destroyed, it waits up to
/// the timeout for the other ranks on the machine to do the same.
/// @throws Error if rank, size or device are invalid, libnccl is not found, or NCCL refuses.
[[nodiscard]] ATTEND_API RingContext make_nccl_ring(const NcclId& id, int rank, int size, int device,
                                                    const NcclRingOptions& options = {});

/// Makes a rank of an existing communicator, an ncclComm_t. The communicator must outlive the context. The context
/// never destroys it, and does not abort it if a call fails. If the communicator has not been used yet, the first call
/// makes the connections and waits without a limit for all ranks. The caller must not use the communicator during a
/// call of the ring: from the beginning of the call until the stream has finished it.
[[nodiscard]] ATTEND_API RingContext make_nccl_ring(void* comm, const NcclRingOptions& options = {});

}  // namespace attend
