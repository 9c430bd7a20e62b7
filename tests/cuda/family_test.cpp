// Tests kernel families without a GPU, for device descriptions made by the test. Checks what each family does not
// support and what it chooses. auto_test.cpp tests which family `auto` picks.
#include "cuda/launch/family.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "cuda/examples/examples.hpp"
#include "cuda/launch/launcher.hpp"
#include "cuda/launch/rung.hpp"
#include "cuda/made_up.hpp"
#include "dispatch/dispatch.hpp"

namespace attend::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Family, ChoicesFitTheDeviceAndRepeat) {
  int chosen = 0;
  for (const bool backward : {false, true}) {
    for (const MadeUp& made : problems(backward)) {
      const core::Problem& p = made.problem;
      for (const cuda::DeviceInfo& d : devices()) {
        for (const cuda::Family* family : cuda::families()) {
          if (!family->supports(d.arch()) || (backward && !family->has_backward) || family->lack(p, d)) continue;
          const cuda::Choice choice = family->choose(p, d);
          ++chosen;
          SCOPED_TRACE(std::string(family->name) + " " + d.name);
          EXPECT_EQ(choice.variant, family->choose(p, d).variant) << "the same question, another answer";
          EXPECT_STRNE(choice.why, "");
          EXPECT_TRUE(!family->in_auto || std::isfinite(choice.seconds));
          EXPECT_GT(choice.seconds, 0);
          const auto specs = family->kernels(choice.variant, d.arch());
          ASSERT_EQ(specs.size(), choice.num_steps);
          for (std::size_t i = 0; i < specs.size(); ++i) {
            EXPECT_LE(specs[i].dynamic_smem_bytes, static_cast<unsigned>(d.max_smem_per_block)) << specs[i].name;
            EXPECT_GT(choice.steps[i].blocks, 0) << specs[i].name;
          }
        }
      }
    }
  }
  EXPECT_GT(chosen, 5000);
}

// Without rows or batch entries, the kernel that stores dbias would have no blocks, so dbias would stay uninitialized.
TEST(Family, OfSm90DoesNotTakeAGradientOfABiasThatNoBlockStores) {
  const auto lack = [](const Sizes& sizes, const Shape& dbias) {
    MadeUp made(DType::kF16, sizes, {.bias = Tensor{.dtype = DType::kF16}}, true);
    made.problem.dbias->shape = dbias;
    made.problem.dbias->stride = contiguous_strides(dbias);
    return dispatch::lack_of(*dispatch::find_backend("sm90_backward"), made.problem).value_or("nothing");
  };
  EXPECT_EQ(lack({.seqlen_k = 1024}, {1, 8, 1000, 1024}), "nothing");
  EXPECT_EQ(lack({.seqlen_q = 0, .seqlen_k = 1024}, {1, 8, 1, 1024}),
            "dbias: rows 1, compute 'sm90_backward' allows those of q");
  EXPECT_EQ(lack({.batch = 0, .seqlen_k = 1024}, {1, 8, 1000, 1024}),
            "dbias: batch 1, compute 'sm90_backward' allows that of q if q has no entries");
}

TEST(Family, ExamplesFitEveryArchitecture) {
  for (const cuda::Arch& arch : cuda::known_archs()) {
    for (const cuda::Family* family : cuda::families()) {
      if (!family->supports(arch)) continue;
      const auto specs = cuda::example_specs(*family, arch);
      EXPECT_FALSE(specs.empty());
      for (const cuda::KernelSpec& spec : specs) {
        EXPECT_LE(spec.dynamic_smem_bytes, static_cast<unsigned>(arch.max_smem_per_block)) << describe(spec);
      }
    }
  }
}

