#include "ranks/party.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <barrier>
#include <exception>
#include <thread>

#include "attend/ring_nccl.hpp"
#include "core/environment.hpp"
#include "cuda/driver/device.hpp"
#include "process/system.hpp"

namespace attend::cli {
namespace {

class ThreadParty : public RingParty {
 public:
  ThreadParty(int num_ranks, bool on_gpu, bool over_nccl, bool copy_engines)
      : num_ranks_(num_ranks),
        num_gpus_(on_gpu ? cuda::device_count() : 0),
        over_nccl_(over_nccl),
        nccl_options_{.copy_engines = copy_engines} {}

  [[nodiscard]] int num_ranks() const override { return num_ranks_; }
  [[nodiscard]] int threads_of_rank() const override { return std::max(1, usable_cores() / num_ranks_); }
  [[nodiscard]] Device first_device() const override { return device_of(0); }
  [[nodiscard]] bool prepare(const std::function<void()>& checks) override {
    checks();
    return true;
  }
  [[nodiscard]] const char* name() const override { return over_nccl_ ? "nccl" : "threads"; }

  [[nodiscard]] std::vector<std::vector<PassTimes>> run(const Work& work) override {
    const auto count = static_cast<std::size_t>(num_ranks_);
    std::vector<std::vector<PassTimes>> results(count);
    std::vector<std::exception_ptr> failures(count);
    const NcclId id = over_nccl_ ? make_nccl_id() : NcclId{};
    std::vector<RingContext> contexts;
    if (!over_nccl_) contexts = make_thread_ring(num_ranks_);
    std::barrier<> barrier(num_ranks_);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        const auto at = static_cast<std::size_t>(rank);
        try {
          const Device device = device_of(rank);
          const RingContext context =
              over_nccl_ ? make_nccl_ring(id, rank, num_ranks_, device.index, nccl_options_) : contexts[at];
          results[at] = work(context, device, [&] { barrier.arrive_and_wait(); });
        } catch (...) {
          failures[at] = std::current_exception();
        }
        barrier.arrive_and_drop();  // from now on, other ranks do not wait for this rank
      });
    }
    threads.clear();  // waits until all threads have ended
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    return results;
  }

 private:
  [[nodiscard]] Device device_of(int rank) const {
    return num_gpus_ == 0 ? Device{} : Device{DeviceType::kCUDA, rank % num_gpus_};
  }

  int num_ranks_, num_gpus_;
  bool over_nccl_;
  NcclRingOptions nccl_options_;
};

class MpiParty : public RingParty {
 public:
  explicit MpiParty(std::unique_ptr<RingSession> session) : session_(std::move(session)) {}

  [[nodiscard]] int num_ranks() const override { return session_->context().size(); }
  [[nodiscard]] bool is_first() const override { return session_->is_first(); }
  [[nodiscard]] int threads_of_rank() const override { return std::max(1, usable_cores() / session_->local_size()); }
  [[nodiscard]] Device first_device() const override { return {}; }
  [[nodiscard]] bool prepare(const std::function<void()>& checks) override {
    return done_on_every_rank(session_.get(), checks);
  }
  [[nodiscard]] const char* name() const override { return "mpi"; }

  [[nodiscard]] std::vector<std::vector<PassTimes>> run(const Work& work) override {
    std::vector<PassTimes> mine;
    const bool done = done_on_every_rank(
        session_.get(), [&] { mine = work(session_->context(), {}, [&] { (void)session_->largest(0); }); });
    if (!done) return {};
    std::vector<std::vector<PassTimes>> all = {mine};
    for (int rank = 1; rank < num_ranks(); ++rank) {
      std::string text = rank == session_->context().rank() ? nlohmann::json(mine).dump() : "";
      auto size = static_cast<std::size_t>(session_->largest(static_cast<double>(text.size())));
      if (rank != session_->context().rank() && !is_first()) continue;
      text.resize(size);
      session_->bring_to_first(rank, std::as_writable_bytes(std::span(text)));
      if (is_first()) all.push_back(nlohmann::json::parse(text).get<std::vector<PassTimes>>());
    }
    return all;
  }

 private:
  std::unique_ptr<RingSession> session_;
};

}  // namespace

// Checks the environment variables that Open MPI sets, and those that MPICH and its derivatives set.
bool is_of_mpirun() {
  return core::environment("OMPI_COMM_WORLD_SIZE") != nullptr || core::environment("PMI_SIZE") != nullptr;
}

std::unique_ptr<RingParty> make_ring_party(const RingOptions& options) {
  using Over = RingOptions::Over;
  const bool wants_cpu = options.device == DeviceType::kCPU;
  if (options.over == Over::kMpi || (options.over == Over::kAutomatic && is_of_mpirun())) {
    if (options.ranks > 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--ranks: given under mpirun, whose -n sets the number; allowed without mpirun");
    }
    if (options.device == DeviceType::kCUDA) {
      throw Error(ErrorCode::kUnsupported, "--device: 'cuda' with --over mpi, allowed cpu");
    }
    return std::make_unique<MpiParty>(join_ring());
  }
  if (options.device == DeviceType::kCUDA) {
    if (const auto missing = cuda::missing_gpu())
      throw Error(ErrorCode::kMissingHardware, "--device: 'cuda', but " + *missing);
  }
  const bool on_gpu = !wants_cpu && !cuda::unusable_gpu(0);
  const int gpus = on_gpu ? cuda::device_count() : 0;
  const int ranks = options.ranks > 0 ? static_cast<int>(options.ranks) : std::max(2, gpus);
  const bool over_nccl = options.over == Over::kNccl || (options.over == Over::kAutomatic && on_gpu && gpus >= ranks);
  if (over_nccl && ranks > gpus) {
    throw Error(ErrorCode::kMissingHardware,
                fmt::format("--over: 'nccl' with {} ranks, allowed one for each GPU: {} here", ranks, gpus));
  }
  return std::make_unique<ThreadParty>(ranks, on_gpu, over_nccl, options.copy_engines);
}

}  // namespace attend::cli
