// Tests block masks. Compares the pairs that each tile sees, and attention with the mask, with a boolean formula.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "core/block_tiles.hpp"
#include "mask/masked_run.hpp"
#include "support/option_cases.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

constexpr BlockMaskShape kShapes[] = {
    {2, 3, 150, 277}, {1, 1, 64, 128}, {1, 2, 300, 63}, {3, 1, 1, 129}, {1, 1, 65, 1}};

class EveryMask : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] static const MaskRecipe& recipe() { return mask_cookbook()[GetParam()]; }
};

INSTANTIATE_TEST_SUITE_P(Cookbook, EveryMask, testing::Range<std::size_t>(0, mask_cookbook().size()));

/// Returns the number of pairs in a tile that the formula makes visible.
Index pairs_of_tile(const MaskSizes& s, const MaskRecipe& recipe, Index b, Index h, Index row, Index key) {
  Index pairs = 0;
  for (Index q = row; q < std::min(row + BlockMask::kTile, s.shape.seqlen_q); ++q) {
    for (Index k = key; k < std::min(key + BlockMask::kTile, s.shape.seqlen_k); ++k)
      pairs += recipe.sees(s, b, h, q, k);
  }
  return pairs;
}

TEST_P(EveryMask, SeesWhatTheRuleSays) {
  for (const BlockMaskShape& shape : kShapes) {
    const MaskSizes sizes = mask_sizes(shape);
    const std::vector<CaptureBuffer> captures = recipe().captures(sizes);
    const BlockMask mask = make_block_mask(function_of(recipe(), captures), shape);
    const BlockMaskShape own = mask.shape();
    ASSERT_EQ(own.seqlen_q, shape.seqlen_q);
    ASSERT_EQ(own.seqlen_k, shape.seqlen_k);
    for (Index b = 0; b < shape.batch; ++b) {
      for (Index h = 0; h < shape.num_heads; ++h) {
        for (Index q = 0; q < shape.seqlen_q; ++q) {
          for (Index k = 0; k < shape.seqlen_k; ++k) {
            ASSERT_EQ(mask.sees(own.batch == 1 ? 0 : b, own.num_heads == 1 ? 0 : h, q, k),
                      recipe().sees(sizes, b, h, q, k))
                << recipe().name << " " << b << " " << h << " " << q << " " << k;
          }
        }
      }
    }
    BlockMask::Tiles wanted = {};
    Index all_pairs = 0;
    for (Index b = 0; b < own.batch; ++b) {
      for (Index h = 0; h < own.num_heads; ++h) {
        for (Index q = 0; q < shape.seqlen_q; q += BlockMask::kTile) {
          for (Index k = 0; k < shape.seqlen_k; k += BlockMask::kTile) {
            const Index pairs = pairs_of_tile(sizes, recipe(), b, h, q, k);
            const Index most =
                std::min(BlockMask::kTile, shape.seqlen_q - q) * std::min(BlockMask::kTile, shape.seqlen_k - k);
            ++wanted.all;
            wanted.full += pairs == most;
            wanted.partial += pairs > 0 && pairs < most;
            all_pairs += pairs;
          }
        }
      }
    }
    const BlockMask::Tiles tiles = mask.tiles();
    EXPECT_EQ(tiles.all, wanted.all) << recipe().name;
    EXPECT_EQ(tiles.full, wanted.full) << recipe().name;
    EXPECT_EQ(tiles.partial, wanted.partial) << recipe().name;
    const std::vector<core::TilePattern>& patterns = mask.state()->patterns;
    EXPECT_EQ(std::set<core::TilePattern>(patterns.begin(), patterns.end()).size(), tiles.patterns);
    EXPECT_DOUBLE_EQ(mask.density(),
                     static_cast<double>(all_pairs) /
                         static_cast<double>(own.batch * own.num_heads * shape.seqlen_q * shape.seqlen_k));
  }
}

/// Returns the inputs of the case with the mask as a boolean tensor, with one bool per score.
Inputs with_bools(const AttentionCase& c, const MaskSizes& sizes, const MaskRecipe& recipe) {
  AttentionCase masked = c;
  masked.mask = Broadcast{};
  const Inputs in = make_inputs(masked);
  const Inputs own = make_inputs(c);
  in.mask->generate([&](Index b, Index h, Index q, Index k) {
    return recipe.sees(sizes, b, h, q, k) && (!own.mask || own.mask->at(c.mask->batch ? b : 0, c.mask->heads ? h : 0,
                                                                        c.mask->rows ? q : 0, k) != 0)
               ? 1.0
               : 0.0;
  });
  const auto copy = [](const std::optional<TensorBuffer>& to, const std::optional<TensorBuffer>& from) {
    if (to) to->generate([&](Index b, Index h, Index row, Index col) { return from->at(b, h, row, col); });
  };
  copy(in.dlse, own.dlse), copy(in.slopes, own.slopes), copy(in.sinks, own.sinks);
  return in;
}

