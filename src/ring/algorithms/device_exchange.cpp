#include "ring/algorithms/device_exchange.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "cuda/driver/stream.hpp"
#include "ring/engine/device_rows.hpp"
#include "ring/engine/parts.hpp"
#include "ring/engine/ring_rows.hpp"

namespace attend::ring {
namespace {

using core::Problem;
using cuda::DevicePointer;
using cuda::Event;
using cuda::StreamHandle;

constexpr std::size_t kAlignment = 256;  // alignment in bytes of the memory of each message

std::size_t rounded(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns `pair` with its memory at `address` of the call's GPU.
Pair placed(const Pair& pair, DevicePointer address, Device device) {
  return pair.at(reinterpret_cast<std::byte*>(address), device);  // NOLINT(performance-no-int-to-ptr)
}

/// Returns the size in bytes of the largest pair_of(call, owner), over all owners. A pair consists of an owner's keys
/// and values, or of their gradients.
template <class PairOf>
std::size_t most_bytes(const Call& call, PairOf pair_of) {
  std::size_t most = 0;
  for (int owner = 0; owner < call.plan.num_ranks(); ++owner) most = std::max(most, pair_of(call, owner).bytes);
  return rounded(most);
}

/// Returns whether kernels can read the caller's k or v in place. The choice of backends assumes dense tensors, whose
/// address, row length and strides are multiples of 16 bytes. A tensor that does not meet this condition is copied.
bool is_readable(const Tensor& t) {
  constexpr std::int64_t kBytes = 16;
  const auto is_multiple = [&](std::int64_t elements) { return elements * dtype_bytes(t.dtype) % kBytes == 0; };
  return t.stride[3] == 1 && is_multiple(t.shape[3]) && reinterpret_cast<std::uintptr_t>(t.data) % kBytes == 0 &&
         std::all_of(t.stride.begin(), t.stride.begin() + 3, [&](auto n) { return n > 0 && is_multiple(n); });
}

DevicePointer address_of(const Pair& pair) {
  return reinterpret_cast<DevicePointer>(pair.first.data);
}

/// State of a forward or backward pass: the memory of messages, and the events that order the two streams.
class Pass {
 public:
  /// @param blocks  number of gradient blocks. It is 0 in a forward pass, which has two blocks of keys and values. A
  ///   backward pass has a third block of keys and values, which holds the rank's own keys
  Pass(Transport& transport, const Call& call, StreamHandle stream, std::size_t blocks)
      : transport_(transport),
        call_(call),
        device_(call.problem.q.device),
        state_(transport.state(device_.index)),
        stream_(stream),
        key_bytes_(most_bytes(call, key_pair)),
        gradient_bytes_(blocks == 0 ? 0 : most_bytes(call, gradient_pair)),
        key_blocks_(blocks == 0 ? 2 : 3),
        memory_(state_.borrow(key_blocks_ * key_bytes_ + blocks * gradient_bytes_, stream)) {}

  void finish() { state_.give_back(stream_); }

  /// Returns the rank's own keys and values for its kernels: the caller's tensors if kernels can read them, otherwise a
  /// dense copy. If the keys are sent to another rank, the copy is queued before the first kernel, because that kernel
  /// occupies the full GPU and a later copy would have to wait.
  [[nodiscard]] Pair pack_own() {
    const core::Problem& p = call_.problem;
    const Pair dense = keys(0);
    Pair own = dense;
    if (is_readable(p.k) && is_readable(p.v)) {
      own.first = p.k;
      own.second = p.v;
      if (!call_.plan.sends(0)) return own;
    }
    const TimedSpan span(timeline(), Activity::kCopy, 0, stream_);
    clear_gaps(std::array{dense.first, dense.second}, stream_);
    cuda::convert_rows(dense.first, p.k, stream_);
    cuda::convert_rows(dense.second, p.v, stream_);
    return own;
  }

  [[nodiscard]] StreamHandle stream() const { return stream_; }
  [[nodiscard]] Timeline* timeline() const { return transport_.timeline(); }
  [[nodiscard]] Device device() const { return device_; }

  /// Returns the memory for the keys of a step. Steps alternate between two blocks. In a backward pass, the first step
  /// uses a third block.
  [[nodiscard]] Pair keys(int step) const {
    const std::size_t block = step == 0 && key_blocks_ > 2 ? 2 : static_cast<std::size_t>(step % 2);
    return placed(key_pair(call_, call_.plan.owner(step)), memory_ + block * key_bytes_, device_);
  }
  /// Returns block `block` of gradients, with the layout of the owner's keys.
  [[nodiscard]] Pair gradients(std::size_t block, int owner) const {
    return placed(gradient_pair(call_, owner), memory_ + key_blocks_ * key_bytes_ + block * gradient_bytes_, device_);
  }

  /// Queues an exchange that begins when the caller's stream reaches this point. Records the event `done` after the
  /// last message. If there are no messages, `done` stays empty.
  void exchange(int step, std::vector<DeviceMessage> sends, std::vector<DeviceMessage> receives,
                std::optional<Event>& done) {
    const auto is_empty = [](const DeviceMessage& m) { return m.bytes == 0; };
    std::erase_if(sends, is_empty);
    std::erase_if(receives, is_empty);
    if (sends.empty() && receives.empty()) return;
    Event ready;
    ready.record(stream_);
    ready.make_wait(state_.stream());
    {
      const TimedSpan span(transport_.timeline(), Activity::kExchange, step, state_.stream());
      transport_.exchange(sends, receives);
    }
    done.emplace();
    done->record(state_.stream());
  }

 private:
  Transport& transport_;
  const Call& call_;
  Device device_;
  DeviceState& state_;
  StreamHandle stream_;
  std::size_t key_bytes_, gradient_bytes_, key_blocks_;
  DevicePointer memory_;
};

DeviceMessage message(int peer, const Pair& pair) {
  return {peer, address_of(pair), pair.bytes};
}

/// Calls visit(step, keys) for each step. `keys` is null if the rank holds no keys in the step. While the work that
/// visit() queues on the stream runs, the next step's keys are transferred.
/// @param own  the rank's own keys, which it holds in the first step
template <class Visit>
void for_each_step_on_device(Pass& pass, const Call& call, const Pair& own, Visit visit) {
  const Plan& plan = call.plan;
  for (int step = 0; step < plan.num_ranks(); ++step) {
    const Pair held = pass.keys(step);
    std::vector<DeviceMessage> sends, receives;
    if (plan.sends(step)) sends.push_back(message(plan.next(), held));
    // The next keys overwrite those of the previous step. This is safe because the stream already contains all work
    // that reads them.
    if (plan.holds(step + 1)) receives.push_back(message(plan.previous(), pass.keys(step + 1)));
    std::optional<Event> moved;
    pass.exchange(step, std::move(sends), std::move(receives), moved);
    visit(step, !plan.holds(step) ? nullptr : step == 0 ? &own : &held);
    // From here on the stream may read the keys of the next step and overwrite this step's memory.
    if (moved) moved->make_wait(pass.stream());
  }
}

/// Sums of dk and dv for an owner's keys. Each piece stores or adds values in some of the rows, and `written` records
/// which rows have a value.
struct KeySums {
  Pair pair;
  WrittenRows written = {};

  [[nodiscard]] std::array<Tensor, 2> tensors() const { return {pair.first, pair.second}; }
};

/// The sums of dk and dv for other ranks' keys. They travel around the ring one step behind the keys, and return to
/// their owners. The contribution of a rank's rows to the gradients of the rank's own keys does not travel. The class
/// uses five blocks of gradients. Blocks 0 and 1 alternate from step to step, and hold this rank's contribution to the
/// gradients of the step's keys. Block 2 receives sums from the previous rank. Block 3 receives the other ranks' sums
/// for this rank's keys. Block 4 holds this rank's contribution to the gradients of its own keys.
class DeviceGradientRing {
 public:
  static constexpr std::size_t kBlocks = 5;

  DeviceGradientRing(Pass& pass, const Call& call)
      : pass_(pass), call_(call), plan_(call.plan), own_{pass.gradients(kOwn, call.plan.rank())} {}

  /// Returns this rank's contribution to the gradients of its own keys. May be called at any time.
  [[nodiscard]] KeySums& own() { return own_; }

  /// Returns memory for this rank's contribution to the gradients of the keys that it holds in the step. Must not be
  /// called for the first step, which handles the rank's own keys.
  [[nodiscard]] KeySums begin(int step) const {
    return {pass_.gradients(static_cast<std::size_t>(step % 2), plan_.owner(step))};
  }

  /// Adds the sums of the previous ranks for the step's keys to `share` and sends the result on. `share` is null if the
  /// rank holds no keys in the step. Must be called in every step except the first.
  void pass_on(int step, KeySums* share) {
    const int owner = plan_.owner(step);
    // Waits for the exchange of the previous step. Received sums may then be read, and sent sums may be overwritten.
    wait();
    if (share != nullptr) {
      const TimedSpan span(pass_.timeline(), Activity::kCopy, step, pass_.stream());
      complete(*share);
      if (step > kFirst) add(share->pair, pass_.gradients(kOthers, owner));
    }
    std::vector<DeviceMessage> sends, receives;
    if (share != nullptr) sends.push_back(message(step < plan_.last_step(owner) ? plan_.next() : owner, share->pair));
    if (plan_.holds(step + 1)) {
      receives.push_back(message(plan_.previous(), pass_.gradients(kOthers, plan_.owner(step + 1))));
    }
    if (step == plan_.last_step(plan_.rank())) {
      const int last = (plan_.rank() + step) % plan_.num_ranks();
      receives.push_back(message(last, pass_.gradients(kHome, plan_.rank())));
      comes_home_ = true;
    }
    pass_.exchange(step, std::move(sends), std::move(receives), moved_);
  }

  /// Stores dk and dv. Must be called after the last step and after all updates of own().
  void finish() {
    // Waits until the other ranks' sums for this rank's keys have arrived and the last contribution has been sent.
    wait();
    const TimedSpan span(pass_.timeline(), Activity::kCopy, plan_.num_ranks(), pass_.stream());
    clear_unwritten(own_.written, own_.tensors(), pass_.stream());
    const Problem& p = call_.problem;
    if (comes_home_) {
      const Pair others = pass_.gradients(kHome, plan_.rank());
      cuda::store_sum_of_rows(p.dk, own_.pair.first, others.first, pass_.stream());
      cuda::store_sum_of_rows(p.dv, own_.pair.second, others.second, pass_.stream());
    } else {
      cuda::convert_rows(p.dk, own_.pair.first, pass_.stream());
      cuda::convert_rows(p.dv, own_.pair.second, pass_.stream());
    }
  }

 private:
  static constexpr std::size_t kOthers = 2, kHome = 3, kOwn = 4;
  // First step in which this rank sends a sum, to which no other rank has added before.
  static constexpr int kFirst = 1;

  void wait() {
    if (moved_) moved_->make_wait(pass_.stream());
    moved_.reset();
  }
  /// Prepares sums for sending. Sets all bytes that have no value yet to 0.
  void complete(KeySums& sums) const {
    clear_unwritten(sums.written, sums.tensors(), pass_.stream());
    clear_gaps(sums.tensors(), pass_.stream());
  }
  void add(const Pair& to, const Pair& from) const {
    cuda::add_rows(to.first, from.first, pass_.stream());
    cuda::add_rows(to.second, from.second, pass_.stream());
  }

  Pass& pass_;
  const Call& call_;
  const Plan& plan_;
  KeySums own_;
  std::optional<Event> moved_;
  bool comes_home_ = false;
};

}  // namespace

void exchange_forward_on_device(Transport& transport, const Call& call, Engine& engine, StreamHandle stream) {
  Pass pass(transport, call, stream, 0);
  Parts parts(call);
  const Pair own = pass.pack_own();
  engine.begin_rows();
  for_each_step_on_device(pass, call, own, [&](int step, const Pair* keys) {
    if (keys == nullptr) return;
    const TimedSpan span(transport.timeline(), Activity::kCompute, step, stream);
    for (const Piece& piece : call.plan.pieces(call.plan.owner(step))) {
      engine.add_forward(piece, parts.problem(piece, keys->first, keys->second));
    }
  });
  engine.store_rows(call.problem.o, call.problem.lse ? &*call.problem.lse : nullptr);
  pass.finish();
}

void exchange_backward_on_device(Transport& transport, const Call& call, Engine& engine, StreamHandle stream) {
  Pass pass(transport, call, stream, DeviceGradientRing::kBlocks);
  Parts parts(call);
  const Pair own_keys = pass.pack_own();
  engine.begin_dq();
  DeviceGradientRing gradients(pass, call);
  const auto add = [&](int step, std::span<const Piece> pieces, const Pair& keys, KeySums& sums) {
    if (pieces.empty()) return;
    const TimedSpan span(transport.timeline(), Activity::kCompute, step, stream);
    for (const Piece& piece : pieces) {
      Problem part = parts.problem(piece, keys.first, keys.second);
      part.part->is_first_of_keys = stores_rows(sums.written, piece.keys, sums.tensors(), stream);
      engine.add_backward(piece, part, sums.pair.first, sums.pair.second);
    }
  };
  const OwnPieces own = call.plan.own_pieces(call.plan.rank());
  for_each_step_on_device(pass, call, own_keys, [&](int step, const Pair* keys) {
    if (step == 0) return add(0, own.first, *keys, gradients.own());
    if (keys == nullptr) return gradients.pass_on(step, nullptr);
    KeySums share = gradients.begin(step);
    add(step, call.plan.pieces(call.plan.owner(step)), *keys, share);
    gradients.pass_on(step, &share);
  });
  add(call.plan.num_ranks(), own.last, own_keys, gradients.own());
  gradients.finish();
  engine.store_dq(call.problem.dq);
  pass.finish();
}

}  // namespace attend::ring
