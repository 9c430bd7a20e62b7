// Tests NaN and infinities in half precision on every kernel family that `auto` may pick.
//
// include/attend/attention.hpp promises that some keys never affect a row's outputs: keys beyond the sequence length,
// keys of another head or sequence, and keys in tiles that the row's tile does not load. A NaN in a key that the row
// sees always reaches its outputs. Tensor-core kernels may also let a NaN spread from a key that another row of the
// same tile sees, so these tests allow it. simt must also pass the stricter checks of support/nonfinite_checks.hpp.
#include <cmath>
#include <limits>

#include "dispatch/dispatch.hpp"
#include "gpu/gpu.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Upper bound of the number of rows and of keys in any kernel's tile.
constexpr std::int64_t kLargestTile = 256;

constexpr DeviceType kDevice = DeviceType::kCUDA;

std::vector<std::string> half_families() {
  std::vector<std::string> names;
  for (const core::Backend* backend : dispatch::all_backends()) {
    const bool takes_halves = backend->dtypes.has(DType::kF16) || backend->dtypes.has(DType::kBF16);
    if (backend->device == kDevice && backend->in_auto && takes_halves) names.emplace_back(backend->name);
  }
  return names;
}

bool lacks_nothing(const core::Backend& backend, core::Problem problem) {
  problem.q.device = {kDevice, 0};
  return !dispatch::lack_of(backend, problem);
}

/// Runs the family and returns its outputs, or nothing if it does not support the case. If the family supports only the
/// forward, the gradients are 0. If it has only a backward, o and lse come from the family that `auto` picks.
std::optional<Outputs> run_if_supported(const Inputs& in, const std::string& compute) {
  const core::Backend& backend = *dispatch::find_backend(compute);
  Outputs out = make_outputs(in);
  const Tensor& lse = out.lse.view();
  const bool has_forward =
      backend.forward && lacks_nothing(backend, core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(),
                                                                           out.o.view(), &lse, in.params(compute)));
  const bool has_gradients = lacks_nothing(
      backend, core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), lse,
                                           out.dq.view(), out.dk.view(), out.dv.view(), in.params(compute), {}));
  if (!(backend.forward ? has_forward : has_gradients)) return std::nullopt;
  run_forward(in, out, compute);
  if (has_gradients) {
    run_backward(in, out, compute);
  } else {
    for (const TensorBuffer* t : {&out.dq, &out.dk, &out.dv}) t->fill(0);
  }
  return out;
}

using Place = std::function<bool(std::int64_t batch, std::int64_t head, std::int64_t row)>;

/// Expects the values of `clean` wherever may_change is false. Returns the number of non-finite values in all other
/// places.
std::int64_t expect_unchanged(const char* name, const TensorBuffer& got, const TensorBuffer& clean,
                              const Place& may_change) {
  const double allowed = property_tolerance(got.dtype()) * std::max(1.0, largest_magnitude(clean.values()));
  std::int64_t wrong = 0, reached = 0;
  const Shape& shape = got.shape();
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t row = 0; row < shape[2]; ++row) {
        for (std::int64_t col = 0; col < shape[3]; ++col) {
          const double x = got.at(b, h, row, col), y = clean.at(b, h, row, col);
          if (may_change(b, h, row)) {
            reached += std::isfinite(x) ? 0 : 1;
          } else if (!(x == y || std::abs(x - y) <= allowed) && ++wrong <= 3) {
            ADD_FAILURE() << name << " (" << b << ", " << h << ", " << row << ", " << col << "): " << x << ", clean "
                          << y << ", allowed " << allowed;
          }
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0) << name;
  return reached;
}

/// Places of non-finite inputs, and the outputs that they may change.
struct Poisoned {
  const char* name;
  AttentionCase problem;
  Place keys;                ///< poisoned rows of k and v, indexed by key head
  Place queries;             ///< poisoned rows of q and dout, indexed by query head
  Place may_change_queries;  ///< rows of o, lse and dq that may change
  Place may_change_keys;     ///< rows of dk and dv that may change
};

void poison(const TensorBuffer& t, const Place& where, double value) {
  t.generate([&](auto b, auto h, auto row, auto col) { return where(b, h, row) ? value : t.at(b, h, row, col); });
}

