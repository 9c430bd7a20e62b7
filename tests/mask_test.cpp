// Tests masks exhaustively: every seqlen_q and seqlen_k up to 9, and every distinct window. Compares them with a
// boolean formula.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "kernels/attention/key_range.cuh"
#include "support/dense_oracle.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kMaxLength = 9;

struct MaskCase {
  std::int64_t seqlen_q, seqlen_k, left, right;
  bool causal;
  [[nodiscard]] bool visible(std::int64_t i, std::int64_t j) const {
    return visible_by_rule(causal, left, right, seqlen_q, seqlen_k, i, j);
  }
};

/// Calls `visit` for every mask. Windows wider than the sum of the lengths are left out, because a narrower window has
/// the same effect.
template <class Visit>
void for_each_mask(Visit visit) {
  for (std::int64_t q = 0; q <= kMaxLength; ++q) {
    for (std::int64_t k = 0; k <= kMaxLength; ++k) {
      for (std::int64_t left = -1; left <= kMaxLength + 1; ++left) {
        for (std::int64_t right = -1; right <= kMaxLength + 1; ++right) {
          for (const bool causal : {false, true}) visit(MaskCase{q, k, left, right, causal});
        }
      }
    }
  }
}

std::string text(const MaskCase& m) {
  return describe({.seqlen_q = m.seqlen_q,
                   .seqlen_k = m.seqlen_k,
                   .causal = m.causal,
                   .window_left = m.left,
                   .window_right = m.right});
}

TEST(WindowMask, RowIsTheRule) {
  for_each_mask([](const MaskCase& m) {
    const WindowMask mask = {m.seqlen_q, m.seqlen_k, m.left, m.causal ? 0 : m.right};
    for (std::int64_t i = 0; i < m.seqlen_q; ++i) {
      const KeyRange keys = mask.row(i);
      for (std::int64_t j = 0; j < m.seqlen_k; ++j)
        ASSERT_EQ(keys.contains(j), m.visible(i, j)) << text(m) << " " << i << "," << j;
      ASSERT_TRUE(keys.empty() || (keys.begin >= 0 && keys.end <= m.seqlen_k)) << text(m);
    }
  });
}

TEST(WindowMask, RowsOfKeyIsTheTranspose) {
  for_each_mask([](const MaskCase& m) {
    const WindowMask mask = {m.seqlen_q, m.seqlen_k, m.left, m.causal ? 0 : m.right};
    for (std::int64_t j = 0; j < m.seqlen_k; ++j) {
      const KeyRange rows = mask.rows_of_key(j);
      for (std::int64_t i = 0; i < m.seqlen_q; ++i)
        ASSERT_EQ(rows.contains(i), m.visible(i, j)) << text(m) << " " << i << "," << j;
      ASSERT_TRUE(rows.empty() || (rows.begin >= 0 && rows.end <= m.seqlen_q)) << text(m);
    }
  });
}

TEST(WindowMask, RowsCoversEachRowOfATileAndNoKeyOutsideTheirSpan) {
  for_each_mask([](const MaskCase& m) {
    const WindowMask mask = {m.seqlen_q, m.seqlen_k, m.left, m.causal ? 0 : m.right};
    for (std::int64_t begin = 0; begin < m.seqlen_q; ++begin) {
      for (std::int64_t end = begin + 1; end <= m.seqlen_q; ++end) {
        const KeyRange tile = mask.rows(begin, end);
        std::int64_t first = m.seqlen_k, last = -1;
        for (std::int64_t i = begin; i < end; ++i) {
          for (std::int64_t j = 0; j < m.seqlen_k; ++j) {
            if (!m.visible(i, j)) continue;
            ASSERT_TRUE(tile.contains(j)) << text(m) << " rows " << begin << ".." << end << " key " << j;
            first = std::min(first, j);
            last = std::max(last, j);
          }
        }
        if (last < 0) continue;  // no row sees a key, so every range is right
        ASSERT_TRUE(tile.begin == first && tile.end == last + 1) << text(m);
      }
    }
  });
}

TEST(WindowMask, RowsOfKeysCoversEachKeyOfATileAndNoRowOutsideTheirSpan) {
  for_each_mask([](const MaskCase& m) {
    const WindowMask mask = {m.seqlen_q, m.seqlen_k, m.left, m.causal ? 0 : m.right};
    for (std::int64_t begin = 0; begin < m.seqlen_k; ++begin) {
      for (std::int64_t end = begin + 1; end <= m.seqlen_k; ++end) {
        const KeyRange tile = mask.rows_of_keys(begin, end);
        std::int64_t first = m.seqlen_q, last = -1;
        for (std::int64_t i = 0; i < m.seqlen_q; ++i) {
          for (std::int64_t j = begin; j < end; ++j) {
            if (!m.visible(i, j)) continue;
            ASSERT_TRUE(tile.contains(i)) << text(m) << " keys " << begin << ".." << end << " row " << i;
            first = std::min(first, i);
            last = std::max(last, i);
          }
        }
        if (last < 0) continue;  // no row sees the key, so every range is right
        ASSERT_TRUE(tile.begin == first && tile.end == last + 1) << text(m);
      }
    }
  });
}

TEST(WindowMask, IsOpenOnlyWithoutAWindow) {
  EXPECT_TRUE((WindowMask{5, 5, -1, -1}.is_open()));
  EXPECT_FALSE((WindowMask{5, 5, -1, 0}.is_open()));
  EXPECT_FALSE((WindowMask{5, 5, 0, -1}.is_open()));
}

