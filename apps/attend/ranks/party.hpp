// Who the ranks of `attend ring` are: threads of this process, on the host or on GPUs, or the processes of an mpirun.
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
  /// Work of one rank, with a rendezvous of all.
  using Work = std::function<std::vector<PassTimes>(const RingContext&, Device, const std::function<void()>& together)>;

  virtual ~RingParty() = default;
  [[nodiscard]] virtual int num_ranks() const = 0;
  [[nodiscard]] virtual bool is_first() const { return true; }
  /// Cores for each rank, if nobody says.
  [[nodiscard]] virtual int threads_of_rank() const = 0;
  [[nodiscard]] virtual Device first_device() const = 0;
  [[nodiscard]] virtual const char* name() const = 0;  ///< "threads", "nccl" or "mpi"

  /// Does what may be refused before any rank begins. False where this process is not the first and a rank has refused.
  [[nodiscard]] virtual bool prepare(const std::function<void()>& checks) = 0;

  /// Every rank's results, on the first process. @throws what the first failing rank threw.
  [[nodiscard]] virtual std::vector<std::vector<PassTimes>> run(const Work& work) = 0;
};

/// Has an mpirun started this process?
[[nodiscard]] bool is_of_mpirun();

/// That of --over, --device and --ranks; where these say nothing, the processes of an mpirun, else GPUs over NCCL where
/// there are two or more, else threads.
[[nodiscard]] std::unique_ptr<RingParty> make_ring_party(const RingOptions& options);

}  // namespace attend::cli