void check_stays_away(const Poisoned& poisoned, const std::string& compute, bool& was_checked) {
  SCOPED_TRACE(poisoned.name);
  const Inputs clean_in = make_inputs(poisoned.problem);
  const std::optional<Outputs> clean = run_if_supported(clean_in, compute);
  if (!clean) return;
  was_checked = true;
  for (const double value : {kNaN, kInf, -kInf}) {
    SCOPED_TRACE(value);
    const Inputs in = make_inputs(poisoned.problem);
    for (const TensorBuffer* t : {&in.k, &in.v}) poison(*t, poisoned.keys, value);
    for (const TensorBuffer* t : {&in.q, &in.dout}) poison(*t, poisoned.queries, value);
    const std::optional<Outputs> out = run_if_supported(in, compute);
    ASSERT_TRUE(out);
    EXPECT_GT(expect_unchanged("o", out->o, clean->o, poisoned.may_change_queries), 0) << "the poison went nowhere";
    expect_unchanged("lse", out->lse, clean->lse, poisoned.may_change_queries);
    expect_unchanged("dq", out->dq, clean->dq, poisoned.may_change_queries);
    expect_unchanged("dk", out->dk, clean->dk, poisoned.may_change_keys);
    expect_unchanged("dv", out->dv, clean->dv, poisoned.may_change_keys);
  }
}

const Place kNowhere = [](auto...) { return false; };
const Place kEverywhere = [](auto...) { return true; };

Place rows_between(std::int64_t begin, std::int64_t end) {
  return [=](auto, auto, std::int64_t row) { return begin <= row && row < end; };
}

/// Poisons one head in the middle. The last key of the previous head is in a partial tile. The memory after it holds
/// the first key of the poisoned head.
Poisoned next_head(AttentionCase problem) {
  problem.batch = 2, problem.heads_q = 4, problem.heads_k = 2, problem.seqlen_q = 200, problem.seqlen_k = 131;
  const Place key_head = [](auto b, auto h, auto) { return b == 0 && h == 1; };
  const Place its_queries = [](auto b, auto h, auto) { return b == 0 && h / 2 == 1; };
  return {"NextHead", problem, key_head, its_queries, its_queries, key_head};
}

/// Poisons one packed sequence between two others.
Poisoned next_sequence(AttentionCase problem) {
  problem.heads_q = problem.heads_k = 2;
  problem.varlen_q = {70, 129, 40}, problem.varlen_k = {65, 131, 40};
  const Place its_keys = rows_between(65, 196), its_queries = rows_between(70, 199);
  return {"NextSequence", problem, its_keys, its_queries, its_queries, its_keys};
}

/// Poisons keys that only late rows see. For an early row, the last loaded tile ends less than two tiles after the row.
Poisoned late_keys(AttentionCase problem) {
  constexpr std::int64_t kLength = 1536, kFirst = 1280;
  problem.seqlen_q = problem.seqlen_k = kLength, problem.causal = true;
  return {
      "LateKeys", problem, rows_between(kFirst, kLength), kNowhere, rows_between(kFirst - 2 * kLargestTile, kLength),
      kEverywhere};
}

/// Poisons keys before and after the window.
Poisoned outside_the_window(AttentionCase problem) {
  constexpr std::int64_t kLength = 1536, kBegin = 700, kEnd = 710, kWindow = 100;
  problem.seqlen_q = problem.seqlen_k = kLength, problem.window_left = kWindow, problem.window_right = 0;
  return {"OutsideTheWindow",
          problem,
          rows_between(kBegin, kEnd),
          kNowhere,
          rows_between(kBegin - 2 * kLargestTile, kEnd + kWindow + 2 * kLargestTile),
          kEverywhere};
}

