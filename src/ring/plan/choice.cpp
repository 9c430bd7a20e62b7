#include "ring/plan/choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ring/plan/groups.hpp"
#include "ring/plan/head_share.hpp"

namespace attend::ring {
namespace {

/// A connection between two ranks. A message of b bytes takes latency_us + b / bytes_per_us. Both directions can be
/// used at the same time.
struct Link {
  double latency_us, bytes_per_us;
};
/// Measured between two H200 GPUs of one machine while they computed products: their copy engines took 0.36 to 0.39 ms
/// for 134 MB, and 0.71 to 0.9 ms for 268 MB. NCCL's kernels reach 98, 157 and 303 GB/s at 8, 64 and 256 MiB. The rate
/// between machines depends on their network. All ranks must make the same choice, but a rank has no information about
/// the connections of the other ranks. The model therefore assumes that all ranks are on one machine.
constexpr Link kGpuLink = {20, 3.5e5};
constexpr Link kHostLink = {20, 5e3};

/// Rates of a rank's machine, per microsecond, and constants of the cost model. The numbers for H200 are measured
/// (docs/ring.md). The numbers for the host describe a processor with a few cores. All numbers are precise enough to
/// compare algorithms, but not to predict times.
struct Machine {
  double forward_flops, backward_flops;
  Link link;
  double memory_bytes;
  double piece_us;       ///< overhead of a piece in addition to its products, in microseconds
  bool hides;            ///< true if an exchange overlaps products
  double most_gathered;  ///< maximum size of gathered keys, in bytes, for which kAutomatic chooses kAllGather
};

constexpr double kMiB = 1 << 20;

Machine machine_of(const core::Problem& p) {
  constexpr Machine kHost = {1e5, 1e5, kHostLink, 1e4, 5, false, 64 * kMiB};
  constexpr Machine kGpu = {7e8, 6.1e8, kGpuLink, 3e6, 8, true, 1024 * kMiB};
  constexpr Machine kGpuFloat = {1.5e7, 1.2e7, kGpuLink, 3e6, 8, true, 1024 * kMiB};
  if (p.q.device.type == DeviceType::kCPU) return kHost;
  switch (p.q.dtype) {
    case DType::kF32:
      return kGpuFloat;
    case DType::kF16:
    case DType::kBF16:
    case DType::kF64:   // no GPU backend supports this dtype
    case DType::kBool:  // no GPU backend supports this dtype
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      return kGpu;
  }
  return kGpu;
}

/// Returns the sum of min(first + i, most) for i from 0 to count - 1.
double sum_of_least(std::int64_t count, std::int64_t first, std::int64_t most) {
  const std::int64_t growing = std::clamp<std::int64_t>(most - first, 0, count);
  const auto n = static_cast<double>(growing);
  return n * static_cast<double>(first) + n * (n - 1) / 2 +
         static_cast<double>(count - growing) * static_cast<double>(most);
}

class Model {
 public:
  explicit Model(const Call& call) : call_(call), plan_(call.plan), p_(call.problem), machine_(machine_of(p_)) {
    batch_ = p_.varlen ? 1 : p_.q.shape[0];
    const int ranks = plan_.num_ranks();
    for (int rank = 0; rank < ranks; rank += std::max(1, ranks / kMostRanks)) ranks_.push_back(rank);
  }

  [[nodiscard]] RingCandidate exchange() const {
    RingCandidate c = candidate(RingAlgorithm::kExchange);
    // The gradients of a rank's own keys do not travel, so the last pieces with these keys run at the end.
    const bool keeps_own = p_.is_backward && machine_.hides;
    double gradients = 0;  // bytes of gradients that the previous step passes on
    double last_us = 0;
    for (int step = 0; step < plan_.num_ranks(); ++step) {
      RingStep s;
      s.what = step == 0 ? "step 0: products with the rank's own keys"
                         : fmt::format("step {0}: products with the keys of the rank {0} place{1} before", step,
                                       step == 1 ? "" : "s");
      double sent = 0, passed_on = 0;
      for (const int rank : ranks_) {
        const int owner = (rank + plan_.num_ranks() - step) % plan_.num_ranks();
        if (keeps_own && step == 0) {
          const OwnPieces own = plan_.own_pieces(rank);
          s.compute_us = std::max(s.compute_us, compute_us(own.first, true));
          last_us = std::max(last_us, compute_us(own.last, true));
        } else {
          s.compute_us = std::max(s.compute_us, compute_us(plan_.pieces(rank, owner), true));
        }
        if (step < plan_.last_step(owner)) sent = std::max(sent, key_bytes(owner));
        const bool goes_somewhere = step <= plan_.last_step(owner) && plan_.last_step(owner) > 0;
        if (p_.is_backward && goes_somewhere && !(keeps_own && step == 0))
          passed_on = std::max(passed_on, gradient_bytes(owner));
      }
      if (s.compute_us > 0 || sent + gradients > 0) add(c, s, sent + gradients);
      gradients = passed_on;
    }
    if (gradients > 0 || last_us > 0) {
      const char* what = last_us > 0
                             ? "gradients of keys return to their ranks, during the remaining products with own keys"
                             : "gradients of keys return to their ranks";
      add(c, {.what = what, .compute_us = last_us}, gradients);
    }
    const double key_blocks = keeps_own ? 3 : 2, gradient_blocks = !p_.is_backward ? 0 : keeps_own ? 5 : 4;
    c.memory_bytes = static_cast<std::int64_t>(key_blocks * most(&Model::key_bytes) +
                                               gradient_blocks * most(&Model::gradient_bytes));
    return finished(c);
  }

