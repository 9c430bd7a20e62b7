// Attention as the formula says it, in float64, one row at a time: the truth that every other backend is held against.
//
//   s_ij = f(scale <q_i, k_j>) + bias_ij - slope |i + off - j|     masked keys are not visited at all
//   L_i = log(sum_j exp(s_ij) + exp(sink)),  p_ij = exp(s_ij - L_i),  z_ij = dropout(p)_ij,  o_i = sum_j z_ij v_j
// Backward of a loss with gradients do and dL (Dao, FlashAttention-2 (2023), section 2.2, with dL added):
//   dv_j = sum_i z_ij do_i,  dp_ij = dropout(<do_i, v_j>),  ds_ij = p_ij (dp_ij - <do_i, o_i> + dL_i)
//   dsink = sum_i exp(sink - L_i) (dL_i - <do_i, o_i>)
//   dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i      (ds times the derivative of f, a transform)
#include "cpu/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/elements.hpp"
#include "core/merged_lse.hpp"
#include "cpu/backends.hpp"
#include "cpu/parallel.hpp"
#include "kernels/attention/coarse_lse.cuh"
#include "kernels/attention/score_transform.cuh"

namespace attend::cpu {
namespace {

using core::Matrix;
using core::Problem;
using core::Sequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A head's rows as float64.
class Rows {
 public:
  explicit Rows(const Matrix& m) : cols_(m.cols), values_(static_cast<std::size_t>(m.rows * m.cols)) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      if (m.dtype == DType::kF32) {  // the loop that the compiler makes vectors of
        const float* from = static_cast<const float*>(m.data) + r * m.row_stride;
        std::copy_n(from, m.cols, row(r));
      } else {
        for (std::int64_t c = 0; c < m.cols; ++c) row(r)[c] = core::load(m, r, c);
      }
    }
  }
  Rows(std::int64_t rows, std::int64_t cols) : cols_(cols), values_(static_cast<std::size_t>(rows * cols)) {}

  [[nodiscard]] double* row(std::int64_t r) { return values_.data() + r * cols_; }
  [[nodiscard]] const double* row(std::int64_t r) const { return values_.data() + r * cols_; }

  void store_to(const Matrix& m) const {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) core::store(m, r, c, row(r)[c]);
    }
  }

 private:
  std::int64_t cols_;
  std::vector<double> values_;
};

// The reference redoes what holds NaN or infinities, so that its speed matters: its two loops are compiled for wider
// vectors too, and the processor's are taken.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define ATTEND_WIDE_LOOPS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ATTEND_WIDE_LOOPS
#endif

