// Computes the gradients of a bias and of sinks for the reference.
#include <cmath>
#include <optional>
#include <vector>

#include "cpu/reference.hpp"
#include "cpu/reference_rows.hpp"

namespace attend::cpu {

using namespace reference;

void reference_dbias(const Problem& p) {
  const Tensor& dbias = *p.dbias;
  std::vector<double> sums(static_cast<std::size_t>(dbias.numel()));
  const Shape at = contiguous_strides(dbias.shape);
  const auto index = [&](std::size_t d, std::int64_t i) { return dbias.shape[d] == 1 ? 0 : i * at[d]; };
  for (std::int64_t batch = 0; batch < p.num_sequences; ++batch) {
    const Sequence s = p.sequence(batch);
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
      const std::int64_t key_head = head / p.heads_per_group();
      const Rows q(core::q_matrix(p.q, s, head));
      const Rows k(core::k_matrix(p.k, s, key_head));
      const Rows v(core::k_matrix(p.v, s, key_head));
      const Rows dout(core::q_matrix(p.dout, s, head));
      for_each_score_gradient(p, s, head, q, k, v, dout, [&](std::int64_t i, std::int64_t j, const ScoreGradient& g) {
        sums[index(0, batch) + index(1, head) + index(2, i) + j] += g.ds;
      });
    }
  }
  for (std::int64_t b = 0; b < dbias.shape[0]; ++b) {
    for (std::int64_t h = 0; h < dbias.shape[1]; ++h) {
      for (std::int64_t i = 0; i < dbias.shape[2]; ++i) {
        for (std::int64_t j = 0; j < dbias.shape[3]; ++j) {
          core::store(dbias, b, h, i, j, sums[b * at[0] + h * at[1] + i * at[2] + j]);
        }
      }
    }
  }
}

namespace {

/// Computes dsink of one query head over the rows of a sequence.
class SinkGradient {
 public:
  SinkGradient(const Problem& p, const Sequence& s, std::int64_t head)
      : p_(p),
        s_(s),
        head_(head),
        sink_(core::load(*p.sinks, s.index, head, 0, 0)),
        dout_(core::q_matrix(p.dout, s, head)),
        o_(core::q_matrix(p.o, s, head)) {}

  [[nodiscard]] double sum() {
    if (sink_ == -kInfinity) return 0.0;
    double sum = 0;
    for (std::int64_t i = 0; i < s_.seqlen_q; ++i) sum += of_row(i);
    return sum;
  }

 private:
  [[nodiscard]] double of_row(std::int64_t i) {
    const double dlse = p_.dlse ? core::load(core::q_matrix(*p_.dlse, s_, head_), i, 0) : 0.0;
    const double lse = core::load(core::q_matrix(*p_.lse, s_, head_), i, 0);
    // If the row sees no key, o = 0 for any dout, and lse = sink.
    const bool may_be_alone = static_cast<float>(lse) == static_cast<float>(sink_);
    double delta = 0;
    for (std::int64_t c = 0; c < p_.head_dim_v; ++c) {
      const double o = o_.row(i)[c];
      if (o != 0 || !may_be_alone) delta += dout_.row(i)[c] * o;
    }
    const LogOfSum sum = log_of_sum(i, lse);
    return exponential(sink_ - lse - sum.top - sum.log_sum) * (dlse - delta);
  }

  /// Returns the correction of the normalisation of p that the backward pass uses. Few rows need the correction. It
  /// matters only if |lse| is large, and exp(sink - lse) is then usually 0.
  [[nodiscard]] LogOfSum log_of_sum(std::int64_t i, double lse) {
    if (!(std::abs(lse) >= kCoarseLse) || exponential(sink_ - lse) == 0) return {};
    if (!q_) {
      q_.emplace(core::q_matrix(p_.q, s_, head_));
      k_.emplace(core::k_matrix(p_.k, s_, head_ / p_.heads_per_group()));
    }
    const Scores scores(p_, s_, head_);
    return RowScores(p_, scores, *q_, *k_, i).log_of_sum(sink_, lse);
  }

  const Problem& p_;
  const Sequence& s_;
  std::int64_t head_;
  double sink_;
  Rows dout_, o_;
  std::optional<Rows> q_, k_;
};

/// Runs one task for each head of each sequence. It takes little time compared with the other gradients.
void reference_dsinks(const Problem& p) {
  constexpr std::int64_t kElementsWorthThreads = 1 << 18;
  std::vector<double> parts(static_cast<std::size_t>(p.num_sequences * p.num_heads_q));
  parallel_for(p.num_sequences * p.num_heads_q, p.o.numel() < kElementsWorthThreads ? 1 : max_threads(),
               [&](std::int64_t task) {
                 const Sequence s = p.sequence(task / p.num_heads_q);
                 parts[task] = SinkGradient(p, s, task % p.num_heads_q).sum();
               });
  const std::int64_t entries = p.dsinks->shape[0] * p.num_heads_q;
  std::vector<double> sums(static_cast<std::size_t>(entries));
  for (std::size_t task = 0; task < parts.size(); ++task) sums[task % sums.size()] += parts[task];
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    core::store(*p.dsinks, entry / p.num_heads_q, entry % p.num_heads_q, 0, 0, sums[entry]);
  }
}

}  // namespace

void reference_option_gradient(const Problem& p, const core::ScoreTensor& row) {
  if (row.mod == ScoreMod::kBias) reference_dbias(p);
  if (row.mod == ScoreMod::kSinks) reference_dsinks(p);
}

void reference_option_gradients(const Problem& p) {
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (row.gradient != nullptr && p.*row.gradient_tensor) reference_option_gradient(p, row);
  }
}

}  // namespace attend::cpu
