// Tests index arithmetic beyond 2^31 and counts beyond 2^16 on a GPU. Covers strides, dense tensors, scratch memory,
// grids and dropout. Each test uses at most 12 GiB of GPU memory. If other processes hold too much memory, the test
// waits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "gpu/families.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/large_memory.hpp"
#include "support/compare.hpp"
#include "support/entries.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31, kTwo32 = std::int64_t{1} << 32;

class FarApart12GiB : public FamilyTest {};

constexpr const char* kDimensionNames[] = {"batch", "heads", "rows"};

/// A problem whose tensors have a very large stride in one dimension. The last elements of 16-bit tensors lie past
/// element offset 2^32, and those of lse and dlse past 2^31.
struct FarCase {
  AttentionCase problem;
  std::int64_t entries;  ///< size of the dimension with the large stride
  std::int64_t step;     ///< bytes between neighbouring entries of that dimension
};

FarCase far_case(std::size_t dimension) {
  AttentionCase c = plain(DType::kBF16, 3, 3, 70, 72, 64, false);
  c.batch = 3;
  c.deterministic = true;
  c.seed = 20 + dimension;
  if (dimension < 2) return {c, 3, kTwo32 + 8192};
  c.batch = 1, c.heads_q = c.heads_k = 2;
  c.seqlen_q = 150, c.seqlen_k = 160;
  return {c, 160, 2 * kTwo32 / 149 / 4096 * 4096 + 4096};
}

/// Runs a family on tensors with a very large stride in one dimension. Copies the results to dense tensors.
class FarCalls {
 public:
  FarCalls(const char* compute, const Inputs& in, const Outputs& want, const LargeMemory& memory, std::size_t dimension,
           const FarCase& far)
      : compute_(compute), in_(in), want_(want), far_(memory, dimension, far.step), params_(in.params(compute)) {}

  Outputs with_far_inputs() {
    const Outputs got = make_outputs(in_);
    const Tensor q = put(in_.q), k = put(in_.k), v = put(in_.v), lse_out = on_gpu(got.lse);
    if (in_.bias) params_.bias = put(*in_.bias);
    if (in_.mask) params_.mask = put(*in_.mask);
    if (has_forward(compute_)) forward(q, k, v, on_gpu(got.o), &lse_out, params_, stream_.get());
    if (has_backward(compute_)) {
      backward(put(in_.dout), q, k, v, put(want_.o), put(want_.lse), on_gpu(got.dq), on_gpu(got.dk), on_gpu(got.dv),
               params_, stream_.get());
    }
    return waited_for(got);
  }

  Outputs with_far_outputs() {
    const Outputs got = make_outputs(in_);
    if (in_.bias) params_.bias = on_gpu(*in_.bias);
    if (in_.mask) params_.mask = on_gpu(*in_.mask);
    const Tensor q = on_gpu(in_.q), k = on_gpu(in_.k), v = on_gpu(in_.v);
    if (has_forward(compute_)) {
      const Tensor o = put(got.o), lse = put(got.lse);  // outputs are NaN before the call
      forward(q, k, v, o, &lse, params_, stream_.get());
      copy_rows(o, on_gpu(got.o), stream_.get());
      copy_rows(lse, on_gpu(got.lse), stream_.get());
    }
    if (has_backward(compute_)) {
      const Tensor dq = put(got.dq), dk = put(got.dk), dv = put(got.dv);
      backward(on_gpu(in_.dout), q, k, v, on_gpu(want_.o), on_gpu(want_.lse), dq, dk, dv, params_, stream_.get());
      copy_rows(dq, on_gpu(got.dq), stream_.get());
      copy_rows(dk, on_gpu(got.dk), stream_.get());
      copy_rows(dv, on_gpu(got.dv), stream_.get());
    }
    return waited_for(got);
  }

 private:
  Tensor put(const TensorBuffer& from) {
    const Tensor to = far_.place(from);
    copy_rows(on_gpu(from), to, stream_.get());
    return to;
  }
  Outputs waited_for(const Outputs& got) {
    cuda::synchronize(stream_.get());
    return got;
  }

  std::string compute_;
  const Inputs& in_;
  const Outputs& want_;
  FarTensors far_;
  Params params_;
  cuda::OwnStream stream_;
};