  [[nodiscard]] RingCandidate all_gather() const {
    RingCandidate c = candidate(RingAlgorithm::kAllGather);
    double sent = 0, received = 0, sent_back = 0, compute = 0;
    for (const int mine : ranks_) {
      double to = 0, from = 0, back = 0;
      for (int peer = 0; peer < plan_.num_ranks(); ++peer) {
        if (peer == mine) continue;
        if (plan_.sees(peer, mine)) to += key_bytes(mine);
        if (!plan_.sees(mine, peer)) continue;
        from += key_bytes(peer);
        back += gradient_bytes(peer);
      }
      sent = std::max(sent, to), received = std::max(received, from), sent_back = std::max(sent_back, back);
      compute = std::max(compute, compute_us(plan_.gathered_pieces(mine), true));
    }
    add(c, {.what = "keys and values sent to every rank that sees them"}, std::max(sent, received), true);
    add(c, {.what = "products with all these keys", .compute_us = compute}, 0);
    if (p_.is_backward) add(c, {.what = "sums of dk and dv sent to their owners"}, sent_back, true);
    double all = 0;
    for (int owner = 0; owner < plan_.num_ranks(); ++owner) all += key_bytes(owner);
    const double gradients = p_.is_backward ? sent_back * 3 : 0;
    c.memory_bytes = static_cast<std::int64_t>(2 * all + gradients);
    if (all > machine_.most_gathered) {
      c.lack = fmt::format("{:.0f} MiB of keys and values, but automatic gathers at most {:.0f}", all / kMiB,
                           machine_.most_gathered / kMiB);
    }
    return finished(c);
  }

  [[nodiscard]] RingCandidate all_to_all() const {
    RingCandidate c = candidate(RingAlgorithm::kAllToAll);
    if (const auto lack = heads_lack(p_, plan_.num_ranks())) {
      c.lack = *lack;
      return c;
    }
    const auto [in, out] = most_bytes_of_heads();
    const double others = 1 - 1.0 / plan_.num_ranks();
    const double compute = compute_us(call_.heads_plan.pieces(0), false) / plan_.num_ranks();
    add(c,
        {.what = p_.is_backward ? "q, k, v, o and dout sent to the ranks that compute their heads"
                                : "q, k, v sent to the ranks that compute their heads"},
        in * others, true);
    add(c, {.what = "all rows and keys of a share of the heads", .compute_us = compute}, 0);
    add(c,
        {.what = p_.is_backward ? "dq, dk and dv sent back to the ranks of their rows"
                                : "o sent back to the ranks of its rows"},
        out * others, true);
    c.memory_bytes = static_cast<std::int64_t>(3 * (in + out));
    c.lack = lack_of_scores();
    const core::NamedTensors tensors(p_);
    const bool mixed = std::any_of(tensors.begin(), tensors.end(),
                                   [&](const core::NamedTensor& t) { return t.tensor->dtype != p_.q.dtype; });
    if (mixed && p_.q.device.type != DeviceType::kCPU)
      c.lack = "tensors of several dtypes, which kernels do not support";
    return finished(c);
  }

