// Tests which family `auto` picks, on a fake Hopper GPU and for device descriptions made by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "cuda/launch/family.hpp"
#include "cuda/made_up.hpp"
#include "dispatch/dispatch.hpp"

namespace attend::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const char* automatic(const MadeUp& made) {
  return dispatch::choose("auto", made.problem).name;
}

TEST(Choose, TakesTheNamesOfOtherProjects) {
  const MadeUp made(DType::kBF16, {.head_dim = 64, .head_dim_v = 64});
  EXPECT_STREQ(dispatch::choose("kernel_mma_swizzle", made.problem).name, "mma_swizzle");
  EXPECT_STREQ(dispatch::choose("kernel-mma-qreg-async", made.problem).name, "mma_qreg_async");
  EXPECT_THROW((void)dispatch::choose("kernel_mma_swizle", made.problem), Error);
}

TEST(Auto, TakesTheFamilyThatExpectsToBeDoneFirst) {
  const Sizes large = {.seqlen_q = 8192, .seqlen_k = 8192, .head_dim = 128, .head_dim_v = 128};
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, large)), "sm90_forward");
  EXPECT_STREQ(automatic(MadeUp(DType::kF32, large)), "sm90_f32_forward");
  EXPECT_STREQ(automatic(MadeUp(DType::kF32, large, {.softcap = 5})), "sm90_f32_forward");
  EXPECT_STREQ(automatic(MadeUp(DType::kF32, {.seqlen_q = 64, .seqlen_k = 64, .head_dim = 64, .head_dim_v = 64})),
               "fa2");
  EXPECT_STREQ(automatic(MadeUp(DType::kF32, large, {.dropout_p = 0.1})), "simt");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, large, {.softcap = 5})), "sm90_forward");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, large, {.softcap = 5}, false, 0, 2)), "sm80_forward");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, large, {}, true)), "sm90_backward");
  const Sizes wide = {.seqlen_q = 8192, .seqlen_k = 8192, .head_dim = 256, .head_dim_v = 192};
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, wide, {.causal = true}, true)), "sm90_backward");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, large, {.softcap = 5}, true)), "sm90_backward");
  const Sizes widest = {.seqlen_q = 8192, .seqlen_k = 8192, .head_dim = 512, .head_dim_v = 320};
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, widest, {.causal = true}, true)), "sm90_backward_panels");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, widest, {.softcap = 5}, true)), "simt");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, widest, {}, true, 0, 2)), "simt");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, large, {.softcap = 300}, true)), "sm80_backward");
  EXPECT_STREQ(automatic(MadeUp(DType::kF32, large, {}, true)), "fa2");
  EXPECT_STREQ(automatic(MadeUp(DType::kF32, large, {.deterministic = true}, true)), "simt");
}

/// For a boolean mask, Hopper's families first build lists of key tiles on the GPU.
TEST(Auto, BooleanMasksAreForHopper) {
  const Tensor mask = {.dtype = DType::kBool};
  for (const std::int64_t head_dim : {64, 128, 256}) {
    const Sizes sizes = {.seqlen_q = 8192, .seqlen_k = 8192, .head_dim = head_dim, .head_dim_v = head_dim};
    for (const bool backward : {false, true}) {
      const MadeUp made(DType::kBF16, sizes, {.causal = true, .mask = mask}, backward);
      const char* const name = backward ? "sm90_backward" : "sm90_forward";
      EXPECT_STREQ(automatic(made), name) << head_dim;
      const cuda::DeviceInfo gpu = device("sm_90a", 132);
      const cuda::Family& family = *cuda::find_family(name);
      const cuda::Choice choice = family.choose(made.problem, gpu);
      const std::vector<cuda::KernelSpec> specs = family.kernels(choice.variant, gpu.arch());
      EXPECT_EQ(specs.size(), choice.num_steps);
      EXPECT_EQ(specs[0].name, "sm90_mask_tiles");
      EXPECT_EQ(choice.steps[0].blocks, 128 * 16) << "a mask for all heads, in runs of 8 tiles";
      // Bytes of the mask with one bit per score. Backward kernels for more than 128 columns need a second copy of
      // these bits in another order.
      const std::int64_t bits = 8192 * 8192 / 8;
      const auto bytes = static_cast<std::int64_t>(family.workspace(made.problem, choice).regions().back().bytes);
      EXPECT_GT(bytes, bits);
      EXPECT_LT(bytes, (backward && head_dim > 128 ? 2 : 1) * bits + (1 << 20));
    }
  }
  const Params beside_bias = {.bias = Tensor{.dtype = DType::kBF16}, .mask = mask};
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, {}, beside_bias, true)), "sm80_backward");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, {}, beside_bias)), "sm90_forward");
}