void expect_same_of_its_passes(const char* compute, const Outputs& got, const Outputs& want) {
  if (has_forward(compute)) {
    expect_same_bits("o", got.o, want.o);
    expect_same_bits("lse", got.lse, want.lse);
  }
  if (!has_backward(compute)) return;
  expect_same_bits("dq", got.dq, want.dq);
  expect_same_bits("dk", got.dk, want.dk);
  expect_same_bits("dv", got.dv, want.dv);
}

/// Returns the problem without options, and once with each optional tensor that the family supports.
std::vector<AttentionCase> with_options(const char* compute, const AttentionCase& c) {
  std::vector<AttentionCase> cases = {c, c, c};
  cases[1].bias = Broadcast{};
  cases[1].dbias = false;
  cases[2].mask = Broadcast{};
  std::erase_if(cases, [&](const AttentionCase& one) { return !lack_of(compute, make_inputs(one)).empty(); });
  return cases;
}

/// Strides exceed 2^31 elements in the batch, head or row dimension, for every input and every output. The bits of the
/// results must equal those of dense tensors.
TEST_P(FarApart12GiB, TensorsGiveTheBitsOfDenseOnes) {
  const char* const compute = GetParam();
  for (const std::size_t dimension : {0, 1, 2}) {
    const FarCase far = far_case(dimension);
    const auto bytes = static_cast<std::size_t>((far.entries - 1) * far.step + FarTensors::kRoom);
    ASSERT_LE(bytes, std::size_t{12} << 30);
    if (const std::string why = memory_is_short(bytes); !why.empty()) GTEST_SKIP() << why;
    const std::vector<AttentionCase> cases = with_options(compute, far.problem);
    ASSERT_FALSE(cases.empty());
    const cuda::ContextGuard guard(0);
    const LargeMemory memory(bytes);
    for (const AttentionCase& c : cases) {
      SCOPED_TRACE(std::string(kDimensionNames[dimension]) + " " + describe(c));
      const Inputs in = make_inputs(c);
      const Outputs want = run(in, compute);
      expect_finite(compute, want);
      expect_same_of_its_passes(compute, FarCalls(compute, in, want, memory, dimension, far).with_far_inputs(), want);
      expect_same_of_its_passes(compute, FarCalls(compute, in, want, memory, dimension, far).with_far_outputs(), want);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FarApart12GiB, testing::ValuesIn(kFamilies), kFamilyName);

/// The number of batch entries, heads or packed sequences exceeds the limit of the grid's y and z dimensions.
class ManyEntries : public FamilyTest {};

constexpr std::int64_t kMany = 65537;

AttentionCase many_case(Many many) {
  AttentionCase c = plain(DType::kBF16, 1, 1, 2, 3, 8, false);
  c.seed = 30;
  if (many == Many::kBatch) c.batch = kMany;
  if (many == Many::kHeads) c.heads_q = c.heads_k = kMany;
  if (many == Many::kSequences) {
    c.varlen_q.assign(kMany, 2);
    c.varlen_k.assign(kMany, 3);
  }
  return c;
}

TEST_P(ManyEntries, Of65537AreEachAsIfAlone) {
  for (const Many many : {Many::kBatch, Many::kHeads, Many::kSequences}) {
    SCOPED_TRACE(static_cast<int>(many));
    const Inputs in = make_inputs(many_case(many));
    const Outputs all = run(in, GetParam());
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, kMany / 2, kMany - 2, kMany - 1}) {
      SCOPED_TRACE(n);
      const Inputs one = entry_of(in, many, n);
      compare_outputs(one, entry_of(all, one, many, n), KeptP::kFloat, has_backward(GetParam()));
    }
    expect_finite(GetParam(), all);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ManyEntries, testing::ValuesIn(kFamilies), kFamilyName);

/// In this batch, the float32 sums of dq have more than 2^31 elements. The sums are padded to full tiles of rows and
/// columns.
class ManySums12GiB : public FamilyTest {};

TEST_P(ManySums12GiB, OfDqAreEachTheirOwn) {
  // Number of different entries; not a power of two, so a wrapped offset reads a different entry.
  constexpr std::int64_t kRepeated = 7;
  const bool is_sm80 = std::string_view(GetParam()) == "sm80_backward";
  AttentionCase c = plain(DType::kBF16, is_sm80 ? 16 : 8, 1, 1, 4, is_sm80 ? 8 : 64, false);
  c.batch = kRepeated;
  c.seed = 31;
  const std::int64_t batch = is_sm80 ? kTwo31 / 256 / c.heads_q + 9 : kTwo31 / 4096 / c.heads_q + 9;
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, GetParam()), got = make_outputs(in);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const auto repeated = [&](const TensorBuffer& t) { return Repeated(t, batch, stream.get()); };
  const Repeated q = repeated(in.q), k = repeated(in.k), v = repeated(in.v), dout = repeated(in.dout);
  const Repeated o = repeated(want.o), lse = repeated(want.lse);
  // Outputs are NaN before the call.
  const Repeated dq = repeated(got.dq), dk = repeated(got.dk), dv = repeated(got.dv);
  Params params = in.params(GetParam());
  const std::size_t bytes = backward_workspace_bytes(dout.view(), q.view(), k.view(), v.view(), o.view(), lse.view(),
                                                     dq.view(), dk.view(), dv.view(), params);
  ASSERT_GT(bytes, static_cast<std::size_t>(4 * kTwo31)) << "the sums are fewer than 2^31: a larger batch is wanted";
  ASSERT_LT(bytes, std::size_t{11} << 30);
  if (const std::string why = memory_is_short(bytes); !why.empty()) GTEST_SKIP() << why;
  const LargeMemory workspace(bytes);
  params.workspace = {workspace.data(), bytes};
  backward(dout.view(), q.view(), k.view(), v.view(), o.view(), lse.view(), dq.view(), dk.view(), dv.view(), params,
           stream.get());
  EXPECT_EQ(dq.fetch_first(got.dq, stream.get()), 0) << "entries of dq that are not those of the first ones";
  EXPECT_EQ(dk.fetch_first(got.dk, stream.get()), 0);
  EXPECT_EQ(dv.fetch_first(got.dv, stream.get()), 0);
  compare_outputs(in, {want.o, want.lse, got.dq, got.dk, got.dv, {}}, is_sm80 ? KeptP::kFloat : KeptP::kRounded);
}