ATTEND_WIDE_LOOPS double dot(const double* a, const double* b, std::int64_t n) {
  constexpr std::int64_t kSums = 16;  // side by side: each addition would wait for the one before it
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (std::int64_t s = 0; s < kSums; ++s) sums[s] += a[i + s] * b[i + s];
  }
  for (; i < n; ++i) sums[i % kSums] += a[i] * b[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

ATTEND_WIDE_LOOPS void add_scaled(double* to, double factor, const double* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// Rows that are sums of scaled rows. NaN times anything is NaN: such a row is only marked.
class RowSums {
 public:
  RowSums(std::int64_t rows, std::int64_t cols) : cols_(cols), sums_(rows, cols), is_nan_(rows) {}

  /// Row r += factor * x.
  void add(std::int64_t r, double factor, const double* x) {
    if (std::isnan(factor)) {
      is_nan_[r] = true;
    } else if (!is_nan_[r]) {
      add_scaled(sums_.row(r), factor, x, cols_);
    }
  }

  [[nodiscard]] const Rows& result() {
    for (std::size_t r = 0; r < is_nan_.size(); ++r) {
      if (is_nan_[r]) std::fill_n(sums_.row(static_cast<std::int64_t>(r)), cols_, kNaN);
    }
    return sums_;
  }

 private:
  std::int64_t cols_;
  Rows sums_;
  std::vector<bool> is_nan_;
};

/// exp(x). The library's takes long over what underflows, and over NaN.
double exponential(double x) {
  constexpr double kUnderflow = -750;
  return x < kUnderflow ? 0.0 : std::isnan(x) ? x : std::exp(x);
}

/// One entry of the score matrix and how it came about.
struct Score {
  double value;  // s_ij
  double slope;  // d s_ij / d (scale <q_i, k_j>)
};

/// The scores of one query head of one sequence.
class Scores {
 public:
  Scores(const Problem& p, const Sequence& s, std::int64_t head)
      : p_(p), s_(s), head_(head), window_(p.window(s)), dropout_(p.dropout(s, head)) {}

  [[nodiscard]] KeyRange keys(std::int64_t i) const { return window_.row(i); }

  /// Whether the row does not see the key, whatever their product is.
  [[nodiscard]] bool masked(std::int64_t i, std::int64_t j) const {
    if (p_.bias && core::load(*p_.bias, s_.batch, head_, i, j) == -kInfinity) return true;
    return p_.mask && core::load(*p_.mask, s_.batch, head_, i, j) == 0;
  }

  [[nodiscard]] Score at(std::int64_t i, std::int64_t j, double q_dot_k) const {
    Score score = {p_.scale * q_dot_k, 1.0};
    if (p_.transforms_scores()) {
      const auto [value, slope] = TransformedScore<double>::of(score.value, p_.transform_cap);
      score = {value, slope};
    }
    if (p_.bias) score.value += core::load(*p_.bias, s_.batch, head_, i, j);
    if (p_.alibi_slopes) {
      const double slope = core::load(*p_.alibi_slopes, s_.index, head_, 0, 0);
      score.value -= slope * std::abs(static_cast<double>(p_.distance(s_, i, j)));
    }
    return score;
  }

  /// 0 for a dropped entry, 1/(1-p) for a kept one.
  [[nodiscard]] double dropout_factor(std::int64_t i, std::int64_t j) const {
    if (p_.dropout_p == 0) return 1.0;
    return dropout_.keeps(p_.row_position(i), p_.key_position(j)) ? 1.0 / (1.0 - p_.dropout_p) : 0.0;
  }

 private:
  const Problem& p_;
  const Sequence s_;
  std::int64_t head_;
  WindowMask window_;
  DropMask dropout_;
};

/// Log of sum_j exp(s_ij - lse_i) + exp(sink - lse_i) of a row. It is 0 for an exact lse; next to a large score that
/// all keys have, lse has lost what their number adds to it. sink: -inf if there is none. score_at(j): the row's score,
/// -inf if masked. The result is 0 as well if the rounding of lse does not explain the sum: lse is then that of other
/// keys too.
template <class ScoreAt>
double log_of_sum(const KeyRange& range, double sink, double lse, DType lse_dtype, ScoreAt score_at) {
  if (!(std::abs(lse) >= kCoarseLse)) return 0.0;
  double top = sink - lse;
  for (std::int64_t j = range.begin; j < range.end; ++j) top = std::max(top, score_at(j) - lse);
  double sum = exponential(sink - lse - top);  // relative to the largest: a large lse may be off by more than exp bears
  for (std::int64_t j = range.begin; j < range.end; ++j) sum += exponential(score_at(j) - lse - top);
  const double largest_rounding = lse_dtype == DType::kF64 ? 0x1p-51 : kLargestLseError;
  const double log_sum = top + std::log(sum);
  return std::abs(log_sum) <= largest_rounding * std::abs(lse) ? log_sum : 0.0;
}

/// ds_ij (before the derivative of a transform) of every visited entry of one query head, in order of i, then j.
/// visit(i, j, z_ij, ds_ij, slope).
template <class Visit>
void for_each_score_gradient(const Problem& p, const Sequence& s, std::int64_t head, const Rows& q, const Rows& k,
                             const Rows& v, const Rows& dout, Visit visit) {
  const Scores scores(p, s, head);
  const Rows o(core::q_matrix(p.o, s, head));
  const Rows lse(core::q_matrix(*p.lse, s, head));
  const double sink = p.sinks ? core::load(*p.sinks, s.index, head, 0, 0) : -kInfinity;
  InterruptPoint interrupt;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const double lse_i = *lse.row(i);
    if (lse_i == -kInfinity) continue;  // the row saw no key
    const double dlse_i = p.dlse ? core::load(core::q_matrix(*p.dlse, s, head), i, 0) : 0.0;
    const double delta = p.delta() != nullptr ? core::load(core::q_matrix(*p.delta(), s, head), i, 0)
                                              : dot(dout.row(i), o.row(i), p.head_dim_v) - dlse_i;
    // Every product of the row is NaN then.
    const bool has_nan = std::any_of(q.row(i), q.row(i) + p.head_dim, [](double x) { return std::isnan(x); });
    const KeyRange range = scores.keys(i);
    const auto score_at = [&](std::int64_t j) {
      if (scores.masked(i, j)) return Score{-kInfinity, 1.0};
      return scores.at(i, j, has_nan ? kNaN : dot(q.row(i), k.row(j), p.head_dim));
    };
    const double log_sum = p.placement() != nullptr ? 0.0
                                                    : log_of_sum(range, sink, lse_i, p.lse->dtype,
                                                                 [&](std::int64_t j) { return score_at(j).value; });
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      const Score score = score_at(j);
      if (score.value == -kInfinity) continue;
      const double p_ij = exponential(score.value - lse_i - log_sum);
      const double factor = scores.dropout_factor(i, j);
      const bool reads_v = factor != 0 && !std::isnan(p_ij);
      const double dp_ij = reads_v ? factor * dot(dout.row(i), v.row(j), p.head_dim_v) : 0.0;
      // A dropped entry reads no value and gives dv nothing, also where p_ij is NaN.
      visit(i, j, factor == 0 ? 0.0 : factor * p_ij, p_ij * (dp_ij - delta), score.slope);
    }
    interrupt.after(range.end - range.begin);
  }
}