TEST(Auto, FindsABackendForEveryBlockMask) {
  const BlockMask mask = make_block_mask(MaskFunction("k <= q || k < 5"), {1, 1, 1000, 1000});
  const Params masked = {.block_mask = &mask};
  for (const bool backward : {false, true}) {
    const auto made = [&](DType dtype, std::int64_t head_dim, const Params& params) {
      return MadeUp(dtype, {.head_dim = head_dim, .head_dim_v = head_dim}, params, backward);
    };
    EXPECT_STREQ(automatic(made(DType::kF32, 64, masked)), backward ? "simt" : "sm90_f32_forward");
    EXPECT_STREQ(automatic(made(DType::kBF16, 64, masked)), backward ? "sm90_backward" : "sm90_forward");
    EXPECT_STREQ(automatic(made(DType::kBF16, 33, masked)), backward ? "sm80_backward" : "sm80_forward");
    EXPECT_STREQ(automatic(made(DType::kF16, 500, masked)), backward ? "simt" : "sm80_forward");
  }
  const Params with_bias = {.bias = Tensor{.dtype = DType::kBF16}, .block_mask = &mask};
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, {}, with_bias, true)), "sm80_backward");
}

/// The bias gradient is computed in one of two ways. Either each block stores its tiles directly, or a cluster with one
/// block per sequence sums them.
TEST(Auto, GradientsOfABiasAreForHopperWhereTilesCanBeStored) {
  const Params with_bias = {.bias = Tensor{.dtype = DType::kBF16}};  // batch entries share the bias
  const auto made = [&](std::int64_t batch, std::int64_t heads, std::int64_t head_dim, const Params& params) {
    const Sizes sizes = {batch, heads, heads, 1000, 1000, head_dim, head_dim};
    return MadeUp(DType::kBF16, sizes, params, true);
  };
  const cuda::Family& family = *cuda::find_family("sm90_backward");
  const core::Backend& backend = *dispatch::find_backend("sm90_backward");
  for (const std::int64_t batch : {1, 2, 5, 8}) {
    const MadeUp one = made(batch, 1, 128, with_bias);
    EXPECT_STREQ(automatic(one), "sm90_backward") << batch;
    const cuda::Choice choice = family.choose(one.problem, device("sm_90a", 132));
    EXPECT_EQ(choice.steps[2].cluster, static_cast<unsigned>(batch));
    EXPECT_EQ(choice.steps[2].blocks % batch, 0);
    EXPECT_EQ(choice.steps[1].cluster, 1U);
  }
  EXPECT_EQ(dispatch::lack_of(backend, made(5, 1, 192, with_bias).problem), std::nullopt);
  const auto refused = [&](const MadeUp& one) {
    EXPECT_STREQ(automatic(one), "sm80_backward");
    return dispatch::lack_of(backend, one.problem).value_or("");
  };
  EXPECT_EQ(refused(made(9, 1, 128, with_bias)),
            "dbias: batch 1, compute 'sm90_backward' allows that of q if it is above 8, or above 5 with more than 128 "
            "columns");
  EXPECT_EQ(refused(made(6, 1, 192, with_bias)),
            "dbias: batch 1, compute 'sm90_backward' allows that of q if it is above 8, or above 5 with more than 128 "
            "columns");
  EXPECT_EQ(refused(made(2, 8, 128, with_bias)), "dbias: heads 1, compute 'sm90_backward' allows those of q");
  EXPECT_EQ(refused(made(2, 1, 128, {.bias = Tensor{.dtype = DType::kF32}})),
            "bias: dtype f32, compute 'sm90_backward' allows float16, bfloat16");
  MadeUp wide_dbias = made(2, 1, 128, with_bias);
  wide_dbias.problem.dbias->dtype = DType::kF32;
  EXPECT_EQ(refused(wide_dbias), "dbias: dtype f32, compute 'sm90_backward' allows float16, bfloat16");
  MadeUp skewed = made(2, 1, 128, with_bias);
  skewed.problem.dbias->stride[2] += 4;
  EXPECT_THAT(refused(skewed), HasSubstr("dbias: address"));
}

/// If dout is the gradient of a sum, its stride is 0. Tensor maps do not support stride 0.
TEST(Auto, ADoutOfStrideZeroGoesToSm80Backward) {
  for (const std::size_t dim : {0, 1, 2}) {
    MadeUp made(DType::kBF16, {.head_dim = 128, .head_dim_v = 128}, {}, true);
    EXPECT_STREQ(automatic(made), "sm90_backward");
    made.problem.dout.stride[dim] = 0;
    EXPECT_STREQ(automatic(made), "sm80_backward") << dim;
    EXPECT_THAT(dispatch::lack_of(*dispatch::find_backend("sm90_backward"), made.problem).value_or(""),
                AllOf(HasSubstr("dout: address"), HasSubstr("none of them 0")));
  }
}

