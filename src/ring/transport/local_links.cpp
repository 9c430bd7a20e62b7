#include "ring/transport/local_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "attend/error.hpp"
#include "cpu/parallel.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/peer.hpp"

namespace attend::ring {
namespace {

using cuda::DevicePointer;

/// Time limit of the destructor, which waits for other ranks to close this rank's memory. After the limit it frees the
/// memory anyway. This is safe because no rank that still has the memory open reads it.
constexpr auto kClosingTime = std::chrono::seconds(2);

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

/// Returns a random name for this process. Process ids are unsuitable, because they differ between containers and are
/// reused.
std::uint64_t name_of_process() {
  static const std::uint64_t kName = random_number();
  return kName;
}

/// Returns a name that changes with each boot of the machine. Containers have the same name as their machine.
std::string name_of_machine() {
  std::string name;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), name);
  return name;
}

std::array<char, Introduction::kNameBytes> packed(const std::string& text) {
  std::array<char, Introduction::kNameBytes> name = {};
  text.copy(name.data(), name.size() - 1);
  return name;
}

std::size_t block_bytes(int size) {
  return sizeof(RankBoard) + static_cast<std::size_t>(size) * sizeof(Mailbox);
}

}  // namespace

/// State of the link to another rank on this machine.
struct LocalLinks::Peer {
  bool is_of_this_process = false;
  int device = 0;  // device number; set only if is_of_this_process
  std::shared_ptr<LocalMarks> marks;
  SharedBlock block;
  cuda::OpenedEvent opened_ready, opened_copied;  // set only if not is_of_this_process
  cuda::EventHandle ready = nullptr, copied = nullptr;
  cuda::OpenedMemory memory;  // memory of the peer that this rank has open; `generation` is that memory's generation
  std::uint64_t generation = 0;
};

LocalLinks::LocalLinks(const Setup& setup)
    : rank_(setup.rank),
      size_(setup.size),
      timeout_(setup.timeout),
      state_(setup.state),
      own_(SharedBlock::make(fmt::format("/attend-ring-{:016x}", random_number()), block_bytes(setup.size))),
      peers_(static_cast<std::size_t>(setup.size)),
      marks_(std::make_shared<LocalMarks>()) {
  publish_marks(own_.name(), marks_);
}

LocalLinks::~LocalLinks() {
  try {
    const cuda::ContextGuard guard(state_.device());
    cuda::synchronize(state_.stream());  // waits for copies from the memory that is closed next
    close_opened_memory();
    const auto start = std::chrono::steady_clock::now();
    const auto is_open = [&](const std::unique_ptr<Peer>& peer) {
      return peer != nullptr && mailbox(peer->block, rank_).opened.load(std::memory_order_acquire) != 0;
    };
    while (std::ranges::any_of(peers_, is_open) && std::chrono::steady_clock::now() - start < kClosingTime) {
      std::this_thread::yield();
    }
    peers_.clear();  // destroys the events while the context is current
  } catch (const Error&) {
    return;  // if the CUDA context no longer exists, its memory is already freed
  }
}

// ------------------------------------------------------------------------------------------------------- connecting

