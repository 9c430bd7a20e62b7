// Appends to a cache: writes each new row of k and v to its place in the cache, and each query row to q_out.
//
// A row x of k is first normalised to x / sqrt(mean(x^2) + eps) * weight, and then rotated according to its position.
// Finally it is converted to the dtype of the cache. An 8-bit cache stores x / descale. Rows of v are only converted.
//
// A row that needs no arithmetic is copied. In the arithmetic, each product and each sum is rounded separately, and
// squares are added in the same order on every SIMD target. Therefore all SIMD targets give the same bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/serving/append.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "cpu/kernels.hpp"
#include "cpu/pack-inl.hpp"
#include "cpu/parallel.hpp"
#include "cpu/serving/decode_backends.hpp"
#include "cpu/serving/quantized-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

using core::AppendProblem;
using core::CachedSequence;
using core::CachePlace;

constexpr int kMaxColumns = core::kMaxDecodeHeadDim;
static_assert(kMaxColumns % 16 == 0, "whole padded rows");

/// Loads the first row of a matrix of any float type (a rotary table or weights) as floats. Fills it with zeros up to
/// padded(m.cols).
void load_numbers(const Matrix& m, float* to) {
  if (m.dtype == DType::kF64) {
    std::fill_n(to, padded(m.cols), 0.0F);
    for (std::int64_t c = 0; c < m.cols; ++c) to[c] = static_cast<float>(core::load(m, 0, c));
  } else {
    pack_rows(m, 0, 1, to);
  }
}

/// Computes x / sqrt(mean(x^2) + eps) * weight in place, for a row that is padded with zeros.
void normalise(float* HWY_RESTRICT row, std::int64_t cols, const float* HWY_RESTRICT weight, float eps) {
  constexpr int kSums = 16;  // number of partial sums, the same on every SIMD target
  Vector of_lanes[kSums / kLanes];
  for (Vector& sum : of_lanes) sum = hn::Zero(kFloats);
  for (std::int64_t c = 0; c < cols; c += kSums) {
    for (int n = 0; n < kSums / kLanes; ++n) {
      const Vector x = hn::Load(kFloats, row + c + n * kLanes);
      of_lanes[n] = hn::Add(of_lanes[n], hn::Mul(x, x));
    }
  }
  HWY_ALIGN float sums[kSums];
  for (int n = 0; n < kSums / kLanes; ++n) hn::Store(of_lanes[n], kFloats, sums + n * kLanes);
  for (int width = kSums / 2; width > 0; width /= 2) {
    for (int n = 0; n < width; ++n) sums[n] += sums[n + width];
  }
  const Vector factor = hn::Set(kFloats, 1.0F / std::sqrt(sums[0] / static_cast<float>(cols) + eps));
  for (std::int64_t c = 0; c < padded(cols); c += kLanes) {
    const Vector x = hn::Mul(hn::Load(kFloats, row + c), factor);
    hn::Store(hn::Mul(x, hn::Load(kFloats, weight + c)), kFloats, row + c);
  }
}

/// Cosines and sines of the rotation at one position.
struct Turn {
  HWY_ALIGN float cos[kMaxColumns / 2];
  HWY_ALIGN float sin[kMaxColumns / 2];
};

/// Rotates `half` pairs of elements: (x[c], x[half + c]).
void rotate_halves(float* HWY_RESTRICT x, std::int64_t half, const Turn& turn) {
  std::int64_t c = 0;
  for (; c + kLanes <= half; c += kLanes) {
    const Vector a = hn::LoadU(kFloats, x + c), b = hn::LoadU(kFloats, x + half + c);
    const Vector cos = hn::Load(kFloats, turn.cos + c), sin = hn::Load(kFloats, turn.sin + c);
    hn::StoreU(hn::Sub(hn::Mul(a, cos), hn::Mul(b, sin)), kFloats, x + c);
    hn::StoreU(hn::Add(hn::Mul(b, cos), hn::Mul(a, sin)), kFloats, x + half + c);
  }
  for (; c < half; ++c) {
    const float a = x[c], b = x[half + c];
    x[c] = a * turn.cos[c] - b * turn.sin[c];
    x[half + c] = b * turn.cos[c] + a * turn.sin[c];
  }
}

