// Tests how a kernel spec becomes a program and a cache key, and how the compiler's log is parsed. Needs no compiler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "attend/error.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/examples/examples.hpp"
#include "cuda/jit/ptxas_log.hpp"
#include "cuda/jit/sources.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/launch/family.hpp"

namespace attend::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class Call>
std::string refusal(const Call& call) {
  try {
    (void)call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

class Spec : public JitTest {
 protected:
  [[nodiscard]] std::string key(const cuda::KernelSpec& spec, int major = 13, int minor = 0,
                                const std::string& version = "0.1.0") const {
    return cuda::program_key(cuda::make_program(spec, kernels_), major, minor, version);
  }
};

TEST_F(Spec, ConfigIsNamedConstants) {
  cuda::KernelSpec spec = tiny_spec();
  spec.config = {{"kThreads", std::int64_t{128}},
                 {"kWide", std::int64_t{1} << 40},
                 {"kFlag", true},
                 {"kMask", cuda::EnumConstant{"MaskKind", "kCausal"}}};
  EXPECT_EQ(cuda::config_text(spec),
            "  static constexpr int kThreads = 128;\n  static constexpr long long kWide = 1099511627776;\n"
            "  static constexpr bool kFlag = true;\n  static constexpr MaskKind kMask = MaskKind::kCausal;\n");
  EXPECT_EQ(cuda::describe(spec), "tiny<kThreads=128, kWide=1099511627776, kFlag=true, kMask=kCausal> sm_90a");
}

TEST_F(Spec, EachFieldAloneChangesTheKey) {
  const cuda::KernelSpec base = tiny_spec();
  std::set<std::string> keys = {key(base)};
  const auto expect_new = [&keys](const std::string& k, const char* what) {
    EXPECT_TRUE(keys.insert(k).second) << what;
  };
  EXPECT_EQ(key(base), *keys.begin());
  expect_new(key(base, 12), "NVRTC's version");
  expect_new(key(base, 13, 1), "NVRTC's minor version");
  expect_new(key(base, 13, 0, "0.1.1"), "the library's version");
  expect_new(key(tiny_spec(2)), "a constant's value");
  expect_new(key(tiny_spec(1, "sm_80")), "the architecture");
  expect_new(key(tiny_spec(1, "sm_120")), "the architecture");
  expect_new(key(tiny_spec(1, "sm_121")), "the architecture's last digit");
  cuda::KernelSpec spec = base;
  spec.name = "tiny2";
  expect_new(key(spec), "the name");
  spec = base;
  spec.options = {"--maxrregcount=64"};
  expect_new(key(spec), "an option");
  spec = base;
  spec.config[1].name = "kOther";
  expect_new(key(spec), "a constant's name");
  spec = base;
  spec.config[1].value = true;
  expect_new(key(spec), "a constant's type");
  spec = base;
  std::swap(spec.config[0], spec.config[1]);
  expect_new(key(spec), "the order of the constants");
  for (const char* file : {"tiny.cuh", "common/tiny_args.cuh", "common/config_enums.cuh"}) {
    write_file(kernels_ / file, read_file(kernels_ / file) + "// edited\n");
    expect_new(key(base), file);
  }
}

TEST_F(Spec, PlacesAndTimesDoNotChangeTheKey) {
  const std::string before = key(tiny_spec());
  const std::filesystem::path elsewhere = folder_ / "moved \xC3\xA9";
  std::filesystem::rename(kernels_, elsewhere);
  std::filesystem::last_write_time(elsewhere / "tiny.cuh", std::filesystem::file_time_type::clock::now());
  EXPECT_EQ(cuda::program_key(cuda::make_program(tiny_spec(), elsewhere), 13, 0, "0.1.0"), before);
}

TEST_F(Spec, IncludesAreFoundFromTheIncludingFileAndTakenOnce) {
  write_file(kernels_ / "common" / "a.cuh", "#pragma once\n#include \"b.cuh\"\n#include <cuda.h>\n");
  write_file(kernels_ / "common" / "b.cuh", "#pragma once\n  #  include \"../common/a.cuh\" // round\nlast line");
  write_file(kernels_ / "top.cuh", "#include \"common/a.cuh\"\n#include \"common/b.cuh\"\n");
  const auto files = cuda::collect_sources("top.cuh", kernels_);
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(file.name);
  EXPECT_THAT(names, ElementsAre("top.cuh", "common/a.cuh", "common/b.cuh"));
  EXPECT_EQ(files[1].text, "#pragma once\n#include \"common/b.cuh\"\n#include <cuda.h>\n");
  EXPECT_EQ(files[2].text, "#pragma once\n  #  include \"common/a.cuh\" // round\nlast line");
}

TEST_F(Spec, RefusalsSayWhat) {
  const std::string good = read_file(kernels_ / "tiny.cuh");
  write_file(kernels_ / "tiny.cuh", "#include \"gone.cuh\"\n");
  EXPECT_THAT(refusal([&] { return cuda::make_program(tiny_spec(), kernels_); }),
              AllOf(HasSubstr("gone.cuh"), HasSubstr("tiny.cuh includes"), HasSubstr(kernels_.string())));
  EXPECT_THAT(refusal([&] { return cuda::make_program(tiny_spec(1, "sm_91"), kernels_); }),
              AllOf(HasSubstr("'sm_91'"), HasSubstr("sm_90a")));
  write_file(kernels_ / "tiny.cuh", good);
  cuda::KernelSpec spec = tiny_spec();
  spec.config[1].name = "k; int x";
  EXPECT_THAT(refusal([&] { return cuda::make_program(spec, kernels_); }), HasSubstr("identifier"));
  spec.config.clear();
  EXPECT_THAT(refusal([&] { return cuda::make_program(spec, kernels_); }), HasSubstr("kThreads"));
}

TEST(Arch, UnknownCapabilityIsRefused) {
  EXPECT_STREQ(cuda::arch_of_capability(9, 0).target, "sm_90a");
  EXPECT_THAT(refusal([] { return cuda::arch_of_capability(9, 9); }), AllOf(HasSubstr("9.9"), HasSubstr("sm_90a")));
  EXPECT_FALSE(cuda::find_arch("sm_120").wgmma);  // this architecture is newer than sm_90a, but has no wgmma
}

TEST(Embedded, EveryKernelOfTheCatalogHasItsSource) {
  for (const cuda::Family* family : cuda::families()) {
    for (const cuda::KernelSpec& spec : cuda::example_specs(*family, cuda::find_arch("sm_90a"))) {
      EXPECT_FALSE(cuda::make_program(spec, {}).headers.empty()) << family->name;
    }
  }
}

TEST(PtxasLog, GivesTheNumbers) {
  const auto r = cuda::parse_ptxas_log(
      "x.cu(3): warning #177-D: variable \"a\" was declared but never referenced\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
      "nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release\n"
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'attend_x' for 'sm_90a'\n"
      "ptxas info    : Function properties for helper\n"
      "    999 bytes stack frame, 1 bytes spill stores, 1 bytes spill loads\n"
      "ptxas info    : Function properties for attend_x\n"
      "    16 bytes stack frame, 8 bytes spill stores, 24 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 2 barriers, 16 bytes cumulative stack size, 4096 bytes smem\n",
      "attend_x");
  EXPECT_EQ(r.registers, 168);
  EXPECT_EQ(r.stack_bytes, 16);
  EXPECT_EQ(r.spill_store_bytes, 8);
  EXPECT_EQ(r.spill_load_bytes, 24);
  EXPECT_EQ(r.barriers, 2);
  EXPECT_EQ(r.static_smem_bytes, 4096);
  EXPECT_EQ(r.warnings.size(), 2U);
}

}  // namespace
}  // namespace attend::test