/// Inputs that make the mask visible in the outputs. Queries are 0, so every visible key has the same p. v is the
/// identity matrix, so o[i, j] is the p of row i and key j.
struct Probe {
  Probe(const MaskCase& m, DType dtype)
      : q(dtype, {1, 1, m.seqlen_q, 1}),
        k(dtype, {1, 1, m.seqlen_k, 1}),
        v(dtype, {1, 1, m.seqlen_k, kMaxLength}),
        o(dtype, {1, 1, m.seqlen_q, kMaxLength}),
        lse(DType::kF32, {1, 1, m.seqlen_q, 1}),
        dout(dtype, {1, 1, m.seqlen_q, kMaxLength}),
        dq(dtype, q.shape()),
        dk(dtype, k.shape()),
        dv(dtype, v.shape()) {
    q.fill(0);
    k.fill(1);
    const auto identity = [](auto, auto, auto row, auto col) { return row == col ? 1.0 : 0.0; };
    v.generate(identity);
    dout.generate(identity);
  }
  void run(const Params& params) const {
    forward(q.view(), k.view(), v.view(), o.view(), &lse.view(), params);
    backward(dout.view(), q.view(), k.view(), v.view(), o.view(), lse.view(), dq.view(), dk.view(), dv.view(), params);
  }
  TensorBuffer q, k, v, o, lse, dout, dq, dk, dv;
};

class MaskThroughBackend : public testing::TestWithParam<std::tuple<const char*, DType>> {};

// o[i] shows which keys row i sees, and dv[j] shows which rows see key j.
TEST_P(MaskThroughBackend, P03_IsTheRuleForEveryLengthAndWindow) {
  const auto [compute, dtype] = GetParam();
  for_each_mask([&, compute = compute, dtype = dtype](const MaskCase& m) {
    if (testing::Test::HasFailure()) return;  // stops after the first mask that fails
    SCOPED_TRACE(text(m));
    const Probe probe(m, dtype);
    probe.run({.causal = m.causal, .window_left = m.left, .window_right = m.right, .compute = compute});
    for (std::int64_t i = 0; i < m.seqlen_q; ++i) {
      double count = 0;
      for (std::int64_t j = 0; j < m.seqlen_k; ++j) count += m.visible(i, j) ? 1 : 0;
      const double lse = probe.lse.at(0, 0, i, 0);
      ASSERT_TRUE(count == 0 ? lse == -INFINITY : std::abs(lse - std::log(count)) <= kLseAbsolute) << i << ": " << lse;
      for (std::int64_t j = 0; j < m.seqlen_k; ++j) {
        const double weight = m.visible(i, j) ? 1 / count : 0;
        ASSERT_NEAR(probe.o.at(0, 0, i, j), weight, weight * property_tolerance(dtype)) << "o " << i << "," << j;
        ASSERT_NEAR(probe.dv.at(0, 0, j, i), weight, weight * property_tolerance(dtype)) << "dv " << i << "," << j;
      }
    }
    for (const double x : probe.dq.values()) ASSERT_TRUE(std::isfinite(x));
    for (const double x : probe.dk.values()) ASSERT_EQ(x, 0) << "q is 0";
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MaskThroughBackend,
                         testing::Values(std::tuple{"cpu", DType::kF32}, std::tuple{"cpu", DType::kBF16},
                                         std::tuple{"cpu", DType::kF16}, std::tuple{"reference", DType::kF32}),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + dtype_name(std::get<1>(test.param));
                         });

struct Equivalents {
  std::int64_t seqlen_q, seqlen_k;
  DType dtype;
};

// The causal option, window(-1, 0), window(seqlen, 0) and an equal mask tensor must make the same pairs visible.
TEST(CausalInThreeWays, P03_GivesTheSameResult) {
  for (const Equivalents& e : {Equivalents{9, 9, DType::kF32},
                               {70, 130, DType::kF32},
                               {130, 70, DType::kF32},
                               {200, 200, DType::kF16},
                               {129, 257, DType::kBF16}}) {
    AttentionCase c = {.dtype = e.dtype,
                       .batch = 2,
                       .heads_q = 4,
                       .heads_k = 2,
                       .seqlen_q = e.seqlen_q,
                       .seqlen_k = e.seqlen_k,
                       .head_dim = 24,
                       .head_dim_v = 24,
                       .causal = true,
                       .seed = 9};
    SCOPED_TRACE(describe(c));
    const Inputs causal = make_inputs(c);
    Inputs window = causal, wide = causal, tensor = causal;
    window.options.causal = wide.options.causal = tensor.options.causal = false;
    window.options.window_right = wide.options.window_right = 0;
    wide.options.window_left = e.seqlen_k + e.seqlen_q;
    tensor.mask = TensorBuffer(DType::kBool, {1, 1, e.seqlen_q, e.seqlen_k});
    tensor.mask->generate([&](auto, auto, auto i, auto j) { return j <= i + e.seqlen_k - e.seqlen_q ? 1.0 : 0.0; });
    const Outputs want = run(causal, "cpu");
    expect_same_bits(run(window, "cpu"), want);
    expect_same_bits(run(wide, "cpu"), want);
    expect_near(run(tensor, "cpu"), want,
                // The mask tensor makes the backend visit other tiles, so sums have another order.
                property_tolerance(e.dtype));
  }
}

}  // namespace
}  // namespace attend::test