  /// @param between  estimate of the exchange between groups
  [[nodiscard]] RingCandidate two_level(const RingCandidate& between) const {
    RingCandidate c = candidate(RingAlgorithm::kTwoLevel);
    c.ranks_of_group = call_.groups.members;
    const auto [in, out] = most_bytes_of_heads();
    const double others = 1 - 1.0 / c.ranks_of_group;
    add(c, {.what = fmt::format("heads sent to the ranks that compute them, in groups of {}", c.ranks_of_group)},
        in * others, true);
    for (RingStep step : between.steps) {
      step.what = "between groups, " + step.what;
      c.sent_bytes += step.sent_bytes;
      c.estimated_us += step.compute_us + step.exposed_us;
      c.steps.push_back(std::move(step));
    }
    add(c,
        {.what = p_.is_backward ? "dq, dk and dv sent back to the ranks of their rows"
                                : "o sent back to the ranks of its rows"},
        out * others, true);
    c.memory_bytes = between.memory_bytes + static_cast<std::int64_t>(3 * (in + out));
    c.lack = lack_of_scores();
    return finished(c);
  }

 private:
  // Maximum number of ranks that the model evaluates. In a larger ring, it evaluates a sample of the ranks.
  static constexpr int kMostRanks = 32;

  [[nodiscard]] static RingCandidate candidate(RingAlgorithm algorithm) {
    RingCandidate c;
    c.algorithm = algorithm;
    return c;
  }

  /// @param merges  true if each piece also reads and writes accumulated rows, to merge its result into them
  [[nodiscard]] double compute_us(const std::vector<Piece>& pieces, bool merges) const {
    double pairs = 0, rows = 0;
    for (const Piece& piece : pieces) {
      const KeyRange band = piece.placement.window(piece.keys.length, p_.window_left, p_.window_right).unbounded_row(0);
      pairs += visible_pairs(piece.rows.length, piece.keys.length, band);
      rows += static_cast<double>(piece.rows.length);
    }
    const auto heads = static_cast<double>(batch_ * p_.num_heads_q);
    const double flops = pairs * heads * 2 * static_cast<double>(p_.head_dim + p_.head_dim_v);
    const double products = p_.is_backward ? 2.5 * flops / machine_.backward_flops : flops / machine_.forward_flops;
    const double merged = merges ? rows * heads * static_cast<double>(p_.head_dim_v) * 8 / machine_.memory_bytes : 0;
    return products + merged + static_cast<double>(pieces.size()) * machine_.piece_us;
  }

  [[nodiscard]] double row_bytes(int rank, std::int64_t columns, DType dtype) const {
    return static_cast<double>(num_rows(plan_.rows(rank)) * batch_ * p_.num_heads_q * columns * dtype_bytes(dtype));
  }
  /// Returns two sizes in bytes: that of the tensors which the rank distributes by heads, and that of the results which
  /// the rank receives.
  [[nodiscard]] std::pair<double, double> bytes_of_heads(int rank) const {
    const bool on_host = p_.q.device.type == DeviceType::kCPU;
    const auto result = [&](DType dtype) { return on_host ? call_.partial_dtype : dtype; };
    const double lse = p_.lse ? row_bytes(rank, 1, p_.lse->dtype) : 0;
    const double q = row_bytes(rank, p_.head_dim, p_.q.dtype), keys = key_bytes(rank);
    if (!p_.is_backward) {
      const double lse_back = on_host && p_.lse ? row_bytes(rank, 1, DType::kF64) : lse;
      return {q + keys, row_bytes(rank, p_.head_dim_v, result(p_.o.dtype)) + lse_back};
    }
    const double o = row_bytes(rank, p_.head_dim_v, p_.o.dtype);
    const double dlse = p_.dlse ? lse : 0;
    // On the host, the ranks send delta. On a GPU they send o and dlse, from which the receiver computes delta.
    const double delta = on_host ? row_bytes(rank, 1, call_.partial_dtype) : o + dlse;
    const double dq = row_bytes(rank, p_.head_dim, result(p_.dq.dtype));
    return {q + keys + row_bytes(rank, p_.head_dim_v, p_.dout.dtype) + lse + delta,
            dq + (on_host ? gradient_bytes(rank) : keys)};
  }
  [[nodiscard]] std::pair<double, double> most_bytes_of_heads() const {
    std::pair<double, double> most = {0, 0};
    for (const int rank : ranks_) {
      const auto [in, out] = bytes_of_heads(rank);
      most = {std::max(most.first, in), std::max(most.second, out)};
    }
    return most;
  }
  /// Returns the reason why kAutomatic does not choose an algorithm that distributes heads, or an empty string.
  [[nodiscard]] std::string lack_of_scores() const {
    return p_.bias || p_.mask ? "bias or mask would be sent too, which automatic avoids" : "";
  }
  [[nodiscard]] double key_bytes(int owner) const {
    const std::int64_t row = p_.head_dim * dtype_bytes(p_.k.dtype) + p_.head_dim_v * dtype_bytes(p_.v.dtype);
    return static_cast<double>(plan_.num_keys(owner) * batch_ * p_.num_heads_k * row);
  }
  [[nodiscard]] double gradient_bytes(int owner) const {
    const std::int64_t row = (p_.head_dim + p_.head_dim_v) * dtype_bytes(call_.partial_dtype);
    return static_cast<double>(plan_.num_keys(owner) * batch_ * p_.num_heads_k * row);
  }
  [[nodiscard]] double most(double (Model::*bytes)(int) const) const {
    double largest = 0;
    for (const int rank : ranks_) largest = std::max(largest, (this->*bytes)(rank));
    return largest;
  }

