// Checks array contents that append refuses if ATTEND_CHECK=1. A refused call must not write anything. Each call runs
// in a separate process, because the library reads the variable only once.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "serving/append_case.hpp"

namespace attend::test {
namespace {

enum Exit { kDone = 0, kRefused = 3, kRefusedAndWrote = 4 };

using Change = std::function<void(AppendInputs&, AppendCall&)>;

/// Runs the call and exits. Prints the error message to stderr if the call is refused.
[[noreturn]] void append_checked(const char* value, const AppendCase& c, const Change& change) {
  ::setenv("ATTEND_CHECK", value, 1);
  AppendInputs in = make_append_inputs(c);
  AppendCall call = in.call();
  change(in, call);
  const auto pool = in.pool;
  const auto q_out = in.q_out.memory();
  try {
    append(call);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(in.pool == pool && in.q_out.memory() == q_out ? kRefused : kRefusedAndWrote);
  }
  std::_Exit(kDone);
}

AppendCase full_case(std::int64_t page_size) {
  AppendCase c = {.page_size = page_size, .rotary = RotaryKind::kHalves, .queries = QueryKind::kLikeKeys};
  c.batch_idx = true;
  return c;
}

struct CheckCase {
  const char* name;
  const char* message;  // regular expression for the error message
  AppendCase options;
  Change change;
};

/// Prints a parameter for GoogleTest.
void PrintTo(const CheckCase& c, std::ostream* out) {
  *out << c.name;
}

AppendCase with_slots(std::int64_t page_size) {
  AppendCase c = full_case(page_size);
  c.slots = true;
  c.positions = PositionSource::kPositions;
  return c;
}

AppendCase with_rotary_seqlens() {
  AppendCase c = full_case(0);
  c.positions = PositionSource::kRotarySeqlens;
  return c;
}

std::vector<CheckCase> check_cases() {
  return {
      {"Length", "^seqlens_k: entry 2 is 49, allowed at most the capacity, 48\n$", full_case(16),
       [](AppendInputs& in, AppendCall&) { in.seqlens_k[2] = 49; }},
      {"LengthOfNewKeys", "^seqlens_k: entry 2 is 44, and 5 new keys would end beyond the capacity, 48\n$",
       full_case(16), [](AppendInputs& in, AppendCall&) { in.seqlens_k[2] = 44; }},
      {"CacheRow", "^cache_batch_idx: entry 5 is 8, allowed 0 to 7\n$", full_case(0),
       [](AppendInputs& in, AppendCall&) { in.batch_idx[5] = 8; }},
      {"TableRow", "^cache_batch_idx: entry 0 is -1, allowed 0 to 7\n$", full_case(16),
       [](AppendInputs& in, AppendCall&) { in.batch_idx[0] = -1; }},
      {"Page", "^page_table: entry \\(3, 0\\) is -1, and sequence 0 gets keys there; allowed 0 to 26\n$", full_case(16),
       [](AppendInputs& in, AppendCall&) {
         in.batch_idx = {3, 0, 1, 2, 4, 5};
         in.pages[3 * 4] = -1;
       }},
      {"PageBeyond", "^page_table: entry \\(3, 0\\) is 27, and sequence 0 gets keys there; allowed 0 to 26\n$",
       full_case(16),
       [](AppendInputs& in, AppendCall&) {
         in.batch_idx = {3, 0, 1, 2, 4, 5};
         in.pages[3 * 4] = 27;
       }},
      {"Slot", "^slot_mapping: entry 7 is 432, allowed up to 431, or negative\n$", with_slots(16),
       [](AppendInputs& in, AppendCall&) { in.slots[7] = 27 * 16; }},
      {"SlotTwice",
       "^slot_mapping: new rows 4 and 9 are both written to row 3 of cache row 0, allowed separate places\n$",
       with_slots(0), [](AppendInputs& in, AppendCall&) { in.slots[4] = in.slots[9] = 3; }},
      {"PageTwice",
       "^page_table: new rows 0 and 5 are both written to row 0 of page [0-9]+, allowed separate places\n$",
       full_case(16),
       [](AppendInputs& in, AppendCall&) {
         in.seqlens_k = {0, 0, 20, 20, 20, 20};
         in.pages[in.batch_idx[0] * 4] = in.pages[in.batch_idx[1] * 4];
       }},
      {"RowTwice",
       "^cache_batch_idx: new rows 0 and 5 are both written to row 0 of cache row 1, allowed separate places\n$",
       full_case(0),
       [](AppendInputs& in, AppendCall&) {
         in.seqlens_k[1] = 0;
         in.batch_idx = {1, 1, 2, 3, 4, 5};
       }},
      {"Position", "^positions: entry 11 is 80, allowed 0 to 79\n$", with_slots(16),
       [](AppendInputs& in, AppendCall&) { in.positions[11] = 80; }},
      {"PositionOfLength", "^seqlens_k: entry 3 gives a row the position 23, allowed 0 to 22\n$", full_case(0),
       [](AppendInputs& in, AppendCall& call) {
         in.seqlens_k = {0, 0, 0, 19, 0, 0};
         call.rotary->cos.shape[2] = call.rotary->sin.shape[2] = 23;
       }},
      {"PositionOfRotarySeqlens", "^rotary.seqlens: entry 1 gives a row the position -3, allowed 0 to 79\n$",
       with_rotary_seqlens(), [](AppendInputs& in, AppendCall&) { in.rotary_seqlens[1] = -3; }},
      {"PositionOfQuery", "^seqlens_k: entry 0 gives a row the position -2, allowed 0 to 79\n$",
       [] {
         AppendCase c = full_case(0);
         c.queries = QueryKind::kMoreLast;
         return c;
       }(),
       [](AppendInputs&, AppendCall&) {}},
  };
}

class AppendCheckDeathTest : public testing::TestWithParam<CheckCase> {
 protected:
  // This process has already read the variable, and a forked process would inherit its value. The style "threadsafe"
  // starts a new process.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(AppendCheckDeathTest, IsRefusedWithTheVariableOnly) {
  const CheckCase& c = GetParam();
  EXPECT_EXIT(append_checked("1", c.options, c.change), testing::ExitedWithCode(kRefused), c.message);
  EXPECT_EXIT(append_checked("0", c.options, c.change), testing::ExitedWithCode(kDone), "^$");
}

INSTANTIATE_TEST_SUITE_P(Serving, AppendCheckDeathTest, testing::ValuesIn(check_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(AppendCheckDeathTest, WhatIsToBeSkippedIsNoFault) {
  EXPECT_EXIT(append_checked("1", with_slots(16),
                             [](AppendInputs& in, AppendCall&) {
                               // No new row is written, so only the positions of q are checked.
                               in.slots[0] = in.slots[1] = -1;
                             }),
              testing::ExitedWithCode(kDone), "^$");
  EXPECT_EXIT(append_checked("1", full_case(16),
                             [](AppendInputs& in, AppendCall&) {
                               // A negative length makes the sequence dead, so its entries are not checked.
                               in.seqlens_k[2] = -1;
                               in.batch_idx[2] = -9;
                             }),
              testing::ExitedWithCode(kDone), "^$");
  EXPECT_EXIT(append_checked("maybe", full_case(0), [](AppendInputs&, AppendCall&) {}),
              testing::ExitedWithCode(kRefused), "^ATTEND_CHECK: 'maybe', allowed: 0, 1\n$");
}

/// Tests a single call for append and decode. The pages of the new keys must be checked before anything is written.
[[noreturn]] void decode_checked() {
  ::setenv("ATTEND_CHECK", "1", 1);
  AppendInputs in = make_append_inputs({.page_size = 16});
  AppendCall call = in.call();
  in.seqlens_k = {20, 20, 20, 20, 20, 20};
  in.pages[4 * 4] = -1;  // page with the existing keys of sequence 4
  Shape shape = in.q.shape();
  shape[3] = in.options.head_dim_v;
  const TensorBuffer o(DType::kF32, shape);
  const auto pool = in.pool;
  try {
    decode(call, {.q = in.q.view(), .k_cache = in.k_cache, .v_cache = in.v_cache, .o = o.view(), .cache = call.cache});
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(in.pool == pool ? kRefused : kRefusedAndWrote);
  }
  std::_Exit(kDone);
}

TEST_F(AppendCheckDeathTest, DecodeIsCheckedBeforeAppendWrites) {
  EXPECT_EXIT(decode_checked(), testing::ExitedWithCode(kRefused),
              "^page_table: entry \\(4, 0\\) is -1, and sequence 4 has keys there; allowed 0 to 26\n$");
}

}  // namespace
}  // namespace attend::test
