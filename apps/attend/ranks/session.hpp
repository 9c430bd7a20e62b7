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

/// One rank in its ring. All functions except context() and is_first() are collective.
class RingSession {
 public:
  virtual ~RingSession() = default;

  [[nodiscard]] virtual const RingContext& context() const = 0;
  [[nodiscard]] bool is_first() const { return context().rank() == 0; }
  /// Returns the number of ranks on this machine.
  [[nodiscard]] virtual int local_size() const = 0;

  /// Returns the text of the first rank whose `failure` is not empty, or "" if all are empty. The result is the same on
  /// every rank.
  [[nodiscard]] virtual std::string first_failure(const std::string& failure) = 0;
  /// Returns the largest `value` of all ranks.
  [[nodiscard]] virtual double largest(double value) = 0;

  /// Sends `bytes` of `rank` to rank 0, which receives them in its own `bytes`. Only these two ranks call it.
  virtual void bring_to_first(int rank, std::span<std::byte> bytes) = 0;
};

/// Starts MPI, which ends with the returned session. @throws Error (kMissingHardware) if the program is built without
/// MPI.
[[nodiscard]] std::unique_ptr<RingSession> join_ring();

/// Runs `work` on `num_ranks` threads of this process. Each thread is one rank of a ring on the host. Returns the
/// result of rank 0.
/// @throws the exception of the first rank that failed.
int on_threads(int num_ranks, const std::function<int(RingSession&)>& work);

/// Does this rank's work, and then checks whether all ranks succeeded. If a rank failed, rank 0 throws an Error with
/// the text of the first failure, and the other ranks return false. Those ranks must then exit with status 0. With
/// another status, mpirun would end rank 0 before it has reported the failure. If there is no ring, only the work is
/// done.
[[nodiscard]] bool done_on_every_rank(RingSession* ring, const std::function<void()>& work);

}  // namespace attend::cli