class HalfNonFinite : public GpuTest, public testing::WithParamInterface<std::tuple<std::string, DType>> {
 protected:
  /// Fails if a family supported no case, because it was then not checked. Families for other GPUs are exempt.
  void expect_checked() const {
    if (was_checked_) return;
    AttentionCase plain = problem(64);
    plain.seqlen_q = plain.seqlen_k = 64;
    const Inputs in = make_inputs(plain);
    const Outputs out = make_outputs(in);
    core::Problem p =
        core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(),
                                    out.dq.view(), out.dk.view(), out.dv.view(), in.params(compute()), {});
    if (dispatch::find_backend(compute())->forward) {
      p = core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), nullptr,
                                     in.params(compute()));
    }
    p.q.device = {kDevice, 0};
    const std::string lack = dispatch::lack_of(*dispatch::find_backend(compute()), p).value_or("none of the cases");
    EXPECT_NE(lack.find("device: "), std::string::npos) << compute() << " went unchecked: " << lack;
  }
  [[nodiscard]] std::string compute() const { return std::get<0>(GetParam()); }
  [[nodiscard]] AttentionCase problem(std::int64_t head_dim) const {
    return {.dtype = std::get<1>(GetParam()), .head_dim = head_dim, .head_dim_v = head_dim, .seed = 77};
  }
  bool was_checked_ = false;
};

TEST_P(HalfNonFinite, KeysBeyondALengthReachNothing) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      AttentionCase base = problem(head_dim);
      base.causal = causal;
      check_stays_away(next_head(base), compute(), was_checked_);
      check_stays_away(next_sequence(base), compute(), was_checked_);
    }
  }
  expect_checked();
}

TEST_P(HalfNonFinite, KeysThatNoTileOfARowLoadsReachNothing) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    check_stays_away(late_keys(problem(head_dim)), compute(), was_checked_);
    check_stays_away(outside_the_window(problem(head_dim)), compute(), was_checked_);
  }
  expect_checked();
}

/// Returns whether a row sees key 150. The mask is causal with 200 rows and 261 keys.
bool sees_the_key(std::int64_t row) {
  return 150 <= row + 61;
}

AttentionCase causal_case(AttentionCase problem) {
  problem.heads_q = 2, problem.seqlen_q = 200, problem.seqlen_k = 261, problem.causal = true;
  return problem;
}

TEST_P(HalfNonFinite, ANaNReachesEveryRowThatSeesIt) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    Inputs in = make_inputs(causal_case(problem(head_dim)));
    const std::optional<Outputs> clean = run_if_supported(in, compute());
    if (!clean) continue;
    was_checked_ = true;
    in.k.set(0, 0, 150, 3, kNaN);
    const Outputs by_key = *run_if_supported(in, compute());
    in = make_inputs(in.options);
    in.v.set(0, 0, 150, 5, kNaN);
    const Outputs by_value = *run_if_supported(in, compute());
    for (std::int64_t row = 0; row < 200; ++row) {
      for (std::int64_t head = 0; head < 2; ++head) {
        if (!sees_the_key(row)) continue;
        ASSERT_TRUE(std::isnan(by_key.lse.at(0, head, row, 0))) << row;
        for (std::int64_t col = 0; col < head_dim; ++col)
          ASSERT_TRUE(std::isnan(by_key.o.at(0, head, row, col))) << row;
        ASSERT_TRUE(std::isnan(by_value.o.at(0, head, row, 5))) << row;
      }
    }
    expect_near("lse", by_value.lse.values(), clean->lse.values(), property_tolerance(DType::kF32));
    const auto other_columns = [&](const TensorBuffer& o) {
      return made(o.dtype(), o.shape(),
                  [&](auto b, auto h, auto row, auto col) { return col == 5 ? 0.0 : o.at(b, h, row, col); });
    };
    expect_near("o of other columns", other_columns(by_value.o).values(), other_columns(clean->o).values(),
                property_tolerance(by_value.o.dtype()));
  }
  expect_checked();
}

TEST_P(HalfNonFinite, AQueryReachesItsRowAlone) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    const Inputs in = make_inputs(causal_case(problem(head_dim)));
    const std::optional<Outputs> clean = run_if_supported(in, compute());
    if (!clean) continue;
    was_checked_ = true;
    in.q.set(0, 1, 10, 0, kNaN);
    const Outputs out = *run_if_supported(in, compute());
    const Place its_row = [](auto, auto h, auto row) { return h == 1 && row == 10; };
    EXPECT_EQ(expect_unchanged("o", out.o, clean->o, its_row), head_dim);
    EXPECT_EQ(expect_unchanged("lse", out.lse, clean->lse, its_row), 1);
  }
  expect_checked();
}

INSTANTIATE_TEST_SUITE_P(Families, HalfNonFinite,
                         testing::Combine(testing::ValuesIn(half_families()),
                                          testing::Values(DType::kF16, DType::kBF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + dtype_name(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace attend::test
