// Tests the backend names that other projects use. Each name maps to one backend.
#include "core/aliases.hpp"

#include <gtest/gtest.h>

#include "dispatch/dispatch.hpp"

namespace attend::test {
namespace {

TEST(Aliases, LeadToABackendAndHideNone) {
  for (const core::Alias& alias : core::aliases()) {
    const core::Backend* backend = dispatch::find_backend(alias.name);
    ASSERT_NE(backend, nullptr) << alias.name;
    EXPECT_EQ(backend->name, alias.stands_for);
    for (const core::Backend* other : dispatch::all_backends()) EXPECT_NE(other->name, alias.name);
  }
  EXPECT_STREQ(dispatch::find_backend("kernel-mma-qreg_async")->name, "mma_qreg_async");
  EXPECT_EQ(dispatch::find_backend("kernel_mma_qreg_asynk"), nullptr);
  EXPECT_EQ(dispatch::find_backend(""), nullptr);
}

}  // namespace
}  // namespace attend::test