void forward(const Problem& p, Stream /*stream*/) {
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const Sequence s = p.sequence(index);
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) reference_forward_rows(p, s, head, 0, s.seqlen_q);
  }
}

void backward(const Problem& p, Stream /*stream*/) {
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    for (std::int64_t head = 0; head < p.num_heads_k; ++head) reference_backward_group(p, p.sequence(index), head);
  }
  reference_option_gradients(p);
}

std::optional<std::string> unsupported(const Problem& p) {
  return core::custom_score_lack(p, "reference");
}

}  // namespace

void reference_forward_rows(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row_begin,
                            std::int64_t row_end) {
  const std::int64_t key_head = head / p.heads_per_group();
  const Scores scores(p, s, head);
  const Rows q(core::q_matrix(p.q, s, head));
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  const Matrix o_out = core::q_matrix(p.o, s, head);
  std::vector<double> o(static_cast<std::size_t>(p.head_dim_v));
  std::vector<double> row(static_cast<std::size_t>(s.seqlen_k));
  InterruptPoint interrupt;
  for (std::int64_t i = row_begin; i < row_end; ++i) {
    const KeyRange range = scores.keys(i);
    std::fill(o.begin(), o.end(), 0.0);
    double row_max = -kInfinity;
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      row[j] = scores.masked(i, j) ? -kInfinity : scores.at(i, j, dot(q.row(i), k.row(j), p.head_dim)).value;
      if (!(row[j] <= row_max)) row_max = row[j];  // NaN is taken as the maximum, so that it reaches the row
      if (std::isnan(row_max)) break;
    }
    double row_sum = 0;
    for (std::int64_t j = range.begin; j < range.end && !std::isnan(row_max); ++j) {
      if (row[j] == -kInfinity) continue;
      const double unscaled = exponential(row[j] - row_max);
      row_sum += unscaled;
      const double factor = scores.dropout_factor(i, j);
      if (factor != 0) add_scaled(o.data(), factor * unscaled, v.row(j), p.head_dim_v);
    }
    const bool saw_no_key = row_max == -kInfinity;
    const double lse_of_keys = saw_no_key ? -kInfinity : row_max + std::log(row_sum);
    double lse = lse_of_keys, share = 1;  // of the keys in the row's sum
    if (p.sinks) {
      const core::MergedLse all = core::merge_lse(lse_of_keys, core::load(*p.sinks, s.index, head, 0, 0));
      lse = all.lse;
      share = all.weight_a;
    }
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
      core::store(o_out, i, c, saw_no_key ? 0.0 : std::isnan(row_max) ? row_max : o[c] / row_sum * share);
    }
    if (p.lse) core::store(core::q_matrix(*p.lse, s, head), i, 0, lse);
    interrupt.after(range.end - range.begin);
  }
}

