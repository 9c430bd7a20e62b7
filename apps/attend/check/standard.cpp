#include "check/standard.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "core/merged_lse.hpp"
#include "cpu/function_rows.hpp"
#include "kernels/attention/score_transform.cuh"

namespace attend::cli {
namespace {

using core::Matrix;
using core::Problem;
using core::round_to;
using core::Sequence;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Rows of a head, converted to float32.
struct Rows {
  explicit Rows(const Matrix& m) : Rows(m.rows, m.cols) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) row(r)[c] = static_cast<float>(core::load(m, r, c));
    }
  }
  Rows(std::int64_t rows, std::int64_t columns) : cols(columns), values(static_cast<std::size_t>(rows * columns)) {}

  [[nodiscard]] float* row(std::int64_t r) { return values.data() + r * cols; }
  [[nodiscard]] const float* row(std::int64_t r) const { return values.data() + r * cols; }

  void store_to(const Matrix& m) const {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) core::store(m, r, c, row(r)[c]);
    }
  }

  std::int64_t cols;
  std::vector<float> values;
};

float dot(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float dot_of_magnitudes(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::abs(a[i] * b[i]);
  return sum;
}

void add_scaled(float* to, float factor, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

struct Score {
  float value;  // -inf if the key is masked
  float slope;  // derivative of the score transform, multiplied by that of the score function
  float slope_of_function = 1;
};

using Function = std::unique_ptr<cpu::FunctionRows>;  // null if there is no score function

Function function_of(const Problem& p, const Sequence& s, std::int64_t head) {
  return p.custom_score == nullptr ? nullptr : std::make_unique<cpu::FunctionRows>(p, s, head);
}

Score score_of(const Problem& p, const Sequence& s, std::int64_t head, const Function& function, std::int64_t i,
               std::int64_t j, float q_dot_k) {
  if (p.mask && core::load(*p.mask, s.batch, head, i, j) == 0) return {-kInfinity, 0};
  if (p.block_mask != nullptr && !p.seen_tiles(s, head).sees(i, j)) return {-kInfinity, 0};
  Score score = {static_cast<float>(p.scale) * q_dot_k, 1};
  if (p.transforms_scores()) {
    const auto [value, slope] = TransformedScore<float>::of(score.value, static_cast<float>(p.transform_cap));
    score = {value, slope};
  }
  if (p.bias) score.value += static_cast<float>(core::load(*p.bias, s.batch, head, i, j));
  if (p.alibi_slopes) {
    const auto slope = static_cast<float>(core::load(*p.alibi_slopes, s.index, head, 0, 0));
    score.value -= slope * static_cast<float>(std::abs(i + s.seqlen_k - s.seqlen_q - j));
  }
  if (function != nullptr) {
    function->apply(i, j, 1, &score.value, &score.slope_of_function);
    score.slope *= score.slope_of_function;
  }
  return score;
}

/// Returns 0 for a dropped entry and 1/(1-p) for a kept one.
float dropout_factor(const Problem& p, const DropMask& dropout, std::int64_t i, std::int64_t j) {
  if (p.dropout_p == 0) return 1;
  return dropout.keeps(i, j) ? static_cast<float>(1 / (1 - p.dropout_p)) : 0;
}

}  // namespace

void standard_forward_head(const Problem& p, const Sequence& s, std::int64_t head) {
  const std::int64_t key_head = head / p.heads_per_group();
  const Rows q(core::q_matrix(p.q, s, head));
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  const DropMask dropout = p.dropout(s, head);
  const Function function = function_of(p, s, head);
  Rows o(s.seqlen_q, p.head_dim_v);
  std::vector<float> row(static_cast<std::size_t>(s.seqlen_k));
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const KeyRange keys = p.window(s).row(i);
    float row_max = -kInfinity;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      row[j] = score_of(p, s, head, function, i, j, dot(q.row(i), k.row(j), p.head_dim)).value;
      row_max = std::max(row_max, row[j]);
    }
    float row_sum = 0;
    for (std::int64_t j = keys.begin; j < keys.end && row_max != -kInfinity; ++j) row_sum += std::exp(row[j] - row_max);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (row[j] == -kInfinity) continue;
      const float probability = std::exp(row[j] - row_max) / row_sum * dropout_factor(p, dropout, i, j);
      add_scaled(o.row(i), round_to(p.q.dtype, probability), v.row(j), p.head_dim_v);
    }
    float lse = row_max == -kInfinity ? -kInfinity : row_max + std::log(row_sum);
    if (p.sinks) {
      const core::MergedLse all = core::merge_lse(lse, core::load(*p.sinks, s.index, head, 0, 0));
      for (float* x = o.row(i); x != o.row(i) + p.head_dim_v; ++x) *x *= static_cast<float>(all.weight_a);
      lse = static_cast<float>(all.lse);
    }
    core::store(core::q_matrix(*p.lse, s, head), i, 0, lse);
  }
  o.store_to(core::q_matrix(p.o, s, head));
}

