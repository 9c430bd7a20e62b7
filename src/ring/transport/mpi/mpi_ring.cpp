// Sends the ring's messages with MPI_Isend and MPI_Irecv. Only the library built from this folder depends on MPI.
#include "attend/ring_mpi.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "ring/transport/transport.hpp"

namespace attend::ring {
namespace {

void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorCode::kInternal, std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

/// The count of an MPI call is an int, so a longer message is sent in pieces. MPI keeps the order of the pieces.
constexpr std::size_t kMaxPieceBytes = std::size_t{1} << 30;

/// The pending MPI requests of one message. If the object is destroyed before wait(), an MPI call has failed or a rank
/// has given up. The process then calls MPI_Abort.
class PendingRequests : public Pending {
 public:
  /// Calls begin(offset, bytes, request) for each piece of the message. If the pieces take longer than `timeout`,
  /// wait() calls give_up(), which does not return.
  template <class Begin>
  PendingRequests(std::size_t bytes, std::chrono::milliseconds timeout, std::function<void()> give_up, Begin begin)
      : timeout_(timeout), give_up_(std::move(give_up)) {
    std::size_t offset = 0;
    do {
      const std::size_t piece = std::min(bytes - offset, kMaxPieceBytes);
      requests_.push_back(MPI_REQUEST_NULL);
      begin(offset, static_cast<int>(piece), &requests_.back());
      offset += piece;
    } while (offset < bytes);
  }

  void wait() override {
    const auto start = std::chrono::steady_clock::now();
    int is_done = 0;
    for (;;) {  // MPI_Waitall is not used, because it has no time limit
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &is_done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
      if (is_done != 0) return;
      if (timeout_.count() > 0 && std::chrono::steady_clock::now() - start > timeout_) give_up_();
      std::this_thread::yield();  // lets another rank use this core
    }
  }

 private:
  std::vector<MPI_Request> requests_;
  std::chrono::milliseconds timeout_;
  std::function<void()> give_up_;
};

class MpiTransport : public Transport {
 public:
  MpiTransport(MPI_Comm comm, const RingLimits& limits) : timeout_(limits.timeout) {
    check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~MpiTransport() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  [[nodiscard]] std::unique_ptr<Pending> send(int to, Channel channel, std::span<const std::byte> bytes) override {
    const auto begin = [&](std::size_t offset, int count, MPI_Request* request) {
      check(MPI_Isend(bytes.data() + offset, count, MPI_BYTE, to, static_cast<int>(channel), comm_, request),
            "MPI_Isend");
    };
    return std::make_unique<PendingRequests>(
        bytes.size(), timeout_, [this, to] { give_up(to); }, begin);
  }

  [[nodiscard]] std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) override {
    const auto begin = [&](std::size_t offset, int count, MPI_Request* request) {
      check(MPI_Irecv(bytes.data() + offset, count, MPI_BYTE, from, static_cast<int>(channel), comm_, request),
            "MPI_Irecv");
    };
    return std::make_unique<PendingRequests>(
        bytes.size(), timeout_, [this, from] { give_up(from); }, begin);
  }

  void fail(const std::string& why) override {
    std::fprintf(stderr, "attend: rank %d of the ring failed: %s\n", rank_, why.c_str());
    MPI_Abort(comm_, 1);
  }

 private:
  /// Aborts all ranks. An exception would not end the process, because MPI_Finalize would then wait for the other rank.
  void give_up(int other) {
    fail("it has waited " + std::to_string(timeout_.count()) + " ms for rank " + std::to_string(other));
  }

  std::chrono::milliseconds timeout_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace
}  // namespace attend::ring

namespace attend {

RingContext make_mpi_ring(MPI_Comm comm, const RingLimits& limits) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) {
    throw Error(ErrorCode::kInvalidArgument, "comm: MPI is not initialised, allowed after MPI_Init_thread");
  }
  int provided = MPI_THREAD_SINGLE;
  ring::check(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(ErrorCode::kInvalidArgument,
                "comm: MPI gives MPI_THREAD_SINGLE, allowed MPI_THREAD_FUNNELED or higher (MPI_Init_thread)");
  }
  return RingContext(std::make_shared<ring::MpiTransport>(comm, limits));
}

}  // namespace attend