void reference_backward_group(const Problem& p, const Sequence& s, std::int64_t key_head) {
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  RowSums dk(s.seqlen_k, p.head_dim);
  RowSums dv(s.seqlen_k, p.head_dim_v);
  for (std::int64_t in_group = 0; in_group < p.heads_per_group(); ++in_group) {
    const std::int64_t head = key_head * p.heads_per_group() + in_group;
    const Rows q(core::q_matrix(p.q, s, head));
    const Rows dout(core::q_matrix(p.dout, s, head));
    RowSums dq(s.seqlen_q, p.head_dim);
    for_each_score_gradient(p, s, head, q, k, v, dout,
                            [&](std::int64_t i, std::int64_t j, double z, double ds, double slope) {
                              const double factor = p.scale * ds * slope;
                              if (z != 0) dv.add(j, z, dout.row(i));
                              dq.add(i, factor, k.row(j));
                              dk.add(j, factor, q.row(i));
                            });
    dq.result().store_to(core::q_matrix(p.dq, s, head));
  }
  dk.result().store_to(core::k_matrix(p.dk, s, key_head));
  dv.result().store_to(core::k_matrix(p.dv, s, key_head));
}

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
      for_each_score_gradient(p, s, head, q, k, v, dout,
                              [&](std::int64_t i, std::int64_t j, double, double ds, double) {
                                sums[index(0, batch) + index(1, head) + index(2, i) + j] += ds;
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

/// dsink of one query head over the rows of a sequence.
double dsink_of(const Problem& p, const Sequence& s, std::int64_t head) {
  const double sink = core::load(*p.sinks, s.index, head, 0, 0);
  if (sink == -kInfinity) return 0.0;
  const Rows dout(core::q_matrix(p.dout, s, head));
  const Rows o(core::q_matrix(p.o, s, head));
  double sum = 0;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const double dlse = p.dlse ? core::load(core::q_matrix(*p.dlse, s, head), i, 0) : 0.0;
    const double lse = core::load(core::q_matrix(*p.lse, s, head), i, 0);
    sum += exponential(sink - lse) * (dlse - dot(dout.row(i), o.row(i), p.head_dim_v));
  }
  return sum;
}

/// A task for each head of each sequence. Its work is little beside that of the other gradients.
void reference_dsinks(const Problem& p) {
  constexpr std::int64_t kElementsWorthThreads = 1 << 18;
  std::vector<double> parts(static_cast<std::size_t>(p.num_sequences * p.num_heads_q));
  parallel_for(
      p.num_sequences * p.num_heads_q, p.o.numel() < kElementsWorthThreads ? 1 : max_threads(),
      [&](std::int64_t task) { parts[task] = dsink_of(p, p.sequence(task / p.num_heads_q), task % p.num_heads_q); });
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

const core::Backend& reference_backend() {
  static const core::Backend kBackend = {.name = "reference",
                                         .description = "float64, one thread, the formula itself",
                                         .device = DeviceType::kCPU,
                                         .forward = forward,
                                         .backward = backward,
                                         .is_fallback = true,
                                         .unsupported = unsupported};
  return kBackend;
}

}  // namespace attend::cpu