/// Only the example kernels are checked for spills. Therefore every kernel that a problem can select must have the tile
/// of some example. The kernel may differ from that example only in head_dim, dtypes and options.
TEST(Family, ExamplesCoverTheTilesThatAreChosen) {
  const auto tile_of = [](const cuda::KernelSpec& spec) {
    std::string text = spec.name;
    for (const cuda::Constant& c : spec.config) {
      for (const char* name : {"kThreads", "kBlockM", "kBlockN", "kStages", "kQBuffers", "kNegateScores", "kAligned",
                               "kStreamed", "kStep", "kRowGroups", "kAddsDq"}) {
        if (c.name != name) continue;
        const auto* number = std::get_if<std::int64_t>(&c.value);
        text += std::string(" ") + name + "=" + std::to_string(number != nullptr ? *number : std::get<bool>(c.value));
      }
    }
    return text;
  };
  for (const cuda::DeviceInfo& d : devices()) {
    for (const cuda::Family* family : cuda::families()) {
      if (!family->supports(d.arch())) continue;
      std::set<std::string> shown;
      for (const auto& spec : cuda::example_specs(*family, d.arch())) shown.insert(tile_of(spec));
      for (const bool backward : {false, true}) {
        for (const MadeUp& made : problems(backward)) {
          const core::Problem& p = made.problem;
          if ((backward && !family->has_backward) || family->lack(p, d)) continue;
          for (const auto& spec : family->kernels(family->choose(p, d).variant, d.arch())) {
            EXPECT_TRUE(shown.contains(tile_of(spec))) << family->name << " " << d.name << ": " << tile_of(spec);
          }
        }
      }
    }
  }
}

TEST(Family, EveryFactIsPartOfTheKey) {
  const cuda::Facts facts;
  const cuda::Variant variant = facts;
  EXPECT_EQ(variant.ints().size(), sizeof(facts) / 4);
  for (std::size_t i = 0; i < variant.ints().size(); ++i) {
    cuda::Variant other = variant;
    other.set(i, variant.ints()[i] + 1);
    EXPECT_FALSE(other == variant) << i;
  }
  EXPECT_EQ(variant.as<cuda::Facts>().head_dim, facts.head_dim);
}

TEST(Family, VariantsOfDifferentKernelsDiffer) {
  const cuda::Arch& arch = cuda::find_arch("sm_90a");
  for (const cuda::Family* family : cuda::families()) {
    const auto variants = cuda::example_variants(*family, arch);
    for (std::size_t i = 0; i < variants.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (!(variants[i] == variants[j])) continue;
        ADD_FAILURE() << family->name << ": examples " << j << " and " << i << " are the same";
      }
    }
  }
}

TEST(Family, EachDeviceHasOneFallbackWhichAutoMayTake) {
  for (const DeviceType device : {DeviceType::kCPU, DeviceType::kCUDA}) {
    std::vector<std::string> fallbacks;
    for (const core::Backend* backend : dispatch::all_backends()) {
      if (backend->device != device || !backend->is_fallback) continue;
      fallbacks.emplace_back(backend->name);
      EXPECT_TRUE(backend->in_auto) << backend->name;
    }
    EXPECT_THAT(fallbacks, testing::ElementsAre(device == DeviceType::kCPU ? "reference" : "simt"));
  }
}

