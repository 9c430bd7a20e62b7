// The ranks of one ring: the processes of an mpirun, if the program is built with MPI, or threads of this process.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "attend/ring.hpp"

namespace attend::cli {

/// This rank in its ring. All calls except context() and is_first() are collective.
class RingSession {
 public:
  virtual ~RingSession() = default;

  [[nodiscard]] virtual const RingContext& context() const = 0;
  [[nodiscard]] bool is_first() const { return context().rank() == 0; }
  /// Returns the number of ranks on this machine.
  [[nodiscard]] virtual int local_size() const = 0;

  /// Returns the failure of the first rank that passed one, the same on every rank, or "" if all passed "".
  [[nodiscard]] virtual std::string first_failure(const std::string& failure) = 0;
  /// Returns the largest value of any rank.
  [[nodiscard]] virtual double largest(double value) = 0;

  /// Sends bytes from `rank` to rank 0. Only these two call it: `bytes` is read on `rank` and written on rank 0.
  virtual void bring_to_first(int rank, std::span<std::byte> bytes) = 0;
};

/// Starts MPI, which ends with the session. @throws Error (kMissingHardware) if the program is built without MPI.
[[nodiscard]] std::unique_ptr<RingSession> join_ring();

/// Runs `work` on `num_ranks` threads of this process, each of which is one rank of a ring on the host. Returns what
/// rank 0 returned.
/// @throws what the first failing rank threw.
int on_threads(int num_ranks, const std::function<int(RingSession&)>& work);

/// Does this rank's work and checks whether the other ranks succeeded; no rank goes on after a failure. Rank 0 throws
/// what the first failing rank threw. The others get false and must end with status 0: with any other, mpirun would end
/// rank 0 before it has reported the failure. Without a ring only the work is done.
[[nodiscard]] bool done_on_every_rank(RingSession* ring, const std::function<void()>& work);

}  // namespace attend::cli