struct Named {
  const char* name;
  const TensorBuffer* got;
  const TensorBuffer* truth;
  double budget;
};

void expect_near(const Named& n) {
  const std::vector<double> a = n.got->values(), b = n.truth->values();
  ASSERT_EQ(a.size(), b.size());
  double largest = 1e-3;
  for (const double x : b) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0.0);
  const double error = largest_difference(a, b);  // if the error is NaN, the next check fails
  EXPECT_LE(error, n.budget * largest) << n.name;
  std::printf(" %s %.1e/%.1e", n.name, error, n.budget * largest);
}

void check(const AttentionCase& c, const MaskRecipe& recipe) {
  SCOPED_TRACE(recipe.name + " " + describe(c));
  const MaskSizes sizes = mask_sizes({c.batch, c.heads_q, c.seqlen_q, c.seqlen_k});
  const std::vector<CaptureBuffer> captures = recipe.captures(sizes);
  const BlockMask mask = make_block_mask(function_of(recipe, captures), sizes.shape);
  const Inputs in = make_inputs(c);
  const Outputs truth = run(as_f64(with_bools(c, sizes, recipe)), "reference");
  const bool is_f32 = c.dtype == DType::kF32;
  const double results = is_f32                    ? 1e-5
                         : c.dtype == DType::kBF16 ? 0x1p-7
                                                   : 0x1p-10,
               gradients = is_f32 ? 2e-5 : 4 * results;
  for (const char* compute : {"cpu", "reference"}) {
    const Inputs given = std::string(compute) == "cpu" ? make_inputs(c) : as_f64(make_inputs(c));
    const Outputs got = run_with(&mask, given, compute);
    std::printf("%s %s:", compute, describe(c).c_str());
    expect_near({"o", &got.o, &truth.o, results});
    expect_near({"lse", &got.lse, &truth.lse, 4e-6});
    expect_near({"dq", &got.dq, &truth.dq, gradients});
    expect_near({"dk", &got.dk, &truth.dk, gradients});
    expect_near({"dv", &got.dv, &truth.dv, gradients});
    if (got.dbias) expect_near({"dbias", &*got.dbias, &*truth.dbias, gradients});
    if (got.dsinks) expect_near({"dsinks", &*got.dsinks, &*truth.dsinks, gradients});
    std::printf("\n");
  }
}

TEST_P(EveryMask, AttentionIsThatOfBools) {
  const AttentionCase base = {.batch = 2,
                              .heads_q = 4,
                              .heads_k = 2,
                              .seqlen_q = 190,
                              .seqlen_k = 277,
                              .head_dim = 24,
                              .head_dim_v = 40,
                              .dlse = true,
                              .seed = 7};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionCase c = base;
    c.dtype = dtype;
    check(c, recipe());
    if (dtype != DType::kF32) continue;
    c.seqlen_q = 300, c.seqlen_k = 130, c.window_left = 90, c.window_right = 40, c.sinks = true;
    check(c, recipe());
  }
}

TEST(BlockMasks, ComposeWithOptions) {
  int checked = 0;
  for (const AttentionCase& c : option_cases(DType::kF32)) {
    if (c.packed()) continue;
    check(c, mask_cookbook()[4]);
    check(c, mask_cookbook()[13]);
    ++checked;
  }
  EXPECT_GE(checked, 20);
}