TEST(Family, LacksNameArgumentValueAndWhatIsAllowed) {
  const auto lack = [](const char* compute, const MadeUp& made) {
    return dispatch::lack_of(*dispatch::find_backend(compute), made.problem).value_or("nothing");
  };
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF32, {}, {.softcap = 2.5})), "softcap: 2.5, compute 'fa2' allows 0");
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF32, {}, {.window_left = 3})), "window_left: 3, compute 'fa2' allows -1");
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF32, {}, {.window_right = 3})),
            "window_right: 3, compute 'fa2' allows -1, or causal");
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF32, {}, {.dropout_p = 0.25})), "dropout_p: 0.25, compute 'fa2' allows 0");
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF16)), "q: dtype f16, compute 'fa2' allows f32");
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF32, {}, {.deterministic = true}, true)),
            "deterministic: true, compute 'fa2' allows false");
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF32, {.head_dim = 200, .head_dim_v = 200})),
            "q: head_dim 200, compute 'fa2' allows 1 to 128");
  EXPECT_EQ(lack("wgmma", MadeUp(DType::kF16, {.head_dim = 72, .head_dim_v = 72})),
            "q: head_dim 72, compute 'wgmma' allows 64, 128");
  EXPECT_EQ(lack("fa2", MadeUp(DType::kF32, {.head_dim_v = 32})), "v: head_dim 32, compute 'fa2' allows 64, that of q");
  EXPECT_THAT(
      lack("wgmma", MadeUp(DType::kF16, {}, {}, false, 0, 2)),
      testing::MatchesRegex("q: address 0x[0-9a-f]+ and strides \\([0-9, ]+\\) elements, compute 'wgmma' allows "
                            "multiples of 16 bytes"));
  EXPECT_EQ(lack("simt", MadeUp(DType::kF32, {}, {.bias = Tensor{.dtype = DType::kF64}})),
            "bias: dtype f64, compute 'simt' allows f32, f16, bf16");
  EXPECT_EQ(lack("simt", MadeUp(DType::kF32, {}, {.sinks = Tensor{.dtype = DType::kF64}})),
            "sinks: dtype f64, compute 'simt' allows f32, f16, bf16");
  MadeUp wide_dsinks(DType::kBF16, {}, {.sinks = Tensor{.dtype = DType::kF32}}, true);
  wide_dsinks.problem.dsinks->dtype = DType::kF64;
  for (const char* name : {"simt", "sm80_backward", "sm90_backward"}) {
    EXPECT_EQ(lack(name, wide_dsinks), std::string("dsinks: dtype f64, compute '") + name + "' allows f32, f16, bf16");
  }
  EXPECT_EQ(lack("wgmma", MadeUp(DType::kF16, {}, {}, true)), "compute: 'wgmma' has no backward");
  EXPECT_EQ(lack("simt", MadeUp(DType::kF16)), "nothing");
}

TEST(Family, OptionsOfTheTableAreRefusedWhereTheyAreNotTaken) {
  const Tensor given = {.dtype = DType::kF32};
  const std::pair<const char*, Params> cases[] = {{"softcap", {.softcap = 1}},
                                                  {"dropout_p", {.dropout_p = 0.5}},
                                                  {"window_left", {.window_left = 1}},
                                                  {"window_right", {.window_right = 1}},
                                                  {"alibi_slopes", {.alibi_slopes = given}},
                                                  {"bias", {.bias = given}},
                                                  {"mask", {.mask = given}},
                                                  {"sinks", {.sinks = given}}};
  std::set<std::string> seen = {"deterministic", "varlen",
                                "score function"};  // backward and packed tensors are tested in custom_score_test.cpp
  for (const auto& [name, params] : cases) {
    seen.insert(name);
    const MadeUp made(DType::kF32, {}, params);
    const auto lack = cuda::option_lack(made.problem, 0);
    ASSERT_TRUE(lack.has_value()) << name;
    EXPECT_STREQ(lack->argument, name);
    EXPECT_FALSE(cuda::option_lack(made.problem, cuda::option::kAll).has_value()) << name;
  }
  const std::uint64_t numbers[2] = {};
  MadeUp drawn(DType::kF32, {}, {.dropout_p = 0.5});
  drawn.problem.philox_state = numbers;
  const auto in_memory = cuda::option_lack(drawn.problem, cuda::option::kDropout);
  ASSERT_TRUE(in_memory.has_value());
  EXPECT_STREQ(in_memory->argument, "philox_state");
  EXPECT_FALSE(cuda::option_lack(drawn.problem, cuda::option::kAll).has_value());
  seen.insert("philox_state");
  const BlockMask causal = make_block_mask(MaskFunction("k <= q || k < 5"), {1, 1, 1000, 1000});
  const MadeUp masked(DType::kF32, {}, {.block_mask = &causal});
  const auto mask_lack = cuda::option_lack(masked.problem, cuda::option::kAll);
  ASSERT_TRUE(mask_lack.has_value());
  EXPECT_STREQ(mask_lack->argument, "block_mask");
  EXPECT_FALSE(cuda::option_lack(masked.problem, cuda::option::kAll | cuda::option::kBlockMask).has_value());
  seen.insert("block_mask");
  MadeUp with_gradient(DType::kF32, {}, {});
  with_gradient.problem.captured_gradients.push_back({0, given});
  const auto captures_lack = cuda::option_lack(with_gradient.problem, cuda::option::kAll | cuda::option::kCustomScore);
  ASSERT_TRUE(captures_lack.has_value());
  EXPECT_STREQ(captures_lack->argument, "captures");
  seen.insert("captures");
  for (const char* name : {"simt", "sm80_backward"}) {
    const auto lack = [&](const Tensor& gradient, bool deterministic) {
      MadeUp made(DType::kBF16, {}, {.deterministic = deterministic}, true);
      made.problem.captured_gradients.push_back({0, gradient});
      return cuda::find_family(name)->lack(made.problem, device("sm_90a", 132)).has_value();
    };
    const Tensor dense = {.dtype = DType::kF32, .shape = {2, 1, 3, 4}, .stride = {12, 7, 4, 1}};
    EXPECT_FALSE(lack(dense, false)) << name;
    EXPECT_TRUE(lack(dense, true)) << name << ": sums have no order";
    EXPECT_TRUE(lack({.dtype = DType::kF64, .shape = {4}, .stride = {1}}, false)) << name;
    EXPECT_TRUE(lack({.dtype = DType::kF32, .shape = {4}, .stride = {2}}, false)) << name;
  }
  MadeUp part(DType::kF32, {}, {.dropout_p = 0.5});
  part.problem.part = core::Part{.placement = core::Placement{}, .adds_to_outputs = true};
  for (const auto& [taken, name] : {std::pair{cuda::option::kAll, "alibi_slopes or dropout_p"},
                                    {cuda::option::kAll | cuda::option::kPart, "call"}}) {
    seen.insert(name);
    const auto lack = cuda::option_lack(part.problem, taken);
    ASSERT_TRUE(lack.has_value()) << name;
    EXPECT_STREQ(lack->argument, name);
  }
  EXPECT_FALSE(cuda::option_lack(part.problem, cuda::option::kAll | cuda::option::kRing).has_value());
  for (const cuda::Option& o : cuda::options())
    EXPECT_TRUE(seen.contains(o.argument)) << o.argument << " is not tested";
}