INSTANTIATE_TEST_SUITE_P(Families, ManySums12GiB, testing::Values("sm80_backward", "sm90_backward"), kFamilyName);

/// A tensor with more than 2^31 elements is used as k and as v.
class ManyKeys5GiB : public FamilyTest {};

constexpr std::int64_t kHeads = 32, kHeadDim = 128;
constexpr std::int64_t kNumKeys = kTwo31 / (kHeads * kHeadDim) + 160;

/// Rows of k that are not zero. These rows lie at both ends of the tensor, at byte offset 2^32 and at element offset
/// 2^31.
struct Marked {
  std::int64_t first;
  TensorBuffer rows;  // shape (1, kHeads, count, kHeadDim), with the strides of the full tensor
};

std::vector<Marked> marked_keys(cuda::StreamHandle stream, const Tensor& keys) {
  std::vector<Marked> marked;
  std::uint64_t number = 40;
  for (const auto& [first, count] : {std::pair{std::int64_t{0}, std::int64_t{40}},
                                     {kNumKeys / 2 - 10, 30},
                                     {kTwo31 / (kHeads * kHeadDim) - 30, 60},
                                     {kNumKeys - 70, 70}}) {
    AttentionCase c = plain(DType::kBF16, kHeads, kHeads, 1, count, kHeadDim, false);
    c.layout = CaseLayout::kBSHD;
    c.seed = ++number;
    marked.push_back({first, make_inputs(c).k});
    Tensor part = keys;
    part.shape[2] = count;
    part.data = static_cast<std::byte*>(keys.data) + first * keys.stride[2] * dtype_bytes(keys.dtype);
    copy_rows(on_gpu(marked.back().rows), part, stream);
  }
  return marked;
}

/// Expected result of a row. Each zero key adds 1 to the sum of exponentials and 0 to o.
struct Row {
  double lse;
  std::vector<double> o;
};

