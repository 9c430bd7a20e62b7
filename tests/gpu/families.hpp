// The families of kernels that auto takes for bfloat16 on Hopper, as the parameter of tests that each has to pass.
#pragma once

#include <string>

#include "gpu/gpu.hpp"

namespace attend::test {

inline constexpr const char* kFamilies[] = {"simt", "sm80_forward", "sm80_backward", "sm90_forward", "sm90_backward"};
inline constexpr const char* kForwardFamilies[] = {"simt", "sm80_forward", "sm90_forward"};
inline constexpr const char* kBackwardFamilies[] = {"simt", "sm80_backward", "sm90_backward"};

/// The parameter is a family's name; skips where the GPU has not its instructions.
class FamilyTest : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override;
};

/// For INSTANTIATE_TEST_SUITE_P.
inline const auto kFamilyName = [](const auto& test) { return std::string(test.param); };

/// Has the family a forward of its own? Else its tests take o and lse from the one that auto chooses.
[[nodiscard]] bool has_forward(std::string_view compute);

/// What the family lacks for the case in the passes that it has, empty if nothing. Asks the library itself.
[[nodiscard]] std::string lack_of(std::string_view compute, const Inputs& in, const ScoreFunction* score = nullptr);

/// The calls of the passes that the family has, with its outputs, on a stream and not waited for; o and lse are read
/// where it has no forward. The workspaces, if given, are those of the two calls; device: which GPU.
struct Workspaces {
  WorkspaceView forward, backward;
};
void submit_passes(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream,
                   const Workspaces& workspaces = {}, int device = 0);

/// Fails where an output of the family's passes is NaN or infinite, but for an lse of -inf: bits that are compared are
/// numbers.
void expect_finite(std::string_view compute, const Outputs& out);

/// Bytes that they take.
[[nodiscard]] std::pair<std::size_t, std::size_t> workspace_bytes(std::string_view compute, const Inputs& in,
                                                                  const Outputs& out);

}  // namespace attend::test
