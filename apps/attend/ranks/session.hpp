// The ranks of one ring: the processes of an mpirun, where the program is built with MPI, or threads of this process.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "attend/ring.hpp"

namespace attend::cli {

/// This rank among the others. Every call but context() and is_first() is collective.
class RingSession {
 public:
  virtual ~RingSession() = default;

  [[nodiscard]] virtual const RingContext& context() const = 0;
  [[nodiscard]] bool is_first() const { return context().rank() == 0; }
  /// Number of ranks on this machine.
  [[nodiscard]] virtual int local_size() const = 0;

  /// What went wrong on the first rank where something did, the same on every rank; empty where all gave "".
  [[nodiscard]] virtual std::string first_failure(const std::string& failure) = 0;
  /// The largest value of any rank.
  [[nodiscard]] virtual double largest(double value) = 0;

  /// Bytes from `rank` to rank 0: both call it, nobody else does. On rank `rank` they are read, on rank 0 written.
  virtual void bring_to_first(int rank, std::span<std::byte> bytes) = 0;
};

/// Starts MPI, which ends with the session. @throws Error (kMissingHardware) where the program is built without it.
[[nodiscard]] std::unique_ptr<RingSession> join_ring();

/// Does the work on so many threads of this process, each one rank of a ring on the host. Gives what rank 0 gave.
/// @throws what the first failing rank threw.
int on_threads(int num_ranks, const std::function<int(RingSession&)>& work);

/// Does the work of this rank, and asks the others whether theirs went well: where it did not, nobody goes on. Rank 0
/// throws what the first failing rank threw. The others get false and end with status 0: with any other, mpirun would
/// end rank 0 before it has said why. Without a ring it is the work alone.
[[nodiscard]] bool done_on_every_rank(RingSession* ring, const std::function<void()>& work);

}  // namespace attend::cli