namespace {

/// Calls visit(i, j, p_ij, dropout factor, slope) for every visible entry of a query head. The slope is the derivative
/// of the score transform, multiplied by the derivative of the score function.
template <class Visit>
void for_each_probability(const Problem& p, const Sequence& s, std::int64_t head, const Rows& q, const Rows& k,
                          Visit visit) {
  const Rows lse(core::q_matrix(*p.lse, s, head));
  const DropMask dropout = p.dropout(s, head);
  const Function function = function_of(p, s, head);
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const KeyRange keys = p.window(s).row(i);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const Score score = score_of(p, s, head, function, i, j, dot(q.row(i), k.row(j), p.head_dim));
      if (score.value == -kInfinity) continue;
      visit(i, j, std::exp(score.value - *lse.row(i)), dropout_factor(p, dropout, i, j), score.slope);
    }
  }
}

Rows magnitudes(const Matrix& m) {
  Rows rows(m);
  for (float& x : rows.values) x = std::abs(x);
  return rows;
}

}  // namespace

void standard_backward_group(const Problem& p, const Sequence& s, std::int64_t key_head) {
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  Rows dk(s.seqlen_k, p.head_dim);
  Rows dv(s.seqlen_k, p.head_dim_v);
  for (std::int64_t in_group = 0; in_group < p.heads_per_group(); ++in_group) {
    const std::int64_t head = key_head * p.heads_per_group() + in_group;
    const Rows q(core::q_matrix(p.q, s, head));
    const Rows o(core::q_matrix(p.o, s, head));
    const Rows dout(core::q_matrix(p.dout, s, head));
    Rows dq(s.seqlen_q, p.head_dim);
    for_each_probability(p, s, head, q, k,
                         [&](std::int64_t i, std::int64_t j, float probability, float factor, float slope) {
                           const float delta = dot(dout.row(i), o.row(i), p.head_dim_v);
                           const float dp = factor * dot(dout.row(i), v.row(j), p.head_dim_v);
                           const float ds = round_to(p.q.dtype, probability * (dp - delta) * slope);
                           add_scaled(dv.row(j), round_to(p.q.dtype, factor * probability), dout.row(i), p.head_dim_v);
                           add_scaled(dq.row(i), static_cast<float>(p.scale) * ds, k.row(j), p.head_dim);
                           add_scaled(dk.row(j), static_cast<float>(p.scale) * ds, q.row(i), p.head_dim);
                         });
    dq.store_to(core::q_matrix(p.dq, s, head));
  }
  dk.store_to(core::k_matrix(p.dk, s, key_head));
  dv.store_to(core::k_matrix(p.dv, s, key_head));
}

namespace {

/// Returns the unit roundoff of a result that was computed in float32 and stored as `dtype`: half the relative distance
/// of neighbouring numbers.
float unit_roundoff(DType dtype) {
  const double least = core::dtype_traits(DType::kF32).unit_roundoff;
  return static_cast<float>(std::max(core::dtype_traits(dtype).unit_roundoff, least));
}

/// Returns sqrt(sum (a b)^2). This is the expected error of a dot product if the elements of one vector have
/// independent rounding errors.
float root_of_squares(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i] * a[i] * b[i];
  return std::sqrt(sum);
}

constexpr float kSum = 4 * 0x1p-24F;  // relative error of a sum in float32, for any order of additions
// Absolute error of a probability. Numbers below it can be flushed to 0.
constexpr float kLeast = std::numeric_limits<float>::min();

/// Returns e_ij, the relative error of exp(s_ij - lse_i). It follows from the possible error of s_ij - lse_i. The error
/// of s_ij is the rounding error of its sum of products. The error of lse_i is about as large.
float score_noise(const Problem& p, const float* q, const float* k, float slope) {
  constexpr float kMost = 1;  // upper limit, because the check would accept any p if the error were larger
  float sum = 0;
  for (std::int64_t c = 0; c < p.head_dim; ++c) sum += std::abs(q[c] * k[c]);
  return std::expm1(std::min(kMost, 2 * kSum * static_cast<float>(std::abs(p.scale)) * std::abs(slope) * sum));
}