std::unique_ptr<LocalLinks> LocalLinks::connect(const Setup& setup) {
  const cuda::ContextGuard guard(setup.state.device());
  std::unique_ptr<LocalLinks> links;
  cuda::DeviceMemory probe;
  Introduction mine;
  try {
    if (setup.is_wanted && setup.size > 1) {
      links.reset(new LocalLinks(setup));
      probe = cuda::DeviceMemory(cuda::kSharedMemoryUnit);
      mine = links->introduce(probe.data());
    }
  } catch (const Error&) {  // This rank cannot use links, so the other ranks must not use links to it.
    mine = {};
  }
  const auto ask_all = [&](const auto& mine_of_it) {
    std::vector<std::remove_cvref_t<decltype(mine_of_it)>> all(static_cast<std::size_t>(setup.size));
    setup.gather(std::as_bytes(std::span(&mine_of_it, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  };
  const std::vector<Introduction> by_rank = ask_all(mine);
  if (std::ranges::any_of(by_rank, [](const Introduction& its) { return its.machine[0] == 0; })) return nullptr;
  std::uint32_t is_done = 1;
  try {
    links->open_peers(by_rank);
  } catch (const Error&) {
    is_done = 0;
  }
  const std::vector<std::uint32_t> all_done = ask_all(is_done);
  if (links != nullptr) links->own_.forget_name();
  if (std::ranges::find(all_done, 0U) != all_done.end()) return nullptr;
  setup.state.keep_outgrown();
  return links;
}

Introduction LocalLinks::introduce(DevicePointer probe) {
  return {.process = name_of_process(),
          .machine = packed(name_of_machine()),
          .block = packed(own_.name()),
          .device = state_.device(),
          .ready_handle = ready_.handle(),
          .copied_handle = copied_.handle(),
          .probe = {1, probe, cuda::handle_of_memory(probe)}};
}

void LocalLinks::open_peers(std::span<const Introduction> by_rank) {
  const Introduction& mine = by_rank[static_cast<std::size_t>(rank_)];
  for (int rank = 0; rank < size_; ++rank) {
    const Introduction& its = by_rank[static_cast<std::size_t>(rank)];
    if (rank == rank_ || its.machine != mine.machine) continue;
    auto peer = std::make_unique<Peer>();
    peer->block = SharedBlock::open(its.block.data(), block_bytes(size_));
    peer->is_of_this_process = its.process == mine.process;
    if (peer->is_of_this_process) {
      peer->device = its.device;
      peer->marks = marks_of(its.block.data());
      peer->ready = peer->marks->ready.get();
      peer->copied = peer->marks->copied.get();
      if (!cuda::enable_peer_access(state_.device(), its.device)) {
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("device: {}, which has no access to {}", state_.device(), its.device));
      }
    } else {
      peer->opened_ready = cuda::OpenedEvent(its.ready_handle);
      peer->opened_copied = cuda::OpenedEvent(its.copied_handle);
      peer->ready = peer->opened_ready.get();
      peer->copied = peer->opened_copied.get();
      const cuda::OpenedMemory probe(its.probe.handle);
    }
    peers_[static_cast<std::size_t>(rank)] = std::move(peer);
  }
}

bool LocalLinks::reaches_all() const {
  return std::ranges::count_if(peers_, [](const auto& peer) { return peer == nullptr; }) == 1;
}

bool LocalLinks::has_peers(bool of_this_process) const {
  return std::ranges::any_of(
      peers_, [&](const auto& peer) { return peer != nullptr && peer->is_of_this_process == of_this_process; });
}

void LocalLinks::record_ready() {
  if (has_peers(true)) marks_->ready.record(state_.stream());
  if (has_peers(false)) ready_.record(state_.stream());
}

void LocalLinks::record_copied() {
  if (has_peers(true)) marks_->copied.record(state_.stream());
  if (has_peers(false)) copied_.record(state_.stream());
}

Mailbox& LocalLinks::mailbox(const SharedBlock& of_receiver, int from) const {
  std::byte* const first = of_receiver.memory().data() + sizeof(RankBoard);
  return reinterpret_cast<Mailbox*>(first)[from];
}

RankBoard& LocalLinks::board(const SharedBlock& of_rank) const {
  return *reinterpret_cast<RankBoard*>(of_rank.memory().data());
}

// ---------------------------------------------------------------------------------------------------------- waiting

template <class IsDone>
void LocalLinks::wait(int other, IsDone is_done) const {
  const auto start = std::chrono::steady_clock::now();
  while (!is_done()) {
    for (int rank = 0; rank < size_; ++rank) {
      const Peer* const peer = peers_[static_cast<std::size_t>(rank)].get();
      if (peer == nullptr || board(peer->block).has_failed.load(std::memory_order_acquire) == 0) continue;
      throw Error(ErrorCode::kInternal, fmt::format("ring: rank {} failed: {}", rank, board(peer->block).why.data()));
    }
    if (timeout_.count() > 0 && std::chrono::steady_clock::now() - start > timeout_) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("ring: rank {} has waited {} ms for rank {}", rank_, timeout_.count(), other));
    }
    if (cpu::wants_to_end()) throw cpu::Interrupted();
    std::this_thread::yield();
  }
}

void LocalLinks::fail(const std::string& why) noexcept {
  RankBoard& mine = board(own_);
  if (mine.has_failed.load(std::memory_order_relaxed) != 0) return;
  const std::size_t length = why.copy(mine.why.data(), mine.why.size() - 1);
  mine.why[length] = '\0';
  mine.has_failed.store(1, std::memory_order_release);
}

void LocalLinks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  RankBoard& own = board(own_);
  for (std::size_t at = 0; at < mine.size(); at += RankBoard::kRoom) {
    const std::size_t bytes = std::min(RankBoard::kRoom, mine.size() - at);
    const std::size_t place = num_pieces_++ % 2;
    std::memcpy(own.pieces[place].data(), mine.data() + at, bytes);
    own.num_pieces.store(num_pieces_, std::memory_order_release);
    for (int rank = 0; rank < size_; ++rank) {
      const Peer* const peer = peers_[static_cast<std::size_t>(rank)].get();
      const RankBoard& its = peer == nullptr ? own : board(peer->block);
      wait(rank, [&] { return its.num_pieces.load(std::memory_order_acquire) >= num_pieces_; });
      std::memcpy(all.data() + static_cast<std::size_t>(rank) * mine.size() + at, its.pieces[place].data(), bytes);
    }
  }
}

// --------------------------------------------------------------------------------------------------------- messages

/// The messages that this rank has posted in one exchange. Other ranks may still read them.
class LocalLinks::Posted {
 public:
  explicit Posted(LocalLinks& links) : links_(links) {}
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;
  ~Posted() {
    for (const int rank : to_) withdraw(rank);
  }