TEST(Family, AllButTheLadderTakeBlockMasks) {
  const BlockMask mask = make_block_mask(MaskFunction("k <= q || k < 5"), {1, 1, 1000, 1000});
  const auto is_rung = [](std::string_view name) {
    return std::ranges::any_of(cuda::ladder(), [name](const cuda::Rung& rung) { return name == rung.name; });
  };
  for (const cuda::Family* family : cuda::families()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const bool backward : {false, true}) {
        const MadeUp plain(dtype, {}, {}, backward), masked(dtype, {}, {.causal = true, .block_mask = &mask}, backward);
        for (const cuda::DeviceInfo& d : {device("sm_75", 40), device("sm_80", 108), device("sm_90a", 132)}) {
          if (!family->supports(d.arch()) || family->lack(plain.problem, d)) continue;
          const auto lack = family->lack(masked.problem, d);
          ASSERT_EQ(lack.has_value(), is_rung(family->name)) << family->name;
        }
      }
    }
  }
}

TEST(Family, TheLadderRefusesSinksAndOtherFamiliesTakeThemOfAnyType) {
  const auto made = [](DType dtype, DType sinks, bool backward) {
    return MadeUp(dtype, {}, {.sinks = Tensor{.dtype = sinks}}, backward);
  };
  const auto is_rung = [](std::string_view name) {
    return std::ranges::any_of(cuda::ladder(), [name](const cuda::Rung& rung) { return name == rung.name; });
  };
  const MadeUp f32(DType::kF32, {}, {.sinks = Tensor{.dtype = DType::kF32}});
  const MadeUp bf16 = made(DType::kBF16, DType::kBF16, false);
  for (const cuda::Rung& rung : cuda::ladder()) {
    const bool takes_f32 = std::ranges::count(rung.dtypes, DType::kF32) > 0;
    const auto lack = cuda::find_family(rung.name)->lack(takes_f32 ? f32.problem : bf16.problem, device("sm_90a", 132));
    ASSERT_TRUE(lack.has_value()) << rung.name;
    EXPECT_STREQ(lack->argument, "sinks") << rung.name;
  }
  for (const DType sinks : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const cuda::Family* family : cuda::families()) {
      if (is_rung(family->name)) continue;
      for (const bool backward : {false, true}) {
        if (backward ? !family->has_backward : !family->has_forward) continue;
        if (!family->dtypes.has(DType::kBF16) && !family->dtypes.has(DType::kF32)) continue;  // 8 bits: no options
        const DType dtype = family->dtypes.has(DType::kBF16) ? DType::kBF16 : DType::kF32;
        const bool is_wide = std::string_view(family->name) == "sm90_backward_panels";
        const Sizes sizes = is_wide ? Sizes{.head_dim = 512, .head_dim_v = 512} : Sizes{};
        const MadeUp problem(dtype, sizes, {.sinks = Tensor{.dtype = sinks}}, backward);
        EXPECT_FALSE(family->lack(problem.problem, device("sm_90a", 132)).has_value()) << family->name;
      }
    }
  }
}