/// Rotates `half` pairs of elements: (x[2c], x[2c + 1]).
void rotate_neighbours(float* HWY_RESTRICT x, std::int64_t half, const Turn& turn) {
  std::int64_t c = 0;
  for (; c + kLanes <= half; c += kLanes) {
    Vector a, b;
    hn::LoadInterleaved2(kFloats, x + 2 * c, a, b);
    const Vector cos = hn::Load(kFloats, turn.cos + c), sin = hn::Load(kFloats, turn.sin + c);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, cos), hn::Mul(b, sin)), hn::Add(hn::Mul(b, cos), hn::Mul(a, sin)), kFloats,
                          x + 2 * c);
  }
  for (; c < half; ++c) {
    const float a = x[2 * c], b = x[2 * c + 1];
    x[2 * c] = a * turn.cos[c] - b * turn.sin[c];
    x[2 * c + 1] = b * turn.cos[c] + a * turn.sin[c];
  }
}

/// Stores a row in the dtype of `to`. `descale` is the scale factor of an 8-bit cache.
void store(const Matrix& to, const float* row, float descale) {
  if (core::is_quantized(to.dtype)) {
    store_quantized(to, row, descale);
  } else {
    (void)store_row(to, 0, row, 1.0F);
  }
}

/// Normalises and rotates the rows of k or of q.
class RowMath {
 public:
  RowMath(const AppendProblem& p, const std::optional<Tensor>& norm) : p_(p), normalises_(norm.has_value()) {
    if (normalises_) load_numbers({norm->data, norm->dtype, 1, norm->shape[3], norm->shape[3]}, weight_);
  }

  /// Sets the position of the next rows. Positions outside the tables are clamped.
  void set_position(std::int64_t position) {
    if (!p_.rotary) return;
    const std::int64_t at = std::clamp<std::int64_t>(position, 0, p_.max_positions() - 1);
    load_numbers(table_row(p_.rotary->cos, at), turn_.cos);
    load_numbers(table_row(p_.rotary->sin, at), turn_.sin);
  }

  /// Writes one row. `descale` is the scale factor of an 8-bit cache.
  void write(const Matrix& from, const Matrix& to, float descale = 1.0F) {
    if (!normalises_ && !p_.rotary && from.dtype == to.dtype) {
      // If q_out is q, the copy would change nothing.
      std::memmove(to.data, from.data, static_cast<std::size_t>(from.cols * dtype_bytes(from.dtype)));
      return;
    }
    pack_rows(from, 0, 1, row_);
    if (normalises_) normalise(row_, from.cols, weight_, p_.norm_eps);
    if (p_.rotary) rotate();
    store(to, row_, descale);
  }

 private:
  static Matrix table_row(const ConstTensor& table, std::int64_t at) {
    const Tensor t = core::input_view(table);
    return {core::element(t, 0, 0, at), t.dtype, 1, t.shape[3], t.stride[2]};
  }
  void rotate() {
    float* x = row_ + p_.rotary->first_column;
    const std::int64_t half = p_.rotary_dim() / 2;
    if (p_.rotary->interleaved) {
      rotate_neighbours(x, half, turn_);
    } else {
      rotate_halves(x, half, turn_);
    }
  }

  const AppendProblem& p_;
  bool normalises_;
  HWY_ALIGN float weight_[kMaxColumns];
  HWY_ALIGN float row_[kMaxColumns];
  Turn turn_;
};

/// Writes a row of k or v, converted to the dtype of the cache.
void write_value(const Matrix& from, const Matrix& to, float descale) {
  if (from.dtype == to.dtype) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(from.cols * dtype_bytes(from.dtype)));
    return;
  }
  HWY_ALIGN float row[kMaxColumns];
  pack_rows(from, 0, 1, row);
  store(to, row, descale);
}

Matrix cache_row(const Tensor& cache, const CachePlace& at, std::int64_t head) {
  return {core::element(cache, at.block, head, at.row), cache.dtype, 1, cache.shape[3], cache.stride[2]};
}

float factor_of(const core::Descale& descale, std::int64_t sequence, std::int64_t head, const CachePlace& at) {
  return descale.data == nullptr ? 1.0F : *descale.of(sequence, head, at);
}

