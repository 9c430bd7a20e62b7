// Tests the tiles that sm80_forward and sm80_backward choose. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/made_up.hpp"
#include "dispatch/dispatch.hpp"

namespace attend::test {
namespace {

TEST(Sm80Forward, TilesFollowTheSharedMemoryOfTheArchitecture) {
  const cuda::Family& family = *cuda::find_family("sm80_forward");
  const auto constant = [&](const MadeUp& made, const cuda::DeviceInfo& d, const char* name) -> std::int64_t {
    const std::vector<cuda::KernelSpec> specs = family.kernels(family.choose(made.problem, d).variant, d.arch());
    for (const cuda::Constant& c : specs.front().config) {
      if (c.name == name) return std::get<std::int64_t>(c.value);
    }
    return -1;
  };
  struct Wanted {
    std::int64_t head_dim;
    const char* arch;
    std::int64_t block_m, block_n, threads, smem_bytes;
  };
  constexpr Wanted kWanted[] = {
      {64, "sm_80", 128, 64, 128, 50176},   {64, "sm_86", 128, 64, 128, 50176},  {64, "sm_90a", 128, 64, 128, 50176},
      {128, "sm_80", 128, 32, 128, 66560},  {128, "sm_86", 128, 64, 256, 99328}, {128, "sm_90a", 128, 64, 128, 103424},
      {256, "sm_80", 128, 32, 256, 132096}, {256, "sm_120", 64, 32, 128, 99328}, {256, "sm_90a", 128, 64, 256, 231424},
      {512, "sm_80", 64, 32, 128, 164864},  {512, "sm_89", 32, 16, 64, 82944},   {512, "sm_90a", 128, 32, 256, 230400}};
  for (const Wanted& w : kWanted) {
    SCOPED_TRACE(std::string(w.arch) + " " + std::to_string(w.head_dim));
    const MadeUp made(DType::kBF16,
                      {.seqlen_q = 8192, .seqlen_k = 8192, .head_dim = w.head_dim, .head_dim_v = w.head_dim});
    const cuda::DeviceInfo d = device(w.arch, 100);
    EXPECT_EQ(constant(made, d, "kBlockM"), w.block_m);
    EXPECT_EQ(constant(made, d, "kBlockN"), w.block_n);
    EXPECT_EQ(constant(made, d, "kThreads"), w.threads);
    EXPECT_EQ(constant(made, d, "kSmemBytes"), w.smem_bytes);
  }
  for (const std::int64_t seqlen : {512, 2048}) {
    for (const std::int64_t head_dim : {64, 256}) {
      const Sizes sizes = {.batch = 32,
                           .heads = 8,
                           .heads_kv = 8,
                           .seqlen_q = seqlen,
                           .seqlen_k = seqlen,
                           .head_dim = head_dim,
                           .head_dim_v = head_dim};
      const MadeUp causal(DType::kBF16, sizes, {.causal = true}), full(DType::kBF16, sizes);
      EXPECT_EQ(constant(causal, device("sm_90a", 132), "kBlockM"), seqlen == 512 ? 64 : 128) << head_dim;
      EXPECT_EQ(constant(full, device("sm_90a", 132), "kBlockM"), 128) << head_dim;
    }
  }
  const MadeUp decode(DType::kBF16, {16, 32, 8, 1, 8192, 128, 128});
  EXPECT_EQ(constant(decode, device("sm_80", 108), "kBlockM"), 64) << "one row";
}

TEST(Sm80Forward, TakesAnyAlignmentInTheLargestPieces) {
  const cuda::Family& family = *cuda::find_family("sm80_forward");
  const cuda::DeviceInfo d = device("sm_80", 108);
  const auto copy_bytes = [&](const Sizes& sizes, std::uintptr_t skew) -> std::int64_t {
    const MadeUp made(DType::kBF16, sizes, {}, false, 0, skew);
    EXPECT_FALSE(family.lack(made.problem, d).has_value());
    const std::vector<cuda::KernelSpec> specs = family.kernels(family.choose(made.problem, d).variant, d.arch());
    for (const cuda::Constant& c : specs.front().config) {
      if (c.name == "kCopyBytes") return std::get<std::int64_t>(c.value);
    }
    return -1;
  };
  EXPECT_EQ(copy_bytes({}, 0), 16);
  EXPECT_EQ(copy_bytes({}, 4), 4);
  EXPECT_EQ(copy_bytes({}, 2), 2);
  EXPECT_EQ(copy_bytes({.head_dim = 50}, 0), 4);
  EXPECT_EQ(copy_bytes({.head_dim_v = 33}, 0), 2);
}

TEST(Sm80Forward, SumsThatTensorCoresWouldCutArePutAside) {
  const cuda::Family& family = *cuda::find_family("sm80_forward");
  const auto puts_aside = [&](DType dtype, std::int64_t seqlen_k) {
    const MadeUp made(dtype, {.seqlen_k = seqlen_k});
    const std::vector<cuda::KernelSpec> specs =
        family.kernels(family.choose(made.problem, device("sm_80", 108)).variant, cuda::find_arch("sm_80"));
    return std::any_of(specs.front().config.begin(), specs.front().config.end(),
                       [](const cuda::Constant& c) { return c.name == "kPutsAside" && std::get<bool>(c.value); });
  };
  EXPECT_FALSE(puts_aside(DType::kF16, 65536));
  EXPECT_TRUE(puts_aside(DType::kF16, 65537));
  EXPECT_FALSE(puts_aside(DType::kBF16, 524288));
  EXPECT_TRUE(puts_aside(DType::kBF16, 524289));
  EXPECT_EQ(dispatch::lack_of(*dispatch::find_backend("sm80_forward"),
                              MadeUp(DType::kF16, {.seqlen_k = 65537, .head_dim = 512}).problem),
            "q: head_dim 512, compute 'sm80_forward' allows 1 to 256 if there are very many keys");
}

/// Returns a Config constant of the chosen variant, from the first of its kernels that has this constant.
std::optional<std::int64_t> constant_of(const cuda::Family& family, const core::Problem& p, const cuda::DeviceInfo& d,
                                        const char* name) {
  for (const cuda::KernelSpec& spec : family.kernels(family.choose(p, d).variant, d.arch())) {
    for (const cuda::Constant& c : spec.config) {
      if (c.name != name) continue;
      if (const auto* number = std::get_if<std::int64_t>(&c.value)) return *number;
      return std::get<bool>(c.value) ? 1 : 0;
    }
  }
  return std::nullopt;
}

TEST(Sm80Backward, TilesFollowTheSharedMemoryOfTheArchitecture) {
  const cuda::Family& family = *cuda::find_family("sm80_backward");
  struct Wanted {
    std::int64_t head_dim;
    const char* arch;
    std::int64_t threads, streamed, step, roles, adds_dq, smem_bytes;
  };
  constexpr Wanted kWanted[] = {{64, "sm_80", 128, 64, 32, 1, 1, 100352},  {64, "sm_86", 128, 64, 32, 1, 1, 100352},
                                {64, "sm_90a", 128, 64, 32, 1, 1, 100352}, {128, "sm_80", 256, 32, 32, 2, 1, 132096},
                                {128, "sm_86", 256, 32, 32, 0, 0, 99328},  {128, "sm_90a", 256, 64, 64, 2, 1, 182272},
                                {256, "sm_80", 256, 32, 32, 2, 1, 156672}, {256, "sm_120", 128, 16, 16, 0, 0, 99328},
                                {256, "sm_90a", 256, 64, 64, 2, 1, 231424}};
  for (const Wanted& w : kWanted) {
    SCOPED_TRACE(std::string(w.arch) + " " + std::to_string(w.head_dim));
    const MadeUp made(DType::kBF16,
                      {.seqlen_q = 8192, .seqlen_k = 8192, .head_dim = w.head_dim, .head_dim_v = w.head_dim}, {}, true);
    const cuda::DeviceInfo d = device(w.arch, 100);
    const auto of = [&](const char* name) { return constant_of(family, made.problem, d, name); };
    EXPECT_EQ(of("kWarps"), w.threads / 32);
    EXPECT_EQ(of("kStreamed"), w.streamed);
    EXPECT_EQ(of("kStep"), w.step);
    EXPECT_EQ(of("kRoles"), w.roles);
    EXPECT_EQ(of("kAddsDq"), w.adds_dq);
    EXPECT_EQ(of("kSmemBytes"), w.smem_bytes);
  }
}

TEST(Sm80Backward, TheSameBitsAreTwoPassesAndNoSumsInMemory) {
  const cuda::Family& family = *cuda::find_family("sm80_backward");
  const cuda::DeviceInfo d = device("sm_80", 108);
  const auto zeroed_bytes = [&](const core::Problem& p) {
    const cuda::Workspace workspace = family.workspace(p, family.choose(p, d));
    std::int64_t bytes = 0;
    for (const auto& region : workspace.regions()) bytes += region.zeroed ? region.bytes : 0;
    return bytes;
  };
  const Sizes sizes = {.batch = 2, .heads = 8, .seqlen_q = 1000, .head_dim = 50};
  const MadeUp one(DType::kBF16, sizes, {}, true), two(DType::kBF16, sizes, {.deterministic = true}, true);
  EXPECT_EQ(constant_of(family, one.problem, d, "kAddsDq"), 1);
  EXPECT_EQ(zeroed_bytes(one.problem), 2 * 8 * 1008 * 64 * 4) << "whole operands";
  EXPECT_EQ(constant_of(family, two.problem, d, "kAddsDq"), 0);
  EXPECT_EQ(zeroed_bytes(two.problem), 0);
}

TEST(Sm80Backward, TakesAnyAlignmentInTheLargestPieces) {
  const cuda::Family& family = *cuda::find_family("sm80_backward");
  const cuda::DeviceInfo d = device("sm_80", 108);
  const auto copy_bytes = [&](const Sizes& sizes, std::uintptr_t skew) {
    const MadeUp made(DType::kBF16, sizes, {}, true, 0, skew);
    EXPECT_FALSE(family.lack(made.problem, d).has_value());
    return constant_of(family, made.problem, d, "kCopyBytes");
  };
  EXPECT_EQ(copy_bytes({}, 0), 16);
  EXPECT_EQ(copy_bytes({}, 4), 4);
  EXPECT_EQ(copy_bytes({.head_dim_v = 33}, 0), 2);
  EXPECT_EQ(dispatch::lack_of(*dispatch::find_backend("sm80_backward"),
                              MadeUp(DType::kF16, {.head_dim = 257}, {}, true).problem),
            "q: head_dim 257, compute 'sm80_backward' allows 1 to 256");
  EXPECT_EQ(
      dispatch::lack_of(*dispatch::find_backend("sm80_backward"), MadeUp(DType::kF16, {.heads = 0}, {}, true).problem),
      "q: heads 0, compute 'sm80_backward' allows 1 and more");
}

}  // namespace
}  // namespace attend::test
