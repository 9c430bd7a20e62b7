// Tests the tables of fields: the functions that are derived from them, and that every family's tunable parameters
// reach its kernels.
#include "cuda/launch/fields.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "cuda/examples/examples.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/made_up.hpp"

namespace attend::test {
namespace {

using cuda::covers, cuda::Field, cuda::flag, cuda::number, cuda::unread;
using testing::ElementsAre;

struct Part {
  int low = 1, high = 2;
};

struct Whole : cuda::Facts {
  Part part = {};
  std::int32_t overlaps = 0;
  Schedule schedule = Schedule::kDynamic;
  std::int32_t min_blocks = 3;
  [[nodiscard]] int threads() const { return 32 * part.high; }
};

constexpr Field<Whole> kFields[] = {
    {nullptr, "kThreads", number<&Whole::threads>},       {"dynamic", "kSchedule", number<&Whole::schedule>},
    {"high", "kHigh", number<&Whole::part, &Part::high>}, {nullptr, "kLow", number<&Whole::part, &Part::low>},
    {"overlap", "kOverlap", flag<&Whole::overlaps>},      {"min_blocks", nullptr, unread<&Whole::min_blocks>},
};
static_assert(covers<Whole>(kFields));
static_assert(!covers<Whole>(std::span(kFields).first<5>()), "a member without a row");

constexpr Field<Part> kTwice[] = {{"low", "kLow", number<&Part::low>}, {"high", "kHigh", number<&Part::low>}};
static_assert(!covers<Part>(kTwice), "two rows for one member");

struct Doubled {
  int one = 1;
  [[nodiscard]] int two() const { return 2 * one; }
};
constexpr Field<Doubled> kSweepsWhatFollows[] = {{"one", "kOne", number<&Doubled::one>},
                                                 {"two", "kTwo", number<&Doubled::two>}};
static_assert(!covers<Doubled>(kSweepsWhatFollows), "a name for what is no member");
constexpr Field<Doubled> kConstantWithoutValue[] = {{"one", "kOne", unread<&Doubled::one>}};
static_assert(!covers<Doubled>(kConstantWithoutValue), "a constant without a value");

TEST(Fields, ConstantsComeInTheOrderOfTheTableBehindTheFacts) {
  const Whole whole;
  const auto facts = cuda::constants_of(whole, 0, {});
  const auto all = cuda::config_of<Whole>(whole, 0, kFields, whole);
  ASSERT_GT(all.size(), facts.size());
  cuda::KernelSpec spec;
  spec.config.assign(all.begin() + static_cast<std::ptrdiff_t>(facts.size()), all.end());
  EXPECT_EQ(cuda::config_text(spec),
            "  static constexpr int kThreads = 64;\n"
            "  static constexpr Schedule kSchedule = Schedule::kDynamic;\n"
            "  static constexpr int kHigh = 2;\n"
            "  static constexpr int kLow = 1;\n"
            "  static constexpr bool kOverlap = false;\n");
}

TEST(Fields, TunablesComeInTheOrderOfTheStructAndFindTheirNumber) {
  const auto tunables = cuda::tunables_of<Whole>(kFields, 0, "a_");
  std::vector<std::string> names;
  for (const cuda::Tunable& tunable : tunables) names.push_back(tunable.name);
  EXPECT_THAT(names, ElementsAre("a_high", "a_overlap", "a_dynamic", "a_min_blocks"));
  cuda::Variant variant = Whole();
  variant.set(tunables.at(0).at, 7);
  variant.set(tunables.at(3).at, 9);
  EXPECT_EQ(variant.as<Whole>().part.high, 7);
  EXPECT_EQ(variant.as<Whole>().part.low, 1);
  EXPECT_EQ(variant.as<Whole>().min_blocks, 9);
}

TEST(Fields, ATunableThatIsAnEnumeratorNamesThoseThatExist) {
  const auto tunables = cuda::tunables_of<Whole>(kFields);
  const cuda::Tunable& schedule = tunables.at(2);
  ASSERT_EQ(schedule.name, "dynamic");
  EXPECT_THAT(schedule.enumerators, ElementsAre("kStatic", "kDynamic"));
  for (const std::int32_t present : {0, 1}) {
    EXPECT_EQ(schedule.allowed_instead_of(0, present), "");
    EXPECT_EQ(schedule.allowed_instead_of(1, present), "");
    EXPECT_EQ(schedule.allowed_instead_of(2, present), "0 (kStatic), 1 (kDynamic)");
    EXPECT_EQ(schedule.allowed_instead_of(-1, present), "0 (kStatic), 1 (kDynamic)");
  }
}

TEST(Fields, ATunableNumberIsAtLeastOneUnlessItIsASwitch) {
  const cuda::Tunable number = {.name = "high", .at = 0};
  EXPECT_EQ(number.allowed_instead_of(0, 1), "");
  EXPECT_EQ(number.allowed_instead_of(7, 2), "");
  EXPECT_EQ(number.allowed_instead_of(0, 2), "at least 1");
}

/// Returns one string that identifies all kernels of a variant.
std::string text_of(const cuda::Family& family, const cuda::Variant& variant, const cuda::Arch& arch) {
  std::string text;
  for (const cuda::KernelSpec& spec : family.kernels(variant, arch)) text += identity(spec);
  return text;
}

/// Every tunable parameter must change some kernel. Otherwise a sweep over the parameter would compare a kernel with
/// itself.
TEST(Fields, EveryTunableOfAFamilyChangesAKernel) {
  const cuda::Arch& arch = cuda::find_arch("sm_90a");
  for (const cuda::Family* family : cuda::families()) {
    std::set<std::string> names, seen;
    for (const cuda::Variant& variant : cuda::example_variants(*family, arch)) {
      std::set<std::size_t> places;
      for (const cuda::Tunable& tunable : family->tunables(variant)) {
        names.insert(tunable.name);
        EXPECT_TRUE(places.insert(tunable.at).second) << family->name << " " << tunable.name;
        if (seen.contains(tunable.name)) continue;
        cuda::Variant other = variant;
        const auto present = variant.ints()[tunable.at];
        // owns_heads is a switch that any nonzero number enables. Adding 1 to a nonzero number would therefore not
        // change the kernel.
        const bool is_switch = std::string_view(tunable.name) == "owns_heads";
        other.set(tunable.at, is_switch ? 1 - present : present + 1);
        if (text_of(*family, variant, arch) != text_of(*family, other, arch)) seen.insert(tunable.name);
      }
    }
    EXPECT_EQ(seen, names) << family->name;
  }
}

}  // namespace
}  // namespace attend::test