  void post(const DeviceMessage& message) {
    Mailbox& box = links_.mailbox(links_.peer(message.peer).block, links_.rank_);
    box.memory = links_.own_memory();
    box.offset = message.data - box.memory.data;
    box.bytes = message.bytes;
    box.state.store(Mailbox::kPosted, std::memory_order_release);
    to_.push_back(message.peer);
  }

  /// Makes later work on the stream wait for the copies. Afterwards that work may overwrite the messages' memory.
  void finish() {
    while (!to_.empty()) {
      const int rank = to_.back();
      const Peer& peer = links_.peer(rank);
      Mailbox& box = links_.mailbox(peer.block, links_.rank_);
      links_.wait(rank, [&] { return box.state.load(std::memory_order_acquire) == Mailbox::kTaken; });
      cuda::wait_for_event(links_.state_.stream(), peer.copied);
      box.state.store(Mailbox::kEmpty, std::memory_order_relaxed);
      to_.pop_back();
    }
  }

 private:
  /// Withdraws a message after the call has failed. Otherwise the receiver might still copy it later.
  void withdraw(int rank) const noexcept {
    const Peer& peer = links_.peer(rank);
    Mailbox& box = links_.mailbox(peer.block, links_.rank_);
    std::uint32_t state = Mailbox::kPosted;
    if (box.state.compare_exchange_strong(state, Mailbox::kEmpty)) return;
    const auto start = std::chrono::steady_clock::now();
    while (box.state.load(std::memory_order_acquire) == Mailbox::kBeingCopied &&
           std::chrono::steady_clock::now() - start < kClosingTime) {
      std::this_thread::yield();
    }
    try {
      cuda::wait_for_event(links_.state_.stream(), peer.copied);
    } catch (const Error&) {
      return;  // if the CUDA context no longer exists, its memory is already freed
    }
  }

  LocalLinks& links_;
  std::vector<int> to_;
};

// All ranks post all their messages before they wait. Thus no rank waits for a rank that has not posted its messages.
void LocalLinks::exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives) {
  drop_outgrown_memory();
  record_ready();
  Posted posted(*this);
  for (const DeviceMessage& m : sends) posted.post(m);
  for (const DeviceMessage& m : receives) take(m);
  posted.finish();
}

void LocalLinks::take(const DeviceMessage& message) {
  Peer& peer = this->peer(message.peer);
  Mailbox& box = mailbox(own_, message.peer);
  wait(message.peer, [&] {
    std::uint32_t state = Mailbox::kPosted;
    return box.state.compare_exchange_strong(state, Mailbox::kBeingCopied);
  });
  try {
    if (box.bytes != message.bytes) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("ring: {} bytes from rank {}, expected {}", box.bytes, message.peer, message.bytes));
    }
    const DevicePointer from = memory_of(peer, box) + box.offset;
    cuda::wait_for_event(state_.stream(), peer.ready);
    // Device of the receiver; memory of another process is opened on this device too.
    const int device = state_.device();
    cuda::copy_between({device, message.data}, {peer.is_of_this_process ? peer.device : device, from}, message.bytes,
                       state_.stream());
    record_copied();
  } catch (...) {
    box.state.store(Mailbox::kPosted, std::memory_order_release);  // allows the sender to withdraw the message
    throw;
  }
  box.state.store(Mailbox::kTaken, std::memory_order_release);
}

// ----------------------------------------------------------------------------------------------------------- memory

const MemoryOfRank& LocalLinks::own_memory() {
  if (own_memory_.generation != state_.generation()) {
    own_memory_ = {state_.generation(), state_.memory()};
    if (has_peers(false)) own_memory_.handle = cuda::handle_of_memory(state_.memory());
  }
  return own_memory_;
}

/// Returns the address at which this rank can read the memory that holds a message. Opens the memory if necessary.
DevicePointer LocalLinks::memory_of(Peer& peer, Mailbox& box) {
  if (peer.is_of_this_process) return box.memory.data;
  if (peer.generation != box.memory.generation) {
    cuda::synchronize(state_.stream());  // waits for copies from the memory that is closed next
    peer.memory = {};
    peer.memory = cuda::OpenedMemory(box.memory.handle);
    peer.generation = box.memory.generation;
    box.opened.store(peer.generation, std::memory_order_release);
  }
  return peer.memory.data();
}

/// Frees outgrown memory if no other process has it open.
void LocalLinks::drop_outgrown_memory() {
  if (!state_.has_outgrown()) return;
  const auto reads_it = [&](const std::unique_ptr<Peer>& peer) {
    if (peer == nullptr || peer->is_of_this_process) return false;
    const std::uint64_t opened = mailbox(peer->block, rank_).opened.load(std::memory_order_acquire);
    return opened != 0 && opened != state_.generation();
  };
  if (std::ranges::none_of(peers_, reads_it)) state_.drop_outgrown();
}

void LocalLinks::close_opened_memory() {
  for (int rank = 0; rank < size_; ++rank) {
    if (peers_[static_cast<std::size_t>(rank)] == nullptr) continue;
    peer(rank).memory = {};
    mailbox(own_, rank).opened.store(0, std::memory_order_release);
  }
}

}  // namespace attend::ring