/// Returns sum_j p_ij e_ij for every row of a head.
std::vector<float> mean_score_noise(const Problem& p, const Sequence& s, std::int64_t head, const Rows& q,
                                    const Rows& k) {
  std::vector<float> mean(static_cast<std::size_t>(s.seqlen_q));
  for_each_probability(p, s, head, q, k,
                       [&](std::int64_t i, std::int64_t j, float probability, float /*factor*/, float slope) {
                         mean[i] += std::min(1.0F, probability) * score_noise(p, q.row(i), k.row(j), slope);
                       });
  return mean;
}

/// Possible errors of ds_ij and z_ij. z_ij is the probability after dropout. The last two fields are the errors that
/// arise when ds_ij and z_ij are rounded to 16 bits for the matrix products. The other fields are the errors of
/// computing ds_ij and z_ij.
struct EntryNoise {
  float ds_behind_slope;  // error of the gradient with respect to the score after the transform and the function
  float ds, z;
  float rounding_of_ds, rounding_of_z;
};

/// Calls visit(i, j, EntryNoise) for every visible entry of a query head.
template <class Visit>
void for_each_noise(const Problem& p, const Sequence& s, std::int64_t head, Visit visit) {
  const std::int64_t key_head = head / p.heads_per_group();
  const Rows q(core::q_matrix(p.q, s, head));
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  const Rows o(core::q_matrix(p.o, s, head));
  const Rows dout(core::q_matrix(p.dout, s, head));
  const std::vector<float> mean = mean_score_noise(p, s, head, q, k);
  const float unit = unit_roundoff(p.o.dtype);
  for_each_probability(p, s, head, q, k, [&](std::int64_t i, std::int64_t j, float value, float factor, float slope) {
    const float probability = std::min(1.0F, value);
    const float terms = factor * dot_of_magnitudes(dout.row(i), v.row(j), p.head_dim_v) +
                        dot_of_magnitudes(dout.row(i), o.row(i), p.head_dim_v);
    const float difference =
        factor * dot(dout.row(i), v.row(j), p.head_dim_v) - dot(dout.row(i), o.row(i), p.head_dim_v);
    const float rounded_o = unit * root_of_squares(dout.row(i), o.row(i), p.head_dim_v);
    // p_ij is the softmax of the scores of row i. The derivative of p_ij with respect to s_ij is p_ij (1 - p_ij). The
    // derivative with respect to the score s_il of another key l is -p_ij p_il.
    const float own = score_noise(p, q.row(i), k.row(j), slope);
    const float relative = kSum + (1 - probability) * own + std::max(0.0F, mean[i] - probability * own);
    const float of_score = probability * (relative * terms + rounded_o) + kLeast * terms;
    visit(i, j,
          EntryNoise{.ds_behind_slope = of_score,
                     .ds = std::abs(slope) * of_score,
                     .z = factor * (relative * probability + kLeast),
                     .rounding_of_ds = unit * probability * std::abs(slope * difference),
                     .rounding_of_z = unit * factor * probability});
  });
}

/// Sums the noise for several rows. Correlated errors are added. For independent rounding errors, the squares are
/// added, because the errors partly cancel.
class NoiseSums {
 public:
  NoiseSums(std::int64_t rows, std::int64_t cols) : sums_(rows, cols), squares_(rows, cols) {}

  /// Adds noise * |x| and rounding * |x| to the two sums of row r.
  void add(std::int64_t r, float noise, float rounding, const float* x) {
    for (std::int64_t c = 0; c < sums_.cols; ++c) {
      const float magnitude = std::abs(x[c]);
      sums_.row(r)[c] += noise * magnitude;
      squares_.row(r)[c] += rounding * magnitude * rounding * magnitude;
    }
  }

  void store_to(const Matrix& m) const {
    Rows all = sums_;
    for (std::size_t at = 0; at < all.values.size(); ++at) all.values[at] += std::sqrt(squares_.values[at]);
    all.store_to(m);
  }

 private:
  Rows sums_, squares_;
};

}  // namespace

void output_noise_head(const Problem& p, const Sequence& s, std::int64_t head) {
  const std::int64_t key_head = head / p.heads_per_group();
  const Rows q(core::q_matrix(p.q, s, head));
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  const Rows o(core::q_matrix(p.o, s, head));
  Rows noise(s.seqlen_q, p.head_dim_v);
  for_each_probability(p, s, head, q, k, [&](std::int64_t i, std::int64_t j, float value, float factor, float slope) {
    const float n = std::min(1.0F, value) * score_noise(p, q.row(i), k.row(j), slope);
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
      noise.row(i)[c] += n * std::abs(factor * v.row(j)[c] - o.row(i)[c]);
    }
  });
  noise.store_to(core::q_matrix(p.o, s, head));
}

