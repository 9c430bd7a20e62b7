// The ranks of `attend ring`. They are threads of this process, on the host or on GPUs, or the processes of an mpirun.
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
  /// The work of one rank. `together` returns when all ranks have called it.
  using Work = std::function<std::vector<PassTimes>(const RingContext&, Device, const std::function<void()>& together)>;

  virtual ~RingParty() = default;
  [[nodiscard]] virtual int num_ranks() const = 0;
  [[nodiscard]] virtual bool is_first() const { return true; }
  /// Returns the default number of threads for each rank.
  [[nodiscard]] virtual int threads_of_rank() const = 0;
  [[nodiscard]] virtual Device first_device() const = 0;
  [[nodiscard]] virtual const char* name() const = 0;  ///< "threads", "nccl" or "mpi"

  /// Runs checks that may fail before any rank begins. Returns false if a check has failed on some rank and this
  /// process is not the first. On the first process, throws the failure instead.
  [[nodiscard]] virtual bool prepare(const std::function<void()>& checks) = 0;

  /// Runs `work` on all ranks. On the first process, returns the results of every rank. @throws the exception of the
  /// first rank that failed.
  [[nodiscard]] virtual std::vector<std::vector<PassTimes>> run(const Work& work) = 0;
};

/// Returns whether this process was started by an mpirun.
[[nodiscard]] bool is_of_mpirun();

/// Makes the ranks that --over, --device and --ranks describe. The default depends on the environment: the processes of
/// an mpirun if there is one, otherwise GPUs over NCCL if there are at least two, otherwise threads.
[[nodiscard]] std::unique_ptr<RingParty> make_ring_party(const RingOptions& options);

}  // namespace attend::cli