  /// @param alone  true if nothing is computed during the exchange; its full time then adds to the estimate
  void add(RingCandidate& c, RingStep step, double sent, bool alone = false) const {
    step.sent_bytes = static_cast<std::int64_t>(sent);
    step.exchange_us = sent > 0 ? machine_.link.latency_us + sent / machine_.link.bytes_per_us : 0;
    const bool hides = machine_.hides && !alone;
    step.exposed_us = hides ? std::max(0.0, step.exchange_us - step.compute_us) : step.exchange_us;
    c.sent_bytes += step.sent_bytes;
    c.estimated_us += step.compute_us + step.exposed_us;
    c.steps.push_back(std::move(step));
  }

  [[nodiscard]] static RingCandidate finished(RingCandidate c) {
    double exchange = 0, exposed = 0;
    for (const RingStep& s : c.steps) exchange += s.exchange_us, exposed += s.exposed_us;
    c.why = fmt::format("{:.1f} MiB sent in {:.0f} us, of which {:.0f} us are exposed, and {:.0f} us of products",
                        static_cast<double>(c.sent_bytes) / kMiB, exchange, exposed, c.estimated_us - exposed);
    return c;
  }

  const Call& call_;
  const Plan& plan_;
  const core::Problem& p_;
  Machine machine_;
  std::int64_t batch_ = 1;
  std::vector<int> ranks_;
};

/// Returns the estimate of the two-level algorithm with the best group size.
RingCandidate two_level(const Call& call) {
  RingCandidate best;
  best.algorithm = RingAlgorithm::kTwoLevel;
  best.lack = two_level_lack(call.problem, call.plan.num_ranks()).value_or("");
  if (!best.lack.empty()) return best;
  for (const int members : group_sizes(call.problem, call.plan.num_ranks())) {
    const Call grouped = in_groups(call, members);
    const Call between = call_between_groups(grouped);
    RingCandidate c = Model(grouped).two_level(Model(between).exchange());
    if (best.steps.empty() || c.estimated_us < best.estimated_us) best = std::move(c);
  }
  return best;
}

}  // namespace

double visible_pairs(std::int64_t m, std::int64_t n, KeyRange band) {
  const std::int64_t far = m + n;  // larger than the number of any key that a row can see
  const std::int64_t begin = std::max(band.begin, -far), end = std::min(band.end, far);
  // Sums min(n, end + i) - max(0, begin + i) over all rows i. It replaces max(0, x) by x - min(0, x).
  const double ends = sum_of_least(m, end, n);
  const double begins = sum_of_least(m, begin, n + far) - sum_of_least(m, begin, 0);
  return ends - begins;
}

std::vector<RingCandidate> candidates_of(const Call& call, RingAlgorithm asked) {
  const Model model(call);
  std::vector<RingCandidate> all = {model.exchange(), model.all_gather(), model.all_to_all(), two_level(call)};
  RingCandidate* best = nullptr;
  for (RingCandidate& c : all) {
    const bool takes_part = asked == RingAlgorithm::kAutomatic ? c.lack.empty() : c.algorithm == asked;
    if (takes_part && (best == nullptr || c.estimated_us < best->estimated_us)) best = &c;
  }
  best->chosen = true;
  return all;
}

RingCandidate chosen_candidate(const Call& call, RingAlgorithm asked) {
  const std::vector<RingCandidate> all = candidates_of(call, asked);
  return *std::find_if(all.begin(), all.end(), [](const RingCandidate& c) { return c.chosen; });
}

}  // namespace attend::ring
