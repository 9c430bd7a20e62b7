// Tests how the custom score of a problem changes the kernels' cache key, program text and arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "attend/error.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "made_up.hpp"

namespace attend::test {
namespace {

using testing::HasSubstr;

core::CustomScore named(std::int32_t name, const char* source = "// text\n") {
  return {.source = source, .digest = {name, 0, 0, name}, .traits = {.adds_by_position = true}};
}

TEST(CustomScore, IsTakenByTheFamiliesOfProductionAndRefusedByRungs) {
  const core::CustomScore score = named(1);
  const cuda::DeviceInfo gpu = device("sm_90a", 132);
  std::set<std::string> taken, refused;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    for (const bool backward : {false, true}) {
      for (const Sizes& sizes : {Sizes{}, Sizes{.head_dim = 512, .head_dim_v = 512}}) {
        MadeUp made(dtype == DType::kF8E4M3 ? DType::kBF16 : dtype, sizes, {}, backward);
        if (dtype == DType::kF8E4M3) made.problem.q.dtype = made.problem.k.dtype = made.problem.v.dtype = dtype;
        for (const cuda::Family* family : cuda::families()) {
          made.problem.custom_score = nullptr;
          if (family->lack(made.problem, gpu)) continue;  // this family also refuses the problem without a custom score
          made.problem.custom_score = &score;
          const auto lack = family->lack(made.problem, gpu);
          (lack ? refused : taken).insert(family->name);
          if (lack) {
            EXPECT_EQ(lack_text(*lack, "x", made.problem), "score function: given, compute 'x' allows none");
          }
        }
      }
    }
  }
  EXPECT_THAT(taken, testing::ElementsAre("simt", "sm80_backward", "sm80_forward", "sm90_backward", "sm90_f32_forward",
                                          "sm90_forward"));
  EXPECT_EQ(taken.size() + refused.size(), cuda::families().size());
}

TEST(CustomScore, IsInTheKeyOfKernelsByItsSourceAndInTileChoicesByItsTraits) {
  MadeUp made(DType::kBF16);
  const cuda::Facts without = cuda::facts_of(made.problem, false);
  EXPECT_TRUE(without.score().changes_nothing());
  const core::CustomScore one = named(1), other = named(2);
  made.problem.custom_score = &one;
  const cuda::Facts facts = cuda::facts_of(made.problem, false);
  EXPECT_TRUE(facts.score().adds_by_position);
  EXPECT_FALSE(facts.score().transforms);
  EXPECT_FALSE(cuda::Variant(facts) == cuda::Variant(without));
  made.problem.custom_score = &other;
  EXPECT_FALSE(cuda::Variant(facts) == cuda::Variant(cuda::facts_of(made.problem, false)));
}

TEST(CustomScore, EveryTraitTravelsInTheVariant) {
  bool ScoreModTraits::*const traits[] = {&ScoreModTraits::transforms,
                                          &ScoreModTraits::adds_from_memory,
                                          &ScoreModTraits::adds_by_position,
                                          &ScoreModTraits::masks_from_memory,
                                          &ScoreModTraits::drops,
                                          &ScoreModTraits::adds_to_sum};
  static_assert(sizeof(ScoreModTraits) == std::size(traits), "a trait without a bit");
  for (const auto on : traits) {
    ScoreModTraits given;
    given.*on = true;
    for (const auto trait : traits) EXPECT_EQ(traits_of_bits(bits_of(given)).*trait, trait == on);
  }
}

TEST(CustomScore, TakesThePlaceOfTheHeaderInTheProgram) {
  MadeUp made(DType::kBF16);
  const cuda::Family& simt = *cuda::find_family("simt");
  const cuda::DeviceInfo gpu = device("sm_90a", 132);
  cuda::KernelSpec spec = simt.kernels(simt.choose(made.problem, gpu).variant, gpu.arch()).front();
  const cuda::Program before = cuda::make_program(spec, {});
  const std::string identity_before = identity(spec);
  spec.custom_score = "// the caller's text\n";
  const cuda::Program after = cuda::make_program(spec, {});
  int replaced = 0;
  for (const cuda::NamedSource& header : after.headers) replaced += header.text == spec.custom_score ? 1 : 0;
  EXPECT_EQ(replaced, 1);
  EXPECT_NE(cuda::program_key(before, 13, 0, "1"), cuda::program_key(after, 13, 0, "1"));
  EXPECT_NE(identity_before, identity(spec));
}

TEST(CustomScore, ChangesNoKernelThatEvaluatesNoScores) {
  MadeUp made(DType::kF32);
  const cuda::Family& naive = *cuda::find_family("naive");
  const cuda::DeviceInfo gpu = device("sm_90a", 132);
  cuda::KernelSpec spec = naive.kernels(naive.choose(made.problem, gpu).variant, gpu.arch()).front();
  const cuda::Program before = cuda::make_program(spec, {});
  spec.custom_score = "// the caller's text\n";
  EXPECT_EQ(cuda::program_key(before, 13, 0, "1"), cuda::program_key(cuda::make_program(spec, {}), 13, 0, "1"));
}

TEST(CustomScore, ItsTensorsReachTheArguments) {
  MadeUp made(DType::kBF16);
  core::CustomScore score = named(1);
  float elements[6];
  score.captured = {{elements, DType::kF32, {DeviceType::kCUDA, 0}, {2, 3, 1, 1}, {3, 1, 0, 0}},
                    {elements, DType::kF32, {DeviceType::kCUDA, 0}, {std::int64_t{1} << 40, 1, 1, 1}, {0, 0, 0, 0}}};
  EXPECT_EQ(cuda::option_args_of(made.problem).captured[0].data, nullptr);
  made.problem.custom_score = &score;
  const OptionArgs args = cuda::option_args_of(made.problem);
  EXPECT_EQ(args.captured[0].data, elements);
  EXPECT_THAT(args.captured[0].extent, testing::ElementsAre(2, 3, 1, 1));
  EXPECT_THAT(args.captured[0].stride, testing::ElementsAre(3, 1, 0, 0));
  EXPECT_EQ(args.captured[1].extent[0], std::numeric_limits<int>::max());
  EXPECT_EQ(args.captured[2].data, nullptr);
}

}  // namespace
}  // namespace attend::test
