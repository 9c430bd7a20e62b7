// The kernel families that `auto` picks for bfloat16 on Hopper, as the parameter of tests that each family must pass.
#pragma once

#include <string>

#include "gpu/gpu.hpp"

namespace attend::test {

inline constexpr const char* kFamilies[] = {"simt", "sm80_forward", "sm80_backward", "sm90_forward", "sm90_backward"};
inline constexpr const char* kForwardFamilies[] = {"simt", "sm80_forward", "sm90_forward"};
inline constexpr const char* kBackwardFamilies[] = {"simt", "sm80_backward", "sm90_backward"};

/// The parameter is a family's name. Skips the test if the GPU does not have the family's instructions.
class FamilyTest : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override;
};

/// Names the instances in INSTANTIATE_TEST_SUITE_P.
inline const auto kFamilyName = [](const auto& test) { return std::string(test.param); };

/// Returns whether the family has a forward. If not, its tests use o and lse of the forward that `auto` picks.
[[nodiscard]] bool has_forward(std::string_view compute);

/// Returns the library's reason why the family cannot run the case in the passes that it has. Empty if it can.
[[nodiscard]] std::string lack_of(std::string_view compute, const Inputs& in, const ScoreFunction* score = nullptr);

/// Workspaces of the two calls of submit_passes(). That function submits the passes that the family has to a stream and
/// does not wait for them. If the family has no forward, o and lse in `out` are inputs. `device` is the GPU.
struct Workspaces {
  WorkspaceView forward, backward;
};
void submit_passes(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream,
                   const Workspaces& workspaces = {}, int device = 0);

/// Fails if an output of the family's passes is NaN or infinite, except an lse of -inf. Bitwise comparisons then
/// compare numbers.
void expect_finite(std::string_view compute, const Outputs& out);

/// Returns the workspace sizes in bytes of forward and backward.
[[nodiscard]] std::pair<std::size_t, std::size_t> workspace_bytes(std::string_view compute, const Inputs& in,
                                                                  const Outputs& out);

}  // namespace attend::test
