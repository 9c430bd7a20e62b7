// Tests which example kernels `make test` compiles. The kernels must be few, and together they must contain every value
// of every compile-time constant. The test implements this rule independently of the library.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cuda/examples/examples.hpp"
#include "cuda/launch/family.hpp"

namespace attend::test {
namespace {

/// Formats a compile-time constant of any type, as in "sm90_forward kBlockM=128".
std::string value_text(const cuda::KernelSpec& spec, const cuda::Constant& constant) {
  // One line per constant, such as "  static constexpr int kBlockM = 128;".
  const std::string all = cuda::config_text(spec);
  const std::size_t begin = all.find(" " + constant.name + " = ");
  return spec.name + all.substr(begin, all.find('\n', begin) - begin);
}

std::string width_text(const cuda::Constant& head_dim) {
  const std::int64_t n = std::get<std::int64_t>(head_dim.value);
  const std::int64_t width = n > 256 ? 512 : n > 128 ? 256 : n > 64 ? 128 : 64;
  return " in " + std::to_string(width) + (n == width ? "" : n % 8 != 0 ? ", odd" : ", chunks");
}

std::set<std::string> tried_by(const std::vector<cuda::KernelSpec>& specs) {
  std::set<std::string> tried;
  for (const cuda::KernelSpec& spec : specs) {
    tried.insert(spec.name + " " + spec.arch);
    for (const cuda::Constant& constant : spec.config) {
      if (constant.name == "kSmemBytes") continue;
      const bool is_head_dim = constant.name == "kHeadDim" || constant.name == "kHeadDimV";
      tried.insert(is_head_dim ? spec.name + " " + constant.name + width_text(constant) : value_text(spec, constant));
      if (constant.name == "kElement") tried.insert(value_text(spec, constant) + " " + spec.arch);
    }
  }
  return tried;
}

TEST(Covering, FewVariantsTryWhatAllDo) {
  std::size_t all = 0, chosen = 0;
  for (const cuda::Family* family : cuda::families()) {
    std::vector<cuda::KernelSpec> specs;
    for (const char* target : {"sm_75", "sm_80", "sm_90a", "sm_120"}) {
      const cuda::Arch& arch = cuda::find_arch(target);
      if (!family->supports(arch)) continue;
      for (cuda::KernelSpec& spec : cuda::example_specs(*family, arch)) specs.push_back(std::move(spec));
    }
    const std::vector<cuda::KernelSpec> few = cuda::covering_specs(specs);
    EXPECT_EQ(tried_by(few), tried_by(specs)) << family->name;
    all += specs.size();
    chosen += few.size();
  }
  EXPECT_LT(chosen * 4, all) << "nothing is saved";
  EXPECT_GT(chosen * 12, all);
}

TEST(Covering, KeepsTheOrderAndLeavesOutWhatOthersHave) {
  const auto spec = [](const char* name, const char* arch, std::int64_t rows) {
    cuda::KernelSpec result;
    result.name = name;
    result.config = {{"kRows", rows}};
    result.arch = arch;
    return result;
  };
  const auto few = cuda::covering_specs({spec("a", "sm_80", 1), spec("b", "sm_80", 1), spec("a", "sm_90a", 1),
                                         spec("a", "sm_90a", 2), spec("a", "sm_90a", 2)});
  std::string text;
  for (const cuda::KernelSpec& each : few) text += cuda::describe(each) + "\n";
  EXPECT_EQ(text, "a<kRows=1> sm_80\nb<kRows=1> sm_80\na<kRows=2> sm_90a\n");
  EXPECT_TRUE(cuda::covering_specs({}).empty());
}

}  // namespace
}  // namespace attend::test
