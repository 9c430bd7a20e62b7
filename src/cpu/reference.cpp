// Attention by its formula, in float64, one row at a time. Tests compare every other backend with it.
//
// In the formulas, i is a query row and j is a key that the row sees. Masked keys are not visited. f is the score
// transform, g is the custom function, L is lse, and off is seqlen_k - seqlen_q. Forward computes:
//
//   s_ij = g(f(scale <q_i, k_j>) + bias_ij - slope |i + off - j|)
//   L_i = log(sum_j exp(s_ij) + exp(sink))
//   p_ij = exp(s_ij - L_i)
//   z_ij = dropout(p)_ij
//   o_i = sum_j z_ij v_j
//
// Backward receives do and dL, the gradients of a loss with respect to o and L. f'_ij and g'_ij are the derivatives of
// f and g at the entry (i, j). Source: Dao, FlashAttention-2 (2023), section 2.2, to which dL is added. Backward
// computes:
//
//   dv_j = sum_i z_ij do_i
//   dp_ij = dropout(<do_i, v_j>)
//   ds_ij = p_ij (dp_ij - <do_i, o_i> + dL_i)
//   dsink = sum_i exp(sink - L_i) (dL_i - <do_i, o_i>)
//   dq_i = scale sum_j f'_ij g'_ij ds_ij k_j
//   dk_j = scale sum_i f'_ij g'_ij ds_ij q_i
#include "cpu/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dtype_traits.hpp"
#include "core/merged_lse.hpp"
#include "cpu/backends.hpp"
#include "cpu/reference_rows.hpp"

namespace attend::cpu {
namespace reference {

// The reference recomputes results with NaN or infinities for the `cpu` backend, so its speed matters. Its two inner
// loops are also compiled for wider vectors. The dynamic loader chooses the best version for the processor.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define ATTEND_WIDE_LOOPS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ATTEND_WIDE_LOOPS
#endif

ATTEND_WIDE_LOOPS double dot(const double* a, const double* b, std::int64_t n) {
  // The loop has several independent sums, because in a single sum each addition would wait for the previous one.
  constexpr std::int64_t kSums = 16;
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

static ATTEND_WIDE_LOOPS void add_scaled(double* to, double factor, const double* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

}  // namespace reference

namespace {

using namespace reference;

/// A matrix whose rows are sums of scaled rows. After a NaN has been added, a row stays NaN, so such a row is only
/// marked and needs no further additions.
class RowSums {
 public:
  RowSums(std::int64_t rows, std::int64_t cols) : cols_(cols), sums_(rows, cols), is_nan_(rows) {}

  /// Adds factor * x to row r.
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
  if (!p.captured_gradients.empty()) reference_captured_gradients(p);
}

std::optional<std::string> unsupported(const Problem& p) {
  if (!core::is_float(p.q.dtype)) {
    return fmt::format("q: dtype {}, compute 'reference' allows f32, f16, bf16, f64", dtype_name(p.q.dtype));
  }
  return core::custom_score_lack(p, "reference", /*runs_programs=*/true);
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
      if (!(row[j] <= row_max)) row_max = row[j];  // a NaN becomes the maximum, so that it reaches the row
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
    // `share` is the part of the row's sum that belongs to keys and not to the sink.
    double lse = lse_of_keys, share = 1;
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
    for_each_score_gradient(p, s, head, q, k, v, dout, [&](std::int64_t i, std::int64_t j, const ScoreGradient& g) {
      const double factor = p.scale * g.ds * g.slope;
      if (g.z != 0) dv.add(j, g.z, dout.row(i));
      dq.add(i, factor, k.row(j));
      dk.add(j, factor, q.row(i));
    });
    dq.result().store_to(core::q_matrix(p.dq, s, head));
  }
  dk.result().store_to(core::k_matrix(p.dk, s, key_head));
  dv.result().store_to(core::k_matrix(p.dv, s, key_head));
}

const core::Backend& reference_backend() {
  static const core::Backend kBackend = {.name = "reference",
                                         .description = "float64, one thread, directly by the formula",
                                         .device = DeviceType::kCPU,
                                         .forward = forward,
                                         .backward = backward,
                                         .is_fallback = true,
                                         .unsupported = unsupported};
  return kBackend;
}

}  // namespace attend::cpu
