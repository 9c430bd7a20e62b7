// Rings of GPUs that use NCCL. Each rank has one GPU; the ranks are in one or several processes. The first call of a
// function below loads libnccl from the loader's search path or from pip's nvidia-nccl packages. ATTEND_NCCL_PATH may
// name another file or folder.
//
//   const attend::NcclId id = attend::make_nccl_id();              // on one rank, which sends it to the others
//   const attend::RingContext ring = attend::make_nccl_ring(id, rank, size, device);
//   attend::ring_forward(ring, q, k, v, o, &lse, {.causal = true}, attend::Sharding::kZigzag, stream);
#pragma once

#include <array>
#include <cstddef>

#include "attend/ring.hpp"

namespace attend {

/// An ncclUniqueId, which identifies a new communicator. One rank makes it and sends its bytes to all other ranks.
struct NcclId {
  std::array<std::byte, 128> bytes;  ///< contents of the ncclUniqueId
};

/// Options of a ring over NCCL.
struct NcclRingOptions {
  /// Longest time to wait until the other ranks begin a call or reach the same point in a call. After that time, and
  /// after an error of NCCL, the rank throws. 0 means no limit.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);

  /// If true, copy engines move blocks between GPUs of one machine. Unlike NCCL's kernels, they occupy no
  /// multiprocessor. Two conditions must hold: all ranks set the option, and each rank can access the memory of the
  /// other ranks of its machine (peer access, CUDA IPC, shared host memory). Otherwise, and between machines, NCCL
  /// moves the blocks. If a message buffer must grow, the old buffer stays allocated for some time. It is freed when
  /// all ranks that had it open have begun the next message.
  bool copy_engines = true;
};

/// Makes an id for a new communicator.
/// @throws Error (kMissingHardware) if libnccl is not found.
[[nodiscard]] ATTEND_API NcclId make_nccl_id();

/// Makes one rank of a new communicator. All ranks must call, each on a separate thread. The call returns when all
/// ranks have called.
///
/// @param id       result of one make_nccl_id() call, the same on every rank
/// @param rank     0 to size - 1
/// @param size     number of ranks
/// @param device   number of the GPU that holds this rank's tensors; each rank must have a different GPU
/// @param options  time limit and use of copy engines
///
/// A rank that fails in a call aborts its communicator. The current or next call of every other rank then throws an
/// Error after the timeout, and the ring becomes unusable. The destructor of a rank's last context waits until the
/// contexts of the other ranks on the machine are also destroyed, but no longer than the timeout.
/// @throws Error if `rank`, `size` or `device` is invalid, if libnccl is not found, or if NCCL refuses.
[[nodiscard]] ATTEND_API RingContext make_nccl_ring(const NcclId& id, int rank, int size, int device,
                                                    const NcclRingOptions& options = {});

/// Makes one rank from an existing communicator, an ncclComm_t. The communicator must outlive the context. The context
/// never destroys it, and does not abort it if a call fails. If the communicator has not been used yet, the first call
/// makes the connections and waits for all ranks without a time limit. While a call on the ring runs, and until its
/// stream has finished the work, the caller must not use the communicator.
[[nodiscard]] ATTEND_API RingContext make_nccl_ring(void* comm, const NcclRingOptions& options = {});

}  // namespace attend
