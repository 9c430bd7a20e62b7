// The ranks of `attend ring`. A rank is a thread of this process, which computes on the host or on a GPU, or it is a
// process of an mpirun.
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
  /// The work of one rank. It calls `together` to wait until all ranks have called `together`.
  using Work = std::function<std::vector<PassTimes>(const RingContext&, Device, const std::function<void()>& together)>;

  virtual ~RingParty() = default;
  [[nodiscard]] virtual int num_ranks() const = 0;
  [[nodiscard]] virtual bool is_first() const { return true; }
  /// Returns the default number of threads for each rank.
  [[nodiscard]] virtual int threads_of_rank() const = 0;
  [[nodiscard]] virtual Device first_device() const = 0;
  [[nodiscard]] virtual const char* name() const = 0;  ///< transport of the ring: "threads", "nccl" or "mpi"

  /// Runs checks that can fail, before any rank begins its work. If a check fails on any rank, throws the failure on
  /// the first process and returns false on the other processes.
  [[nodiscard]] virtual bool prepare(const std::function<void()>& checks) = 0;

  /// Runs `work` on all ranks. Returns the results of all ranks on the first process. @throws the exception of the
  /// first rank that failed.
  [[nodiscard]] virtual std::vector<std::vector<PassTimes>> run(const Work& work) = 0;
};

/// Returns whether this process was started by an mpirun.
[[nodiscard]] bool is_of_mpirun();

/// Makes the ranks that --over, --device and --ranks describe. Without --over, each process of an mpirun is a rank.
/// Without mpirun, the ranks are GPUs over NCCL if there is a GPU for each rank, and threads otherwise.
[[nodiscard]] std::unique_ptr<RingParty> make_ring_party(const RingOptions& options);

}  // namespace attend::cli
