// Runs the threads of a block as fibers of one CPU thread. Each fiber runs until it waits for another one. A seed
// selects the order of the fibers. A warp may run far ahead of the others, and asynchronous copies may finish late.
// Therefore a kernel with a missing barrier gives wrong results for some seed. A kernel that waits forever is detected
// because no thread makes progress.
//
// This header includes few other headers, because every emulated kernel includes it and should compile fast.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <ucontext.h>

namespace emulated {

constexpr int kLanes = 32;

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// An entry in a thread's queue: a copy that has not finished, the end of a group of copies, or an arrival at a
/// barrier.
struct PendingCopy {
  enum Kind { kCopy, kGroupEnd, kArrival } kind;
  void* to;
  const void* from;
  int bytes;      ///< bytes that the copy reads
  int all_bytes;  ///< bytes that the copy writes; bytes beyond those read are zeros
};

struct Thread {
  Index index;
  std::jmp_buf place;
  ucontext_t start;
  std::vector<PendingCopy> copies;  // unfinished copies, in the order in which they were started
  bool done = false;
};

/// Words that the 32 lanes exchange in one operation. Two buffers are enough, because no lane can be two operations
/// ahead of another.
struct Warp {
  int arrived = 0;
  std::uint64_t generation = 0;
  std::uint64_t words[2][kLanes][8];
};

struct NamedBarrier {
  int arrived = 0;
  std::uint64_t generation = 0;
};

class Block {
 public:
  static constexpr std::size_t kStackBytes = 128 * 1024;
  static constexpr int kNamedBarriers = 17;  // the last one implements __syncthreads()

  /// In an incomplete warp, the missing lanes count as done. An incomplete warp cannot use a warp barrier.
  Block(int threads, Index index, unsigned seed)
      : index_(index),
        random_(seed * 2654435761u + 1),
        threads_((threads + kLanes - 1) / kLanes * kLanes),
        warps_(threads_.size() / kLanes),
        left_(threads) {
    for (std::size_t t = static_cast<std::size_t>(threads); t < threads_.size(); ++t) threads_[t].done = true;
    laziness_ = 1u << random(12);
    for (int t = 0; t < threads; ++t) threads_[t].index.x = static_cast<unsigned>(t);
  }

  ~Block() { std::free(stacks_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void run(void (*entry)());

  /// start() and resume() are the two halves of run(), for blocks that wait for each other. resume() returns true when
  /// all threads are done. resume() returns false if every thread waits, perhaps for another block.
  void start(void (*entry)());
  [[nodiscard]] bool resume();

  [[nodiscard]] Thread& thread() { return threads_[current_]; }
  [[nodiscard]] Warp& warp() { return warps_[current_ / kLanes]; }
  [[nodiscard]] int lane() const { return current_ % kLanes; }
  [[nodiscard]] const Index& index() const { return index_; }
  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()); }
  [[nodiscard]] NamedBarrier& barrier(int number) { return barriers_[number]; }

  /// Records an event for which other threads may wait.
  void progress() {
    idle_ = 0;
    ++events_;
  }
  /// Returns the number of events recorded so far.
  [[nodiscard]] unsigned long events() const { return events_; }

  /// Lets other threads run. If no event has happened for a long time, only another block can cause one, so resume()
  /// returns.
  void yield();

  /// Finishes the thread's oldest copies until only `groups_left` groups are pending.
  static void land(Thread& thread, int groups_left);

 private:
  static void enter();
  void switch_to_next();
  [[nodiscard]] int next();
  void next_warp();
  [[nodiscard]] unsigned random(unsigned below);

  Index index_;
  std::uint64_t random_;
  unsigned laziness_;  // at each yield, the pending copies finish with probability 1 / laziness_
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  NamedBarrier barriers_[kNamedBarriers];
  std::vector<int> order_;  // order in which the warps run
  std::size_t at_ = 0;      // index of the current warp in order_
  int rounds_ = 0;          // number of rounds that the current warp may still run
  int turn_ = 0;            // position in the warp's order of lanes; the current lane is turn_ ^ flips_
  int flips_ = 0;
  int current_ = 0;
  long idle_ = 0;
  unsigned long events_ = 0;
  int left_ = 0;
  void (*entry_)() = nullptr;
  char* stacks_ = nullptr;
  std::jmp_buf caller_;
  ucontext_t caller_context_;
};

inline Block* block = nullptr;

inline void arrive(std::uint64_t* barrier);

inline void Block::land(Thread& thread, int groups_left) {
  int groups = 0;
  for (const PendingCopy& copy : thread.copies) groups += copy.kind == PendingCopy::kGroupEnd ? 1 : 0;
  std::size_t landed = 0;
  while (landed < thread.copies.size() && (groups > groups_left || groups_left == 0)) {
    const PendingCopy& copy = thread.copies[landed++];
    if (copy.kind == PendingCopy::kCopy) {
      std::memset(copy.to, 0, static_cast<std::size_t>(copy.all_bytes));
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
      continue;
    }
    if (copy.kind == PendingCopy::kGroupEnd) --groups;
    if (copy.kind == PendingCopy::kArrival) arrive(static_cast<std::uint64_t*>(copy.to));
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(landed));
}

inline unsigned Block::random(unsigned below) {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<unsigned>(random_ >> 33) % below;
}

inline void Block::next_warp() {
  rounds_ = 1 << random(12);
  if (++at_ < order_.size()) return;
  at_ = 0;
  for (std::size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[random(static_cast<unsigned>(i) + 1)]);
  }
}

