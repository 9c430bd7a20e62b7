// Checks that every repeat gives the same bits, on every family that `auto` picks. Runs masks, packed sequences, and
// calls on another stream that change when blocks start. Also checks that the results of a batch entry do not depend on
// the other entries.
#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/families.hpp"
#include "gpu/forward_checks.hpp"
#include "support/entries.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

class Repeats : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(Families, Repeats, testing::ValuesIn(kFamilies), kFamilyName);

/// Returns cases with packed sequences, with a window, and with both. In each case several query heads share a key
/// head.
std::vector<AttentionCase> repeated_cases() {
  AttentionCase windowed = plain(DType::kBF16, 6, 2, 400, 500, 64, false);
  windowed.window_left = 150, windowed.window_right = 30;
  AttentionCase packed = plain(DType::kBF16, 6, 2, 0, 0, 128, true);
  packed.varlen_q = {200, 0, 3, 330, 65};
  packed.varlen_k = {65, 4, 200, 400, 64};
  std::vector<AttentionCase> cases = {windowed, packed, packed, packed};
  cases[2].window_left = 100;
  cases[2].sinks = cases[2].sinks_per_sequence = true;
  cases[3].head_dim = cases[3].head_dim_v = 192;
  for (AttentionCase& c : cases) c.deterministic = true;
  return cases;
}

/// Runs `rounds` groups of calls. The calls of a group are submitted without waiting. Compares each call with the first
/// one.
void check_rounds(const char* compute, const Inputs& in, const Outputs& first, int rounds) {
  constexpr int kUnderWay = 10;
  expect_finite(compute, first);
  std::vector<Outputs> again;
  for (int i = 0; i < kUnderWay; ++i) {
    again.push_back(make_outputs(in));
    if (!has_forward(compute)) again.back().o = first.o, again.back().lse = first.lse;
  }
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  for (int round = 0; round < rounds; round += kUnderWay) {
    for (const Outputs& out : again) submit_passes(compute, in, out, stream.get());
    cuda::synchronize(stream.get());
    for (const Outputs& out : again) {
      SCOPED_TRACE(round);
      expect_same_bits(out, first);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_P(Repeats, OfPackedSequencesAndWindowsAreBitEqual) {
  for (const AttentionCase& c : repeated_cases()) {
    SCOPED_TRACE(describe(c));
    const Inputs in = make_inputs(c);
    check_rounds(GetParam(), in, run(in, GetParam()), 30);
    if (HasFailure()) return;
  }
}

/// While this object lives, it runs calls of other sizes on another stream. Blocks of the tested call then start only
/// when these calls leave multiprocessors free.
class OtherWork {
 public:
  explicit OtherWork(const char* compute)
      : large_(make_inputs(plain(DType::kBF16, 16, 16, 1500, 1500, 128, false))),
        small_(make_inputs(plain(DType::kBF16, 3, 3, 70, 900, 64, true))),
        large_out_(run(large_, compute)),
        small_out_(run(small_, compute)),
        worker_([this, compute](const std::stop_token& stop) {
          const cuda::ContextGuard guard(0);
          const cuda::OwnStream stream;
          while (!stop.stop_requested()) {
            for (int i = 0; i < 5; ++i) {
              submit_passes(compute, large_, large_out_, stream.get());
              submit_passes(compute, small_, small_out_, stream.get());
              ++calls_;
            }
            cuda::synchronize(stream.get());
          }
        }) {}
  [[nodiscard]] int calls() const { return calls_; }

 private:
  Inputs large_, small_;
  Outputs large_out_, small_out_;
  std::atomic<int> calls_ = 0;
  std::jthread worker_;
};

TEST_P(Repeats, BesideOtherWorkAreBitEqual) {
  OtherWork other(GetParam());
  for (const AttentionCase& c : repeated_cases()) {
    SCOPED_TRACE(describe(c));
    const Inputs in = make_inputs(c);
    check_rounds(GetParam(), in, run(in, GetParam()), 30);
    if (HasFailure()) return;
  }
  EXPECT_GT(other.calls(), 0);
}

/// Compares the first and the last entry of a batch with a call on that entry alone. The tile size depends on the
/// number of blocks, so bits may differ, but the results must agree within the tolerance.
TEST_P(Repeats, OfAnEntryAloneGiveWhatItGivesInABatch) {
  AttentionCase c = plain(DType::kBF16, 1, 1, 200, 300, 64, true);
  c.batch = 300;
  c.deterministic = true;
  const Inputs in = make_inputs(c);
  const Outputs all = run(in, GetParam());
  for (const std::int64_t n : {std::int64_t{0}, c.batch - 1}) {
    SCOPED_TRACE(n);
    const Inputs one = entry_of(in, Many::kBatch, n);
    expect_finite(GetParam(), all);
    expect_near(entry_of(all, one, Many::kBatch, n), run(one, GetParam()), property_tolerance(c.dtype));
  }
}

class AheadRepeats : public FamilyTest {};

TEST_P(AheadRepeats, CompilesWhatRepeatsNeed) {
  compile_ahead(GetParam(), repeated_cases());
}

INSTANTIATE_TEST_SUITE_P(Ahead, AheadRepeats, testing::ValuesIn(kFamilies), kFamilyName);

}  // namespace
}  // namespace attend::test