TEST(BlockMasks, ComposeWithAScoreFunction) {
  const AttentionCase c = {
      .batch = 2, .heads_q = 2, .heads_k = 1, .seqlen_q = 150, .seqlen_k = 277, .head_dim = 16, .head_dim_v = 16};
  const MaskRecipe& recipe = mask_cookbook()[2];
  const MaskSizes sizes = mask_sizes({c.batch, c.heads_q, c.seqlen_q, c.seqlen_k});
  const BlockMask mask = make_block_mask(function_of(recipe, {}), sizes.shape);
  const Inputs in = make_inputs(c);
  std::vector<double> table(277, 0.5), gradients[2];
  for (const bool by_mask : {false, true}) {
    const CaptureBuffer captured("table", DType::kF32, {277}, table), gradient("table", DType::kF32, {277}, table);
    const std::string function = "table[k] * tanh(score)";
    const ScoreFunction score(by_mask ? function : recipe.text + " ? " + function + " : -inf", {captured.capture()});
    const Outputs out = make_outputs(in);
    ForwardCall call = forward_of(in, out, "cpu");
    call.params.score = &score;
    if (by_mask) call.params.block_mask = &mask;
    forward(call);
    BackwardCall back = backward_of(in, out, "cpu");
    back.params = call.params;
    const ConstStridedTensor view = gradient.capture().tensor;
    back.captures = {{"table", {const_cast<void*>(view.data), view.dtype, view.shape, view.stride}}};
    backward(back);
    for (const TensorBuffer* t : {&out.o, &out.dq, &out.dk, &out.dv}) {
      const std::vector<double> values = t->values();
      gradients[by_mask].insert(gradients[by_mask].end(), values.begin(), values.end());
    }
    const std::vector<double> of_table = gradient.values();
    gradients[by_mask].insert(gradients[by_mask].end(), of_table.begin(), of_table.end());
  }
  for (std::size_t n = 0; n < gradients[0].size(); ++n) ASSERT_NEAR(gradients[0][n], gradients[1][n], 2e-5) << n;
}

/// Some keys are NaN, and some rows do not see them. The outputs of these rows must not change.
TEST(BlockMasks, NaNReachesOnlyTheRowsThatSeeIt) {
  const AttentionCase c = {
      .batch = 1, .heads_q = 1, .heads_k = 1, .seqlen_q = 200, .seqlen_k = 200, .head_dim = 16, .head_dim_v = 16};
  const BlockMask mask = make_block_mask(MaskFunction("k != 70 || q % 3 == 0"), {1, 1, 200, 200});
  const Inputs in = make_inputs(c), clean = make_inputs(c);
  in.v.generate([&](Index b, Index h, Index row, Index col) { return row == 70 ? NAN : clean.v.at(b, h, row, col); });
  for (const char* compute : {"cpu", "reference"}) {
    const Outputs got = run_with(&mask, in, compute), wanted = run_with(&mask, clean, compute);
    for (Index row = 0; row < 200; ++row) {
      for (Index col = 0; col < 16; ++col) {
        const double o = got.o.at(0, 0, row, col);
        if (row % 3 == 0) {
          ASSERT_TRUE(std::isnan(o));
        } else {
          ASSERT_NEAR(o, wanted.o.at(0, 0, row, col), 1e-6);
        }
      }
    }
  }
}

/// The keys that no row sees are NaN. No output may change, not even the gradients of these keys.
TEST(BlockMasks, NaNThatNoRowSeesReachesNothing) {
  const AttentionCase c = {
      .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 150, .seqlen_k = 277, .head_dim = 16, .head_dim_v = 16};
  const MaskFunction function("k % 64 != 5 && k <= q + 100 && q % 7 != 3");
  const BlockMask mask = make_block_mask(function, {1, 1, c.seqlen_q, c.seqlen_k});
  const Inputs in = make_inputs(c), clean = make_inputs(c);
  const auto poison = [](const TensorBuffer& t, const TensorBuffer& from) {
    t.generate([&](Index b, Index h, Index row, Index col) { return row % 64 == 5 ? NAN : from.at(b, h, row, col); });
  };
  poison(in.k, clean.k), poison(in.v, clean.v);
  for (const char* compute : {"cpu", "reference"}) {
    const Outputs got = run_with(&mask, in, compute), wanted = run_with(&mask, clean, compute);
    for (Index h = 0; h < 2; ++h) {
      for (Index row = 0; row < c.seqlen_q; ++row) {
        const bool is_blind = row % 7 == 3;
        for (Index col = 0; col < 16; ++col) {
          ASSERT_NEAR(got.o.at(0, h, row, col), wanted.o.at(0, h, row, col), 1e-6);
          ASSERT_NEAR(got.dq.at(0, h, row, col), wanted.dq.at(0, h, row, col), 1e-5);
          if (!is_blind) continue;
          ASSERT_EQ(got.o.at(0, h, row, col), 0);
          ASSERT_EQ(got.dq.at(0, h, row, col), 0);
        }
        ASSERT_EQ(got.lse.at(0, h, row, 0) == -INFINITY, is_blind);
      }
      for (Index key = 0; key < c.seqlen_k; ++key) {
        for (Index col = 0; col < 16; ++col) {
          ASSERT_NEAR(got.dk.at(0, h, key, col), wanted.dk.at(0, h, key, col), 1e-5);
          if (key % 64 == 5) {
            ASSERT_EQ(got.dv.at(0, h, key, col), 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