/// Calls visit() for each token of `tokens`, except tokens of dead sequences. The arguments of visit() are the token,
/// its sequence, the state of the sequence in the cache, and the number of the token's row in the sequence.
template <class Visit>
void for_each_token(const AppendProblem& p, const core::SequenceRows& rows, KeyRange tokens, Visit visit) {
  for (std::int64_t token = tokens.begin; token < tokens.end;) {
    const std::int64_t s = rows.sequence_of(token);
    const std::int64_t end = std::min(tokens.end, rows.begin(s + 1));
    const CachedSequence in_cache = p.sequence(s);
    if (!in_cache.dead) {
      for (; token < end; ++token) visit(token, s, in_cache, token - rows.begin(s));
    }
    token = end;
  }
}

void run_append_new(const AppendProblem& p, KeyRange tokens) {
  RowMath math(p, p.k_norm);
  const auto visit = [&](std::int64_t token, std::int64_t s, const CachedSequence& in_cache, std::int64_t i) {
    const CachePlace at = p.destination(in_cache, s, i);
    if (at.block < 0) return;
    math.set_position(p.position(in_cache, s, i));
    for (std::int64_t head = 0; head < p.k.shape[1]; ++head) {
      math.write(p.new_rows.row(p.k, head, token), cache_row(p.k_cache, at, head), factor_of(p.k_descale, s, head, at));
    }
    if (!p.v) return;
    for (std::int64_t head = 0; head < p.v->shape[1]; ++head) {
      write_value(p.new_rows.row(*p.v, head, token), cache_row(*p.v_cache, at, head),
                  factor_of(p.v_descale, s, head, at));
    }
  };
  for_each_token(p, p.new_rows, tokens, visit);
}

void run_append_queries(const AppendProblem& p, KeyRange tokens) {
  RowMath math(p, p.q_norm);
  const auto visit = [&](std::int64_t token, std::int64_t s, const CachedSequence& in_cache, std::int64_t i) {
    if (p.rotary) math.set_position(p.position(in_cache, s, p.new_row_of_query(s, i)));
    for (std::int64_t head = 0; head < p.q->shape[1]; ++head) {
      math.write(p.q_rows.row(*p.q, head, token), p.q_rows.row(*p.q_out, head, token));
    }
  };
  for_each_token(p, p.q_rows, tokens, visit);
}

}  // namespace

void append_new_target(const AppendProblem& p, KeyRange tokens) {
  run_append_new(p, tokens);
}

void append_queries_target(const AppendProblem& p, KeyRange tokens) {
  run_append_queries(p, tokens);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {
namespace {

HWY_EXPORT(append_new_target);
HWY_EXPORT(append_queries_target);

std::int64_t token_bytes(const Tensor& t) {
  return t.shape[1] * t.shape[3] * dtype_bytes(t.dtype);
}

/// Splits all tokens into ranges and calls work() for each range. Uses several threads if one thread would take more
/// than about 150 us. The estimate assumes that a row with arithmetic takes four times as long as a row that is only
/// copied.
template <class Work>
void for_tokens(std::int64_t count, std::int64_t bytes_of_token, bool computes, Work work) {
  constexpr std::int64_t kBytesOfTask = 1 << 16;
  const std::int64_t bytes_worth_threads = computes ? 1 << 20 : 1 << 22;
  const std::int64_t bytes = std::max<std::int64_t>(bytes_of_token, 1);
  const std::int64_t step = std::max<std::int64_t>(1, kBytesOfTask / bytes);
  const bool is_small = count < ceil_div(bytes_worth_threads, bytes);
  parallel_for(ceil_div(count, step), is_small ? 1 : max_threads(), [&](std::int64_t task) {
    work(KeyRange{task * step, std::min(count, (task + 1) * step)});
  });
}

}  // namespace

void append(const core::AppendProblem& p) {
  choose_simd_target();
  if (p.k.shape[1] > 0) {
    const std::int64_t bytes = token_bytes(p.k) + (p.v ? token_bytes(*p.v) : 0);
    const bool rounds = core::is_quantized(p.k_cache.dtype) || (p.v_cache && core::is_quantized(p.v_cache->dtype));
    const bool computes = p.rotary || p.k_norm || rounds;
    for_tokens(p.new_rows.count(), bytes, computes, [&](KeyRange tokens) {
      HWY_DYNAMIC_DISPATCH(append_new_target)(p, tokens);
    });
  }
  if (p.q && p.q->shape[1] > 0) {
    for_tokens(p.q_rows.count(), token_bytes(*p.q), p.rotary || p.q_norm, [&](KeyRange tokens) {
      HWY_DYNAMIC_DISPATCH(append_queries_target)(p, tokens);
    });
  }
}

}  // namespace attend::cpu
#endif