inline int Block::next() {
  // Runs the lanes of a warp in sequence for some rounds, then switches to another warp. If a thread can still run, the
  // loop below finds it.
  for (int tried = 0; tried <= 3 * num_threads(); ++tried) {
    if (++turn_ >= kLanes) {
      turn_ = 0;
      flips_ = static_cast<int>(random(kLanes));
      if (--rounds_ <= 0 || idle_ >= 2 * kLanes) next_warp();
    }
    current_ = order_[at_] * kLanes + (turn_ ^ flips_);
    if (!threads_[current_].done) return current_;
    if (turn_ == 0) rounds_ = 0;  // ends the warp's rounds, because all of its lanes may be done
  }
  return -1;
}

inline void Block::switch_to_next() {
  if (next() < 0) std::abort();  // some thread must still run, because enter() ends the block after its last thread
  std::longjmp(threads_[current_].place, 1);
}

inline void Block::yield() {
  Thread& self = thread();
  if (!self.copies.empty() && (random(laziness_) == 0 || idle_ > 2L * num_threads())) {
    land(self, 0);
    progress();
  }
  if (++idle_ > 2000L * num_threads()) {
    idle_ = 0;
    if (setjmp(self.place) == 0) std::longjmp(caller_, 3);  // makes resume() return
    return;
  }
  if (setjmp(self.place) == 0) switch_to_next();
}

inline void Block::enter() {
  Block* self = block;
  if (setjmp(self->thread().place) == 0) std::longjmp(self->caller_, 1);  // the fiber now exists; run() starts it later
  block->entry_();
  Thread& thread = block->thread();
  land(thread, 0);
  thread.done = true;
  --block->left_;
  block->progress();
  if (block->left_ == 0) std::longjmp(block->caller_, 2);
  block->switch_to_next();
}

inline void Block::start(void (*entry)()) {
  block = this;
  entry_ = entry;
  // Not zeroed, because most of the memory is never used.
  stacks_ = static_cast<char*>(std::malloc(threads_.size() * kStackBytes));
  if (stacks_ == nullptr) std::abort();
  for (int w = 0; w < num_threads() / kLanes; ++w) order_.push_back(w);
  for (int t = 0; t < num_threads(); ++t) {
    current_ = t;
    Thread& thread = threads_[t];
    if (thread.done) continue;
    getcontext(&thread.start);
    thread.start.uc_stack = {stacks_ + static_cast<std::size_t>(t) * kStackBytes, 0, kStackBytes};
    thread.start.uc_link = nullptr;
    makecontext(&thread.start, &Block::enter, 0);
    if (setjmp(caller_) == 0) swapcontext(&caller_context_, &thread.start);
  }
  turn_ = kLanes;  // makes next() begin with the first warp of a new order
  at_ = order_.size();
  rounds_ = 0;
}

inline bool Block::resume() {
  block = this;
  const int how = setjmp(caller_);
  if (how == 0) switch_to_next();
  block = nullptr;
  return how == 2;
}

inline void Block::run(void (*entry)()) {
  start(entry);
  if (resume()) return;
  std::fprintf(stderr, "emulated block %u: every thread waits, and none for what another will do\n", index_.x);
  std::abort();
}

/// Waits until all lanes of the warp have arrived. Afterwards each lane may read the words of the others.
inline void warp_barrier() {
  Warp& warp = block->warp();
  const std::uint64_t generation = warp.generation;
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    ++warp.generation;
    block->progress();
    return;
  }
  while (warp.generation == generation) block->yield();
}

/// Publishes the words of this lane, waits for the other lanes, and returns the words of all lanes.
template <class Words>
const std::uint64_t (*exchange(const Words& own))[8] {
  static_assert(sizeof(Words) <= sizeof(std::uint64_t[8]));
  Warp& warp = block->warp();
  auto* words = warp.words[warp.generation % 2];
  std::memcpy(words[block->lane()], &own, sizeof(Words));
  warp_barrier();
  return words;
}
template <class Words>
Words words_of(const std::uint64_t (*all)[8], int lane) {
  Words words;
  std::memcpy(&words, all[lane], sizeof(Words));
  return words;
}

inline void arrive_at_barrier(int number, int threads) {
  NamedBarrier& barrier = block->barrier(number);
  if (++barrier.arrived < threads) return;
  barrier.arrived = 0;
  ++barrier.generation;
  block->progress();
}

inline void block_barrier(int number, int threads) {
  const NamedBarrier& barrier = block->barrier(number);
  const std::uint64_t generation = barrier.generation;
  arrive_at_barrier(number, threads);
  while (barrier.generation == generation) block->yield();
}

/// The state of an mbarrier in 64 bits: expected arrivals per phase, missing arrivals, pending bytes and the parity of
/// the phase.
struct BarrierState {
  std::uint16_t expected, missing;
  std::int32_t bytes : 31;  // bytes that pending copies have yet to deliver
  std::uint32_t phase : 1;

  void end_phase_if_complete() {
    if (missing != 0 || bytes != 0) return;
    missing = expected;
    phase ^= 1;
  }
};
/// Adds to the barrier's pending bytes. @param bytes positive if the producer announces bytes that will arrive;
/// negative if a copy has delivered bytes
inline void add_bytes(std::uint64_t* barrier, int bytes) {
  BarrierState state;
  std::memcpy(&state, barrier, sizeof(state));
  state.bytes += bytes;
  if (bytes < 0) state.end_phase_if_complete();
  std::memcpy(barrier, &state, sizeof(state));
  if (block != nullptr) block->progress();
}
inline void arrive(std::uint64_t* barrier) {
  BarrierState state;
  std::memcpy(&state, barrier, sizeof(state));
  if (state.missing == 0) {
    std::fprintf(stderr, "emulated mbarrier: an arrival more than expected\n");
    std::abort();
  }
  --state.missing;
  state.end_phase_if_complete();
  std::memcpy(barrier, &state, sizeof(state));
  if (block != nullptr) block->progress();
}

}  // namespace emulated
