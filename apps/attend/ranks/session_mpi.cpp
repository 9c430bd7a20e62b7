#include <algorithm>
#include <optional>

#include "attend/error.hpp"
#include "attend/ring_mpi.hpp"
#include "ranks/session.hpp"

namespace attend::cli {
namespace {

/// Largest number of bytes in one MPI message, because MPI counts elements in an int. Longer data is sent in several
/// messages, which arrive in order.
constexpr std::size_t kMaxPieceBytes = std::size_t{1} << 30;

/// MPI's default error handler ends all processes if a call fails, so the calls in this class check no status.
class MpiSession : public RingSession {
 public:
  MpiSession() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    if (provided < MPI_THREAD_FUNNELED) {
      MPI_Finalize();
      throw Error(ErrorCode::kMissingHardware,
                  "--ring: this MPI does not support threads, allowed MPI_THREAD_FUNNELED or higher");
    }
    context_.emplace(make_mpi_ring(MPI_COMM_WORLD));
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  ~MpiSession() override {
    context_.reset();  // the ring's communicator must be freed before MPI_Finalize
    MPI_Finalize();
  }

  [[nodiscard]] const RingContext& context() const override { return *context_; }

  [[nodiscard]] int local_size() const override {
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    int size = 1;
    MPI_Comm_size(here, &size);
    MPI_Comm_free(&here);
    return size;
  }

  [[nodiscard]] std::string first_failure(const std::string& failure) override {
    const int nobody = context_->size();
    int rank = failure.empty() ? nobody : context_->rank();
    MPI_Allreduce(MPI_IN_PLACE, &rank, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == nobody) return "";
    std::string text = failure;
    int length = static_cast<int>(text.size());
    MPI_Bcast(&length, 1, MPI_INT, rank, MPI_COMM_WORLD);
    text.resize(static_cast<std::size_t>(length));
    MPI_Bcast(text.data(), length, MPI_CHAR, rank, MPI_COMM_WORLD);
    return rank == 0 ? text : text + " (on rank " + std::to_string(rank) + ")";
  }

  [[nodiscard]] double largest(double value) override {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return value;
  }

  void bring_to_first(int rank, std::span<std::byte> bytes) override {
    if (rank == 0) return;
    constexpr int kTag = 0;
    while (!bytes.empty()) {
      const std::size_t piece = std::min(bytes.size(), kMaxPieceBytes);
      if (context_->rank() == rank) {
        MPI_Send(bytes.data(), static_cast<int>(piece), MPI_BYTE, 0, kTag, MPI_COMM_WORLD);
      } else {
        MPI_Recv(bytes.data(), static_cast<int>(piece), MPI_BYTE, rank, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      }
      bytes = bytes.subspan(piece);
    }
  }

 private:
  std::optional<RingContext> context_;
};

}  // namespace

std::unique_ptr<RingSession> join_ring() {
  return std::make_unique<MpiSession>();
}

}  // namespace attend::cli