/// The gradient of sinks adds two steps to backward, and a region at the end of the workspace. Without this gradient, a
/// backward pass with sinks equals one without sinks, because lse already includes the sinks.
TEST(Family, OnlyTheGradientOfSinksAddsToABackwardPass) {
  const cuda::DeviceInfo d = device("sm_90a", 132);
  const Sizes sizes = {.batch = 3, .heads = 8, .heads_kv = 2, .seqlen_q = 1000, .seqlen_k = 700};
  for (const char* name : {"simt", "sm80_backward", "sm90_backward"}) {
    SCOPED_TRACE(name);
    const cuda::Family& family = *cuda::find_family(name);
    const MadeUp plain(DType::kBF16, sizes, {}, true);
    const MadeUp with(DType::kBF16, sizes, {.sinks = Tensor{.dtype = DType::kF32}}, true);
    MadeUp without(DType::kBF16, sizes, {.sinks = Tensor{.dtype = DType::kF32}}, true);
    without.problem.dsinks.reset();
    const auto names = [&](const MadeUp& made) {
      std::vector<std::string> all;
      for (const cuda::KernelSpec& spec : family.kernels(family.choose(made.problem, d).variant, d.arch())) {
        all.push_back(cuda::identity(spec));
      }
      return all;
    };
    const auto bytes = [&](const MadeUp& made) {
      return family.workspace(made.problem, family.choose(made.problem, d)).bytes();
    };
    EXPECT_EQ(names(without), names(plain));
    EXPECT_EQ(bytes(without), bytes(plain));
    const cuda::Choice choice = family.choose(with.problem, d), of_plain = family.choose(plain.problem, d);
    ASSERT_EQ(choice.num_steps, of_plain.num_steps + 2);
    std::vector<std::string> first = names(with);
    first.resize(of_plain.num_steps);
    EXPECT_EQ(first, names(plain)) << "the loops know nothing of sinks";
    for (std::size_t i = 0; i < of_plain.num_steps; ++i) EXPECT_EQ(choice.steps[i].blocks, of_plain.steps[i].blocks);
    const std::int64_t parts = std::int64_t{3} * 8 * 16;  // each block handles 64 rows
    EXPECT_EQ(choice.steps[of_plain.num_steps].blocks, parts);
    EXPECT_EQ(choice.steps[of_plain.num_steps + 1].blocks, 8) << "one entry for all sequences";
    EXPECT_GE(bytes(with), bytes(plain) + static_cast<std::size_t>(parts) * sizeof(float));
    EXPECT_LT(bytes(with),
              bytes(plain) + static_cast<std::size_t>(parts) * sizeof(float) + 2 * cuda::Workspace::kAlignment);
    EXPECT_STREQ(family.kernels(choice.variant, d.arch()).back().name.c_str(), "row_logit_gradient");
  }
}

