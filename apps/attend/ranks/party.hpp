// The ranks of `attend ring`: threads of this process on the host or on GPUs, or the processes of an mpirun.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "options/options.hpp"
#include "ranks/session.hpp"
#include "ranks/work.hpp"

namespace attend::cli {

class RingParty {
 public:
  /// The work of one rank. `together` waits until all ranks have called it.
  using Work = std::function<std::vector<PassTimes>(const RingContext&, Device, const std::function<void()>& together)>;

  virtual ~RingParty() = default;
  [[nodiscard]] virtual int num_ranks() const = 0;
  [[nodiscard]] virtual bool is_first() const { return true; }
  /// Returns the cores for each rank if no number is given.
  [[nodiscard]] virtual int threads_of_rank() const = 0;
  [[nodiscard]] virtual Device first_device() const = 0;
  [[nodiscard]] virtual const char* name() const = 0;  ///< "threads", "nccl" or "mpi"

  /// Runs checks that may fail before any rank begins. Returns false if a check fails on any rank and this process is
  /// not the first.
  [[nodiscard]] virtual bool prepare(const std::function<void()>& checks) = 0;

  /// Returns the results of every rank, on the first process. @throws what the first failing rank threw.
  [[nodiscard]] virtual std::vector<std::vector<PassTimes>> run(const Work& work) = 0;
};

/// Returns whether an mpirun started this process.
[[nodiscard]] bool is_of_mpirun();

/// Makes the ranks that --over, --device and --ranks describe. By default these are the processes of an mpirun if there
/// is one, then GPUs over NCCL if there are at least two, then threads.
[[nodiscard]] std::unique_ptr<RingParty> make_ring_party(const RingOptions& options);

}  // namespace attend::cli
