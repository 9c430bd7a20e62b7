// Tests the steps of the ladder for other architectures than that of this machine.
#include "ladder/steps.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cuda/launch/rung.hpp"

namespace attend::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

/// Returns the steps that follow the rungs of the ladder, for example "19 sm90_forward".
std::vector<std::string> products_on(const char* target) {
  const std::vector<cli::LadderStep> steps = cli::ladder_steps(cuda::find_arch(target));
  std::vector<std::string> found;
  for (std::size_t i = cuda::ladder().size(); i < steps.size(); ++i) {
    found.push_back(std::to_string(steps[i].number) + " " + steps[i].family->name);
  }
  return found;
}

TEST(LadderSteps, EndWithTheProductsOfTheArchitecture) {
  EXPECT_THAT(products_on("sm_90a"), ElementsAre("19 sm90_forward", "19 sm90_backward"));
  for (const char* target : {"sm_80", "sm_89", "sm_120"}) {
    EXPECT_THAT(products_on(target), Contains("19 sm80_forward")) << target;
    EXPECT_THAT(products_on(target), Not(Contains("19 sm90_forward"))) << target;
    EXPECT_THAT(products_on(target), Not(Contains("19 sm90_backward"))) << target;
  }
  EXPECT_THAT(products_on("sm_75"), IsEmpty());
}

TEST(LadderSteps, BeginWithTheRungsInTheirOrder) {
  const std::vector<cli::LadderStep> steps = cli::ladder_steps(cuda::find_arch("sm_75"));
  ASSERT_EQ(steps.size(), cuda::ladder().size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const cuda::Rung& rung = cuda::ladder()[i];
    EXPECT_EQ(steps[i].number, rung.number);
    EXPECT_STREQ(steps[i].family->name, rung.name);
    EXPECT_EQ(steps[i].family->has_backward, rung.backward != nullptr) << rung.name;
    for (const DType dtype : rung.dtypes) EXPECT_TRUE(steps[i].family->dtypes.has(dtype)) << rung.name;
  }
}

TEST(LadderSteps, AreAskedForByName) {
  const std::vector<std::string_view> names = cli::ladder_names();
  EXPECT_THAT(names, Contains("standard"));
  EXPECT_THAT(names, Contains("sm90_backward"));
  EXPECT_THAT(names, Contains("sm80_forward"));  // also listed if it is not the default kernel of this GPU
  EXPECT_THAT(names, Not(Contains("simt")));
  EXPECT_THAT(names, Not(Contains("cpu")));
}

}  // namespace
}  // namespace attend::test
