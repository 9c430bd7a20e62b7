// Sends the ring's messages with ncclSend and ncclRecv on the rank's stream, in one NCCL group per exchange. If all
// ranks of a machine support links (local_links.hpp), copy engines transport the messages between its GPUs instead.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "attend/ring_nccl.hpp"
#include "core/problem_checks.hpp"
#include "cpu/parallel.hpp"
#include "cuda/driver/driver.hpp"
#include "ring/transport/guarded.hpp"
#include "ring/transport/local_links.hpp"
#include "ring/transport/nccl.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {
namespace {

void* pointer(cuda::DevicePointer address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

class NcclTransport : public Transport {
 public:
  /// @param owned  true if this object must destroy the communicator, false if the caller does
  NcclTransport(NcclComm comm, bool owned, const NcclRingOptions& options)
      : comm_(comm), owned_(owned), timeout_(options.timeout), wants_links_(options.copy_engines) {
    check_nccl(nccl().comm_rank(comm_, &rank_), "ncclCommUserRank");
    check_nccl(nccl().comm_count(comm_, &size_), "ncclCommCount");
    check_nccl(nccl().comm_device(comm_, &device_), "ncclCommCuDevice");
    (void)Transport::state(device_);
  }

  ~NcclTransport() override {
    links_.reset();
    drop_state();
    release_staging();
    if (owned_ && comm_ != nullptr) destroy();
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  [[nodiscard]] std::unique_ptr<Pending> send(int /*to*/, Channel /*channel*/,
                                              std::span<const std::byte> /*bytes*/) override {
    throw_host_message();
  }
  [[nodiscard]] std::unique_ptr<Pending> receive(int /*from*/, Channel /*channel*/,
                                                 std::span<std::byte> /*bytes*/) override {
    throw_host_message();
  }

  /// The first call also makes the links. All ranks take part in it.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    require_alive();
    if (!has_connected_) {
      has_connected_ = true;
      const auto gather = [this](auto mine_of_it, auto all_of_it) { gather_over_nccl(mine_of_it, all_of_it); };
      links_ = LocalLinks::connect({rank_, size_, wants_links_, timeout_, state(), gather});
    }
    if (links_ == nullptr || !links_->reaches_all()) return gather_over_nccl(mine, all);
    // If this rank fails, guarded() reports the failure, so that ranks which begin the call later do not wait for this
    // rank.
    guarded(*this, [&] { links_->all_gather(mine, all); });
  }

  [[nodiscard]] std::optional<std::string> allowed_instead(Device device) const override {
    if (device == Device{DeviceType::kCUDA, device_}) return std::nullopt;
    return fmt::format("cuda {}, the communicator's,", device_);
  }

  void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives) override {
    require_alive();
    if (links_ == nullptr) return exchange_over_nccl(sends, receives);
    const auto part = [this](std::span<const DeviceMessage> all, bool is_linked) {
      std::vector<DeviceMessage> messages;
      std::ranges::copy_if(all, std::back_inserter(messages),
                           [&](const DeviceMessage& m) { return links_->reaches(m.peer) == is_linked; });
      return messages;
    };
    links_->exchange(part(sends, true), part(receives, true));
    exchange_over_nccl(part(sends, false), part(receives, false));
  }

  /// Makes the connections that NCCL needs for all_gather(). NCCL makes them during its first gather, in which the host
  /// waits for all ranks without a time limit. All ranks must call this function.
  void connect() {
    const std::byte mine = {};
    std::vector<std::byte> all(static_cast<std::size_t>(size_));
    gather_over_nccl(std::span(&mine, 1), all);
  }

  void fail(const std::string& why) override {
    if (links_ != nullptr) links_->fail(why);
    has_failed_ = links_ != nullptr;
    abort();
  }

 private:
  void gather_over_nccl(std::span<const std::byte> mine, std::span<std::byte> all) {
    const cuda::ContextGuard guard(device_);
    const cuda::StreamHandle stream = state().stream();
    if (staging_.bytes() < mine.size() + all.size()) staging_ = cuda::DeviceMemory(2 * (mine.size() + all.size()));
    const cuda::DevicePointer gathered = staging_.data();
    const cuda::DevicePointer own = gathered + all.size();
    constexpr const char* kDoing = "announcing a call to the ranks of a ring";
    cuda::check_call(cuda::driver().copy_to_device(own, mine.data(), mine.size(), stream), "cuMemcpyHtoDAsync", kDoing);
    check_nccl(nccl().all_gather(pointer(own), pointer(gathered), mine.size(), kNcclBytes, comm_, stream),
               "ncclAllGather");
    // Waits with a time limit before the copy. Without this, a copy to pageable memory would block forever if a rank
    // never begins the call.
    wait_for_others(stream);
    cuda::check_call(cuda::driver().copy_to_host(all.data(), gathered, all.size(), stream), "cuMemcpyDtoHAsync",
                     kDoing);
    cuda::synchronize(stream);
  }

  void exchange_over_nccl(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives) {
    if (sends.empty() && receives.empty()) return;
    const cuda::StreamHandle stream = state().stream();
    check_nccl(nccl().group_start(), "ncclGroupStart");
    NcclResult result = 0;  // first error of the NCCL calls below; ncclGroupEnd must be called even after an error
    const auto note = [&result](NcclResult its) { result = result == 0 ? its : result; };
    for (const DeviceMessage& m : sends) {
      note(nccl().send(pointer(m.data), m.bytes, kNcclBytes, m.peer, comm_, stream));
    }
    for (const DeviceMessage& m : receives) {
      note(nccl().receive(pointer(m.data), m.bytes, kNcclBytes, m.peer, comm_, stream));
    }
    check_nccl(nccl().group_end(), "ncclGroupEnd");
    check_nccl(result, "ncclSend, ncclRecv");
  }

  [[noreturn]] static void throw_host_message() {
    throw Error(ErrorCode::kInternal, "ring: a message in host memory, allowed GPU memory");
  }

  void require_alive() const {
    if (comm_ == nullptr) throw Error(ErrorCode::kInternal, "ring: its communicator was aborted by a call that failed");
    if (has_failed_) throw Error(ErrorCode::kInternal, "ring: a call on it has failed before");
  }

  /// Waits until the stream has finished its work. This work finishes only when all ranks have begun the call.
  void wait_for_others(cuda::StreamHandle stream) {
    const auto start = std::chrono::steady_clock::now();
    while (!cuda::is_done(stream)) {
      NcclResult error = 0;
      check_nccl(nccl().comm_error(comm_, &error), "ncclCommGetAsyncError");
      const bool is_late = timeout_.count() > 0 && std::chrono::steady_clock::now() - start > timeout_;
      if (error != 0 && error != kNcclInProgress) {
        const std::string text = nccl().get_error_string(error);
        abort();
        throw Error(ErrorCode::kInternal, fmt::format("ring: {}: another rank may have failed", text));
      }
      if (is_late) {
        abort();
        throw Error(ErrorCode::kInternal, fmt::format("ring: rank {} has waited {} ms for the others to begin the call",
                                                      rank_, timeout_.count()));
      }
      if (cpu::wants_to_end()) throw cpu::Interrupted();  // the ring and its communicator become unusable
      std::this_thread::yield();
    }
  }

  void release_staging() noexcept {
    try {
      const cuda::ContextGuard guard(device_);
      staging_ = {};
    } catch (const Error&) {
      return;  // if the CUDA context no longer exists, its memory is already freed
    }
  }

  /// Ends the work on the stream immediately. ncclCommAbort then waits until the other ranks of the machine also abort,
  /// so it runs on a detached thread.
  void abort() {
    if (!owned_ || comm_ == nullptr) return;
    std::thread([comm = std::exchange(comm_, nullptr)] { nccl().comm_abort(comm); }).detach();
  }

  /// Destroys the communicator. NCCL waits until the other ranks of the machine do the same. This function stops
  /// waiting after the time limit, because one of the ranks may have aborted.
  void destroy() noexcept {
    try {
      std::packaged_task<NcclResult()> task([comm = comm_] { return nccl().comm_destroy(comm); });
      const std::future<NcclResult> done = task.get_future();
      std::thread(std::move(task)).detach();
      (void)done.wait_for(timeout_);
    } catch (const std::exception&) {  // The system cannot start another thread, so the communicator is leaked.
      return;
    }
  }

  NcclComm comm_;
  bool owned_;
  std::chrono::milliseconds timeout_;
  bool wants_links_, has_connected_ = false, has_failed_ = false;
  std::unique_ptr<LocalLinks> links_;
  int rank_ = 0, size_ = 1, device_ = 0;
  cuda::DeviceMemory staging_;
};

}  // namespace
}  // namespace attend::ring

namespace attend {

NcclId make_nccl_id() {
  NcclId id = {};
  ring::check_nccl(ring::nccl().get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

RingContext make_nccl_ring(const NcclId& id, int rank, int size, int device, const NcclRingOptions& options) {
  if (size < 1) core::refuse("size: {}, allowed >= 1", size);
  if (rank < 0 || rank >= size) core::refuse("rank: {}, allowed 0 to {}", rank, size - 1);
  const cuda::ContextGuard guard(device);
  ring::NcclComm comm = nullptr;
  ring::check_nccl(ring::nccl().comm_init_rank(&comm, size, id, rank), "ncclCommInitRank");
  auto transport = std::make_shared<ring::NcclTransport>(comm, true, options);
  transport->connect();
  return RingContext(std::move(transport));
}

RingContext make_nccl_ring(void* comm, const NcclRingOptions& options) {
  if (comm == nullptr) core::refuse("comm: null, allowed an ncclComm_t");
  return RingContext(std::make_shared<ring::NcclTransport>(static_cast<ring::NcclComm>(comm), false, options));
}

}  // namespace attend