Row expected_row(const Inputs& in, const std::vector<Marked>& marked, std::int64_t head, std::int64_t i) {
  double zeros = double(kNumKeys), sum = 0;
  std::vector<double> o(kHeadDim, 0.0);
  for (const Marked& m : marked) {
    for (std::int64_t j = 0; j < m.rows.shape()[2]; ++j) {
      double score = 0;
      for (std::int64_t c = 0; c < kHeadDim; ++c) score += in.q.at(0, head, i, c) * m.rows.at(0, head, j, c);
      const double p = std::exp(score / std::sqrt(double(kHeadDim)));
      sum += p;
      zeros -= 1;
      for (std::int64_t c = 0; c < kHeadDim; ++c) o[static_cast<std::size_t>(c)] += p * m.rows.at(0, head, j, c);
    }
  }
  for (double& x : o) x /= sum + zeros;
  return {std::log(sum + zeros), o};
}

TEST_P(ManyKeys5GiB, OfOneTensorAreEachRead) {
  const std::size_t bytes = static_cast<std::size_t>(kNumKeys * kHeads * kHeadDim) * 2;
  ASSERT_GT(kNumKeys * kHeads * kHeadDim, kTwo31);
  if (const std::string why = memory_is_short(bytes); !why.empty()) GTEST_SKIP() << why;
  constexpr std::int64_t kRows = 3;
  Inputs in = make_inputs(plain(DType::kBF16, kHeads, kHeads, kRows, 1, kHeadDim, false));
  // The nonzero keys then outweigh half a million zero keys.
  in.q.generate([&](auto... at) { return 8 * in.q.at(at...); });
  const Outputs out = make_outputs(in);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const LargeMemory memory(bytes);
  cuda::check_call(
      cuda::driver().memset_async(reinterpret_cast<cuda::DevicePointer>(memory.data()), 0, bytes, stream.get()),
      "cuMemsetD8Async", "zeroing a test's keys");
  Tensor keys = Tensor::bshd(memory.data(), DType::kBF16, {1, kHeads, kNumKeys, kHeadDim});
  keys.device = on_gpu(in.q).device;
  const std::vector<Marked> marked = marked_keys(stream.get(), keys);
  const Tensor lse = on_gpu(out.lse);
  forward(on_gpu(in.q), keys, keys, on_gpu(out.o), &lse, in.params(GetParam()), stream.get());
  cuda::synchronize(stream.get());
  for (std::int64_t head = 0; head < kHeads; ++head) {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const Row want = expected_row(in, marked, head, i);
      ASSERT_NEAR(out.lse.at(0, head, i, 0), want.lse, 0.01) << head << " " << i;
      for (std::int64_t c = 0; c < kHeadDim; ++c) {
        const double x = want.o[static_cast<std::size_t>(c)];
        ASSERT_NEAR(out.o.at(0, head, i, c), x, 0.02 * std::max(1.0, std::abs(x))) << head << " " << i << " " << c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ManyKeys5GiB, testing::ValuesIn(kForwardFamilies), kFamilyName);

/// Dropout with row and key indices above 16 bits. Forward and backward must drop the same entries.
class LongDropout : public FamilyTest {};

std::vector<AttentionCase> long_dropout_cases() {
  constexpr std::int64_t kLong = 65800, kFew = 6;
  AttentionCase rows = plain(DType::kBF16, 2, 1, kLong, kFew, 8, false);
  rows.dropout_p = 0.4;
  AttentionCase keys = plain(DType::kBF16, 2, 1, kFew, kLong, 8, true);
  keys.dropout_p = 0.4;
  keys.window_left = 300;  // the visible keys have indices beyond 2^16
  return {rows, keys};
}

TEST_P(LongDropout, OfRowsAndKeysBeyond65536StaysInBudget) {
  for (const AttentionCase& c : long_dropout_cases()) check_backend(GetParam(), make_inputs(c));
}

INSTANTIATE_TEST_SUITE_P(Families, LongDropout, testing::ValuesIn(kFamilies), kFamilyName);

class AheadLarge : public FamilyTest {};

TEST_P(AheadLarge, CompilesWhatLargeIndicesNeed) {
  std::vector<AttentionCase> cases = long_dropout_cases();
  for (const std::size_t dimension : {0, 2}) {
    const std::vector<AttentionCase> more = with_options(GetParam(), far_case(dimension).problem);
    cases.insert(cases.end(), more.begin(), more.end());
  }
  compile_ahead(GetParam(), cases);
}

INSTANTIATE_TEST_SUITE_P(Ahead, AheadLarge, testing::ValuesIn(kFamilies), kFamilyName);

}  // namespace
}  // namespace attend::test