/// The tiles of a mask are numbered with int, so a mask with too many tiles is not supported.
TEST(Family, MasksOfTooManyTilesAreLacked) {
  constexpr std::int64_t kLong = std::int64_t{1} << 22;
  const Sizes sizes = {.batch = 1, .heads = 2, .heads_kv = 2, .seqlen_q = kLong, .seqlen_k = kLong};
  const cuda::DeviceInfo d = device("sm_90a", 132);
  for (const bool backward : {false, true}) {
    const cuda::Family& family = *cuda::find_family(backward ? "sm90_backward" : "sm90_forward");
    MadeUp made(DType::kBF16, sizes, {}, backward);
    EXPECT_FALSE(family.lack(made.problem, d));
    made.problem.mask =
        // 16 TB; the tensor has no memory
        Tensor{.dtype = DType::kBool, .shape = {1, 2, kLong, kLong}, .stride = {0, 0, kLong, 1}};
    const auto lack = family.lack(made.problem, d);
    ASSERT_TRUE(lack);
    EXPECT_STREQ(lack->tensor, "mask");
  }
}

TEST(Family, AnUnknownGpuIsLackedInOneLine) {
  const MadeUp made(DType::kF32, {}, {}, false, 1);
  EXPECT_EQ(dispatch::lack_of(*dispatch::find_backend("simt"), made.problem),
            "device: Fake GPU, compute capability 9.7, compute 'simt' allows GPUs with the instructions that it needs");
  EXPECT_THROW((void)dispatch::choose("auto", made.problem), Error);
}

/// A one-dimensional grid has at most 2^31 - 1 blocks. A call that needs more blocks must be refused before any of its
/// kernels starts.
TEST(Launch, OfMoreBlocksThanAGridHasIsRefused) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  int refused = 0;
  for (const bool backward : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t heads : {1, 2}) {
        const MadeUp made(dtype, {kMost, heads, heads, 1, 1, 8, 8}, {}, backward);
        for (const cuda::Family* family : cuda::families()) {
          const cuda::DeviceInfo& d = cuda::device_info(0);
          if (!family->supports(d.arch()) || (backward ? !family->has_backward : !family->has_forward)) continue;
          if (family->lack(made.problem, d)) continue;  // the family already refuses the problem
          const cuda::Choice choice = family->choose(made.problem, d);
          const auto steps = std::span(choice.steps).first(choice.num_steps);
          if (std::none_of(steps.begin(), steps.end(), [](const auto& step) { return step.blocks > kMost; })) continue;
          SCOPED_TRACE(family->name);
          ++refused;
          try {
            cuda::launch(*family, made.problem, choice, nullptr);
            ADD_FAILURE() << "nothing was refused";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
            EXPECT_THAT(error.what(),
                        AllOf(HasSubstr("q: 2147483647 sequences, 2 heads"), HasSubstr("4294967294 blocks"),
                              HasSubstr("allows 2^31 - 1"), HasSubstr(family->name)));
          }
        }
      }
    }
  }
  EXPECT_GE(refused, 4) << "simt and sm80, forward and backward";
}

TEST(Workspace, IsCountedAndLinearInTheTokens) {
  const auto bytes = [](std::int64_t seqlen, Params params) {
    const MadeUp made(DType::kBF16, {.seqlen_q = seqlen, .seqlen_k = seqlen}, std::move(params), true);
    const cuda::Family& simt = *cuda::find_family("simt");
    const auto workspace = simt.workspace(made.problem, simt.choose(made.problem, device("sm_90a", 132)));
    std::size_t sum = 0;
    for (std::size_t i = 0; i < workspace.regions().size(); ++i) {
      EXPECT_EQ(workspace.offset(i) % cuda::Workspace::kAlignment, 0U);
      sum += static_cast<std::size_t>(workspace.regions()[i].bytes);
    }
    EXPECT_GE(workspace.bytes(), sum);
    return workspace.bytes();
  };
  EXPECT_EQ(bytes(4096, {}), 2U * 8 * 4096 * 12);
  EXPECT_EQ(bytes(8192, {}), 2 * bytes(4096, {}));
  const core::Backend& simt = *dispatch::find_backend("simt");
  EXPECT_EQ(simt.workspace_bytes(MadeUp(DType::kF32).problem), 0U);
}

}  // namespace
}  // namespace attend::test
