// The ranks of one ring. They are threads of this process, or, if the program is built with MPI, the processes of an
// mpirun.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "attend/ring.hpp"

namespace attend::cli {

/// One rank in its ring. All ranks must call the functions together, except for context(), is_first() and
/// bring_to_first().
class RingSession {
 public:
  virtual ~RingSession() = default;

  [[nodiscard]] virtual const RingContext& context() const = 0;
  [[nodiscard]] bool is_first() const { return context().rank() == 0; }
  /// Returns the number of ranks on this machine.
  [[nodiscard]] virtual int local_size() const = 0;

  /// Returns the text `failure` of the first rank at which it is not empty. Returns "" if it is empty on all ranks. The
  /// result is the same on every rank.
  [[nodiscard]] virtual std::string first_failure(const std::string& failure) = 0;
  /// Returns the largest `value` that any rank has passed.
  [[nodiscard]] virtual double largest(double value) = 0;

  /// Sends bytes from `rank` to rank 0. On `rank`, `bytes` is the data to send. On rank 0, `bytes` is the buffer that
  /// receives it. Only these two ranks call this function.
  virtual void bring_to_first(int rank, std::span<std::byte> bytes) = 0;
};

/// Starts MPI. The destructor of the returned session ends MPI. @throws Error (kMissingHardware) if the program is
/// built without MPI.
[[nodiscard]] std::unique_ptr<RingSession> join_ring();

/// Runs `work` on `num_ranks` threads of this process. Each thread is one rank of a ring on the host. Returns the
/// result of rank 0.
/// @throws the exception of the first rank that failed.
int on_threads(int num_ranks, const std::function<int(RingSession&)>& work);

/// Does this rank's work, and then checks whether all ranks succeeded. If a rank failed, rank 0 throws an Error with
/// the text of the first failure, and the other ranks return false. Those ranks must then exit with status 0. With
/// another status, mpirun would end rank 0 before it has reported the failure. If there is no ring, the function only
/// does the work.
[[nodiscard]] bool done_on_every_rank(RingSession* ring, const std::function<void()>& work);

}  // namespace attend::cli
