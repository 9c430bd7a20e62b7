// Tests how the emulator translates asm statements to function calls.
#include <gtest/gtest.h>

#include <string>

#include "emulator/program_text.hpp"

namespace attend::test {
namespace {

constexpr const char* kKnown =
    "inline void ptx_cvt_f32_f16(float& to, unsigned short x) {\n"
    "inline void ptx_st_relaxed_gpu_global_b128(void* to) {\n"
    "inline void ptx_cp_async_commit_group() {\n";

TEST(WithoutAsm, ResultsThenOperands) {
  EXPECT_EQ(without_asm("  asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(value) : \"h\"(bits[f(1)]));\n", kKnown),
            "  ptx_cvt_f32_f16(value, bits[f(1)]);\n");
}

TEST(WithoutAsm, ClobbersAndEmptyListsGo) {
  EXPECT_EQ(without_asm(" asm volatile(\"cp.async.commit_group;\" ::: \"memory\");", kKnown),
            " ptx_cp_async_commit_group();");
}

TEST(WithoutAsm, DeclarationsAndMovesAreNoInstruction) {
  const std::string text =
      " asm volatile(\n    \"{\\n.reg .b128 packet;\\nmov.b128 packet, {%1, %2};\\n\"\n#if 1\n"
      "    \"st.relaxed.gpu.global.b128 [%0], packet;\\n}\\n\"\n#endif\n    ::\"l\"(to) : \"memory\");";
  EXPECT_EQ(without_asm(text, kKnown), " ptx_st_relaxed_gpu_global_b128(to);");
}

TEST(WithoutAsm, UnknownInstructionsEndTheProgram) {
  EXPECT_EQ(without_asm(" asm(\"dp4a.s32.s32 %0, %1, %2, %3;\" : \"=r\"(d) : \"r\"(a), \"r\"(b), \"r\"(c));", kKnown),
            " ::emulated::unsupported(\"ptx_dp4a_s32_s32\");");
}

TEST(WithoutAsm, OtherWordsStay) {
  const std::string text = "// plasma(x) and asmodeus\nint asm_of(int);\n";
  EXPECT_EQ(without_asm(text, kKnown), text);
}

}  // namespace
}  // namespace attend::test