TEST(Auto, OneRowDoesNotGetATileOf192) {
  for (const std::int64_t batch : {1, 16, 128}) {
    const Sizes decode = {batch, 32, 8, 1, 8192, 128, 128};
    const MadeUp made(DType::kBF16, decode);
    EXPECT_STREQ(automatic(made), "sm90_forward") << batch;
    const cuda::Family& family = *cuda::find_family("sm90_forward");
    const auto specs =
        family.kernels(family.choose(made.problem, device("sm_90a", 132)).variant, cuda::find_arch("sm_90a"));
    for (const cuda::Constant& c : specs.front().config) {
      if (c.name == "kBlockM") {
        EXPECT_EQ(std::get<std::int64_t>(c.value), 64);
      }
    }
  }
}

TEST(Auto, OutputsThatAreNotWholePiecesOf16BytesGoToSm80Forward) {
  const Sizes odd = {.head_dim = 64, .head_dim_v = 36};
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, odd)), "sm80_forward");
  EXPECT_EQ(dispatch::lack_of(*dispatch::find_backend("sm90_forward"), MadeUp(DType::kBF16, odd).problem),
            "v: head_dim 36, compute 'sm90_forward' allows multiples of 8");
}

/// Returns the time that Hopper's families need to prepare a boolean mask. On small problems this time may make another
/// family faster.
double mask_seconds(const core::Problem& p, const cuda::DeviceInfo& d) {
  constexpr double kLaunches = 11e-6, kBytesPerSecond = 2e12 / 132;  // memory bandwidth of one multiprocessor
  if (!p.mask) return 0;
  return kLaunches + static_cast<double>(p.max_seqlen_q * p.max_seqlen_k) / (kBytesPerSecond * d.num_multiprocessors);
}

/// Covers problems that Hopper's kernel does not support, and GPUs without Hopper's instructions.
TEST(Auto, HalfPrecisionIsForTensorCoresWhereverTheyTakeIt) {
  const Sizes wide = {.head_dim = 512, .head_dim_v = 300}, odd = {.seqlen_q = 1, .head_dim = 57, .head_dim_v = 57};
  EXPECT_STREQ(automatic(MadeUp(DType::kF16, wide)), "sm80_forward");
  EXPECT_STREQ(automatic(MadeUp(DType::kBF16, odd, {.window_left = 5, .softcap = 2, .dropout_p = 0.1})),
               "sm80_forward");
  const cuda::Family& sm80 = *cuda::find_family("sm80_forward");
  for (const MadeUp& made : problems(false)) {
    const core::Problem& p = made.problem;
    for (const cuda::DeviceInfo& d : devices()) {
      if (sm80.lack(p, d)) continue;
      const double expected = sm80.choose(p, d).seconds;
      for (const cuda::Family* other : cuda::families()) {
        if (other == &sm80 || !other->in_auto || !other->has_forward || !other->supports(d.arch()) ||
            other->lack(p, d) || std::string_view(other->name) == "mma_qreg_async") {
          continue;  // this rung is an earlier form of sm80_forward and is faster for some problems without options
        }
        const double seconds = other->choose(p, d).seconds;
        const bool is_hoppers = std::string_view(other->name) == "sm90_forward";
        EXPECT_TRUE(is_hoppers ? seconds - mask_seconds(p, d) <= expected
                               : seconds >= expected)  // the times are equal if memory bandwidth is the limit
            << other->name << " " << seconds << ", sm80_forward " << expected << " on " << d.name << ", q "
            << p.max_seqlen_q << " k " << p.max_seqlen_k << " d " << p.head_dim;
      }
    }
  }
}

/// Covers problems that Hopper's backward does not support, and GPUs before Hopper.
TEST(Auto, GradientsInHalfPrecisionAreForTensorCoresWhereverTheyTakeThem) {
  const cuda::Family& sm80 = *cuda::find_family("sm80_backward");
  for (const MadeUp& made : problems(true)) {
    const core::Problem& p = made.problem;
    for (const cuda::DeviceInfo& d : devices()) {
      if (sm80.lack(p, d)) continue;
      const double expected = sm80.choose(p, d).seconds;
      for (const cuda::Family* other : cuda::families()) {
        if (other == &sm80 || !other->in_auto || !other->has_backward || !other->supports(d.arch()) ||
            other->lack(p, d)) {
          continue;
        }
        const double seconds = other->choose(p, d).seconds;
        const bool is_hoppers = std::string_view(other->name) == "sm90_backward";
        // sm80_backward needs one more launch beyond 128 columns, which matters if memory bandwidth is the limit.
        constexpr double kLaunch = 3e-6;
        EXPECT_TRUE(is_hoppers ? seconds - mask_seconds(p, d) <= expected : seconds + kLaunch >= expected)
            << other->name << " " << seconds << ", sm80_backward " << expected << " on " << d.name << ", q "
            << p.max_seqlen_q << " k " << p.max_seqlen_k << " d " << p.head_dim;
      }
    }
  }
}

TEST(Auto, ComplainsWithTheWordsOfTheMostGeneral) {
  const MadeUp made(DType::kF32, {}, {.bias = Tensor{.dtype = DType::kF64}});
  try {
    (void)dispatch::choose("auto", made.problem);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("compute 'simt' allows"));
  }
}

}  // namespace
}  // namespace attend::test