void gradient_noise_group(const Problem& p, const Sequence& s, std::int64_t key_head) {
  const Rows k(core::k_matrix(p.k, s, key_head));
  const auto scale = static_cast<float>(std::abs(p.scale));
  NoiseSums dk(s.seqlen_k, p.head_dim);
  NoiseSums dv(s.seqlen_k, p.head_dim_v);
  for (std::int64_t in_group = 0; in_group < p.heads_per_group(); ++in_group) {
    const std::int64_t head = key_head * p.heads_per_group() + in_group;
    const Rows q(core::q_matrix(p.q, s, head));
    const Rows dout(core::q_matrix(p.dout, s, head));
    NoiseSums dq(s.seqlen_q, p.head_dim);
    for_each_noise(p, s, head, [&](std::int64_t i, std::int64_t j, const EntryNoise& noise) {
      dv.add(j, noise.z, noise.rounding_of_z, dout.row(i));
      dq.add(i, scale * noise.ds, scale * noise.rounding_of_ds, k.row(j));
      dk.add(j, scale * noise.ds, scale * noise.rounding_of_ds, q.row(i));
    });
    dq.store_to(core::q_matrix(p.dq, s, head));
  }
  dk.store_to(core::k_matrix(p.dk, s, key_head));
  dv.store_to(core::k_matrix(p.dv, s, key_head));
}

namespace {

void dbias_noise(const Problem& p) {
  const Tensor& dbias = *p.dbias;
  for (std::int64_t i = 0; i < dbias.numel(); ++i) core::store(dbias.data, dbias.dtype, i, 0.0);
  const Shape at = contiguous_strides(dbias.shape);
  const auto index = [&](std::size_t d, std::int64_t i) { return dbias.shape[d] == 1 ? 0 : i * at[d]; };
  for (std::int64_t batch = 0; batch < p.num_sequences; ++batch) {
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
      for_each_noise(p, p.sequence(batch), head, [&](std::int64_t i, std::int64_t j, const EntryNoise& noise) {
        const std::int64_t to = index(0, batch) + index(1, head) + index(2, i) + index(3, j);
        core::store(dbias.data, dbias.dtype, to, core::load(dbias.data, dbias.dtype, to) + noise.ds);
      });
    }
  }
}

/// Computes the possible error of dsinks. dsinks is the sum of exp(sink - lse) (dlse - <dout, o>) over the rows. The
/// error is caused by the rounding of o, of lse and of the sums.
void dsinks_noise(const Problem& p) {
  const Tensor& dsinks = *p.dsinks;
  const auto least = static_cast<float>(core::dtype_traits(p.o.dtype).smallest_normal);
  std::vector<double> sums(static_cast<std::size_t>(dsinks.numel()));
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const Sequence s = p.sequence(index);
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
      const double sink = core::load(*p.sinks, s.index, head, 0, 0);
      Rows o = magnitudes(core::q_matrix(p.o, s, head));
      // Numbers below the smallest normal number have the same absolute rounding error as that number.
      for (float& x : o.values) x = std::max(x, least);
      const Rows dout = magnitudes(core::q_matrix(p.dout, s, head));
      double& sum = sums[(dsinks.shape[0] == 1 ? 0 : index) * p.num_heads_q + head];
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        const double lse = core::load(core::q_matrix(*p.lse, s, head), i, 0);
        const double relative = unit_roundoff(p.o.dtype) + kSum * (1 + std::abs(lse));
        sum += std::exp(sink - lse) * relative * dot(dout.row(i), o.row(i), p.head_dim_v);
      }
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    core::store(dsinks.data, dsinks.dtype, static_cast<std::int64_t>(i), sums[i]);
  }
}

}  // namespace

void score_gradient_noise(const Problem& p, const Sequence& s, std::int64_t head,
                          const std::function<void(std::int64_t i, std::int64_t j, float noise)>& visit) {
  for_each_noise(p, s, head, [&](std::int64_t i, std::int64_t j, const EntryNoise& noise) {
    visit(i, j, noise.ds_behind_slope + noise.rounding_of_ds);
  });
}

void option_noise(const Problem& p) {
  if (p.dbias) dbias_noise(p);
  if (p.dsinks) dsinks_noise(p);
}

}  // namespace attend::cli
