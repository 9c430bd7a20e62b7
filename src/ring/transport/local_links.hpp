// Transports messages between the GPUs of one machine by their copy engines, which occupy no multiprocessor. The ranks
// may be processes or threads. A message is transported in three steps:
//
// - The sender's host writes the location of the message to the receiver's mailbox. It waits until the receiver has
//   taken the message.
//
// - The receiver's host queues three actions on its stream. The stream waits for the sender's event, copies the
//   message, and records an event for the sender.
//
// - The sender's host then makes its own stream wait for the receiver's event.
//
// Hosts wait only for hosts, never for a GPU. Mailboxes are in memory that the processes share (shared_block.hpp). If
// all ranks are on one machine, they also use this memory to agree on a call. A call then need not wait for GPU work of
// earlier calls.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cuda/driver/ipc.hpp"
#include "ring/transport/device_state.hpp"
#include "ring/transport/local_mailbox.hpp"
#include "ring/transport/local_marks.hpp"
#include "ring/transport/shared_block.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

class LocalLinks {
 public:
  using Gather = std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)>;

  struct Setup {
    int rank, size;
    bool is_wanted;                     ///< true if this rank requests links
    std::chrono::milliseconds timeout;  ///< time limit of each wait for another rank's host; 0 means no limit
    DeviceState& state;                 ///< owner of the memory of all messages; must outlive the links
    Gather gather;                      ///< Transport::all_gather
  };

  /// Makes links to the other ranks of this machine. All ranks must call it. Returns null on all ranks if any rank does
  /// not request links, or cannot access the GPU or the memory of another rank of its machine.
  [[nodiscard]] static std::unique_ptr<LocalLinks> connect(const Setup& setup);

  LocalLinks(const LocalLinks&) = delete;
  LocalLinks& operator=(const LocalLinks&) = delete;
  ~LocalLinks();

  [[nodiscard]] bool reaches(int rank) const { return peers_[static_cast<std::size_t>(rank)] != nullptr; }
  [[nodiscard]] bool reaches_all() const;

  /// Implement Transport::all_gather and Transport::exchange among linked ranks. all_gather requires that all ranks are
  /// linked.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives);

  /// Reports that this rank has failed in a call. Other ranks that wait for this rank then throw an error that contains
  /// `why`.
  void fail(const std::string& why) noexcept;

 private:
  struct Peer;
  class Posted;

  explicit LocalLinks(const Setup& setup);
  [[nodiscard]] Introduction introduce(cuda::DevicePointer probe);
  void open_peers(std::span<const Introduction> by_rank);
  [[nodiscard]] Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Mailbox& mailbox(const SharedBlock& of_receiver, int from) const;
  [[nodiscard]] RankBoard& board(const SharedBlock& of_rank) const;

  void take(const DeviceMessage& message);
  [[nodiscard]] const MemoryOfRank& own_memory();
  [[nodiscard]] bool has_peers(bool of_this_process) const;
  void record_ready();
  void record_copied();
  [[nodiscard]] cuda::DevicePointer memory_of(Peer& peer, Mailbox& box);
  void drop_outgrown_memory();
  void close_opened_memory();

  template <class IsDone>
  void wait(int other, IsDone is_done) const;

  int rank_, size_;
  std::chrono::milliseconds timeout_;
  DeviceState& state_;
  SharedBlock own_;
  std::vector<std::unique_ptr<Peer>> peers_;  // indexed by rank; null for this rank and for ranks on other machines
  std::shared_ptr<LocalMarks> marks_;         // events for ranks of this process
  // Event for other processes. When it is complete, they may read the memory that this rank sends.
  cuda::SharedEvent ready_;
  // Event for other processes. When it is complete, this rank has read the memory that they sent.
  cuda::SharedEvent copied_;
  MemoryOfRank own_memory_;
  std::uint64_t num_pieces_ = 0;  // number of pieces that all_gather() has sent so far
};

}  // namespace attend::ring
