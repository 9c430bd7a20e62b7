// Tests that each kernel family must pass have the family as their parameter. The families are those that `auto` picks
// for bfloat16 on Hopper.
#pragma once

#include <string>

#include "gpu/gpu.hpp"

namespace attend::test {

inline constexpr const char* kFamilies[] = {"simt", "sm80_forward", "sm80_backward", "sm90_forward", "sm90_backward"};
inline constexpr const char* kForwardFamilies[] = {"simt", "sm80_forward", "sm90_forward"};
inline constexpr const char* kBackwardFamilies[] = {"simt", "sm80_backward", "sm90_backward"};

/// The parameter is the name of a family. Skips the test if the GPU does not support the family's instructions.
class FamilyTest : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override;
};

/// Names the test instances in INSTANTIATE_TEST_SUITE_P after their families.
inline const auto kFamilyName = [](const auto& test) { return std::string(test.param); };

/// Returns whether the family has a forward. If not, its tests use o and lse from the forward that `auto` picks.
[[nodiscard]] bool has_forward(std::string_view compute);

/// Returns the reason, reported by the library, why the family cannot run the forward or backward of the case. Returns
/// "" if it can.
[[nodiscard]] std::string lack_of(std::string_view compute, const Inputs& in, const ScoreFunction* score = nullptr);

/// Workspaces for submit_passes(), which submits the family's forward and backward to a stream without waiting. If the
/// family has no forward, o and lse in `out` are inputs. `device` is the number of the GPU.
struct Workspaces {
  WorkspaceView forward, backward;
};
void submit_passes(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream,
                   const Workspaces& workspaces = {}, int device = 0);

/// Fails if an output of the family is NaN or infinite. An lse of -inf is allowed. Without this check, bitwise
/// comparisons could pass on outputs that are all NaN.
void expect_finite(std::string_view compute, const Outputs& out);

/// Returns the workspace sizes in bytes of forward and backward.
[[nodiscard]] std::pair<std::size_t, std::size_t> workspace_bytes(std::string_view compute, const Inputs& in,
                                                                  const Outputs& out);

}  // namespace attend::test
