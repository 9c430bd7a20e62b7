// Tests index arithmetic beyond 2^31 and counts beyond 2^16. At these sizes, 32-bit products and grid limits have
// broken other implementations.
//
// Tensors with strides of gigabytes need little memory here. The buffers of these tensors are reserved address space,
// of which the test touches only a few pages.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <memory>

#include "support/entries.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

// In elements; one stride exceeds int32, and two exceed uint32.
constexpr std::int64_t kFarApart = (std::int64_t{1} << 31) + 4096;

/// Reserved address space for one tensor with huge strides. Memory that is not written reads as zero.
class SparseTensor {
 public:
  SparseTensor(DType dtype, const Shape& shape, const Shape& stride) {
    std::int64_t last = 1;
    for (std::size_t d = 0; d < 4; ++d) last += (shape[d] - 1) * stride[d];
    bytes_ = static_cast<std::size_t>(last * dtype_bytes(dtype));
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    view_ = {memory_ == MAP_FAILED ? nullptr : memory_, dtype, {}, shape, stride};
  }
  ~SparseTensor() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  SparseTensor(const SparseTensor&) = delete;
  SparseTensor& operator=(const SparseTensor&) = delete;

  [[nodiscard]] bool ok() const { return memory_ != MAP_FAILED; }
  [[nodiscard]] const Tensor& view() const { return view_; }

  /// Copy between the sparse tensor and a dense tensor of the same shape and dtype, for every element size.
  void load(const TensorBuffer& from) const { copy(from.view(), view_); }
  void store(const TensorBuffer& to) const { copy(view_, to.view()); }

 private:
  static void copy(const Tensor& from, const Tensor& to) {
    const std::int64_t size = dtype_bytes(from.dtype);
    const auto at = [size](const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t row) {
      return static_cast<char*>(t.data) + (b * t.stride[0] + h * t.stride[1] + row * t.stride[2]) * size;
    };
    for (std::int64_t b = 0; b < from.shape[0]; ++b) {
      for (std::int64_t h = 0; h < from.shape[1]; ++h) {
        for (std::int64_t row = 0; row < from.shape[2]; ++row) {
          std::copy_n(at(from, b, h, row), from.shape[3] * size, at(to, b, h, row));
        }
      }
    }
  }

  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  Tensor view_ = {};
};

/// Returns dense strides in which the stride of dimension d is replaced by `kFarApart`.
Shape far_strides(const Shape& shape, std::size_t d) {
  Shape stride = contiguous_strides(shape);
  if (shape[d] > 1) stride[d] = kFarApart;
  return stride;
}

class HugeStride : public testing::TestWithParam<std::tuple<std::size_t, DType>> {};

// Every tensor has a stride beyond 2^31 in the batch, head or row dimension. The bits of the results must equal those
// of dense tensors.
TEST_P(HugeStride, P19_GivesTheBitsOfTheDenseTensors) {
  const auto [dimension, dtype] = GetParam();
  AttentionCase c = {.dtype = dtype,
                     .batch = 3,
                     .heads_q = 3,
                     .heads_k = 3,
                     .seqlen_q = 3,
                     .seqlen_k = 3,
                     .head_dim = 5,
                     .head_dim_v = 5,
                     .bias = Broadcast{},
                     .mask = Broadcast{},
                     .dlse = true,
                     .seed = 71};
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, "cpu");
  Inputs far = in;
  Outputs got = make_outputs(in);
  std::vector<std::unique_ptr<SparseTensor>> tensors;
  const auto put = [&, d = dimension](const TensorBuffer& from) -> const Tensor& {
    tensors.push_back(std::make_unique<SparseTensor>(from.dtype(), from.shape(), far_strides(from.shape(), d)));
    if (tensors.back()->ok()) tensors.back()->load(from);
    return tensors.back()->view();
  };
  Params params = in.params("cpu");
  params.bias = put(*in.bias);
  params.mask = put(*in.mask);
  const Tensor dlse = put(*in.dlse), q = put(in.q), k = put(in.k), v = put(in.v), dout = put(in.dout);
  const std::size_t inputs = tensors.size();
  const TensorBuffer* outputs[] = {&got.o, &got.lse, &got.dq, &got.dk, &got.dv, &*got.dbias};
  for (const TensorBuffer* t : outputs) put(*t);
  for (const auto& t : tensors) {
    if (!t->ok()) GTEST_SKIP() << "this machine does not give the address space";
  }
  const auto out = [&](std::size_t n) -> const Tensor& { return tensors[inputs + n]->view(); };
  forward(q, k, v, out(0), &out(1), params);
  backward(dout, q, k, v, out(0), out(1), out(2), out(3), out(4), params, nullptr, {.dlse = dlse, .dbias = out(5)});
  for (std::size_t n = 0; n < std::size(outputs); ++n) tensors[inputs + n]->store(*outputs[n]);
  expect_same_bits(got, want);
}

constexpr const char* kDimensionNames[] = {"batch_", "heads_", "rows_"};

INSTANTIATE_TEST_SUITE_P(Cpu, HugeStride,
                         testing::Combine(testing::Values(0, 1, 2), testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return std::string(kDimensionNames[std::get<0>(test.param)]) +
                                  dtype_name(std::get<1>(test.param));
                         });

constexpr std::int64_t kMany = ATTEND_TEST_STRIDE > 1 ? 4096 : 65536;

/// Computes 65536 batch entries or heads in one call. Compares some of them with separate calls for one entry.
void check_many(AttentionCase c, Many many) {
  std::printf("%lld entries\n", static_cast<long long>(kMany));
  const Inputs in = make_inputs(c);
  const Outputs all = run(in, "cpu");
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, kMany / 2 - 1, kMany - 1}) {
    SCOPED_TRACE(n);
    const Inputs one = entry_of(in, many, n);
    expect_near(entry_of(all, one, many, n), run(one, "reference"), property_tolerance(DType::kF32));
  }
}

TEST(ManyEntries, BatchOf65536) {
  check_many({.batch = kMany, .seqlen_q = 2, .seqlen_k = 3, .head_dim = 2, .head_dim_v = 2, .seed = 72}, Many::kBatch);
}

TEST(ManyEntries, HeadsOf65536) {
  check_many(
      {.heads_q = kMany, .heads_k = kMany, .seqlen_q = 2, .seqlen_k = 3, .head_dim = 2, .head_dim_v = 2, .seed = 73},
      Many::kHeads);
}

TEST(ManyEntries, SequencesOf65536) {
  AttentionCase c = {.head_dim = 2, .head_dim_v = 2, .seed = 74};
  c.varlen_q.assign(static_cast<std::size_t>(kMany), 1);
  c.varlen_k.assign(static_cast<std::size_t>(kMany), 1);
  const Inputs in = make_inputs(c);
  expect_same_bits("o", run(in, "cpu").o, copy_of(in.v));  // each row sees one key, so o equals v of this key
}

/// Compares a mask tensor with the causal option. One of the lengths is 65537.
void check_long(std::int64_t seqlen_q, std::int64_t seqlen_k) {
  AttentionCase c = {
      .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = 2, .head_dim_v = 2, .causal = true, .seed = 75};
  const Inputs causal = make_inputs(c);
  Inputs masked = causal;
  masked.options.causal = false;
  masked.mask = made(DType::kBool, {1, 1, seqlen_q, seqlen_k},
                     [&](auto, auto, auto i, auto j) { return j <= i + seqlen_k - seqlen_q ? 1.0 : 0.0; });
  expect_near(run(masked, "cpu"), run(causal, "cpu"), property_tolerance(DType::kF32));
}

TEST(LongSequence, MaskOf65537KeysIsCausal) {
  check_long(8, 65537);
}
TEST(LongSequence, MaskOf65537RowsIsCausal) {
  check_long(65537, 8);
}

TensorBuffer rows_of(const TensorBuffer& t, std::int64_t begin, std::int64_t count) {
  return made(t.dtype(), {1, 1, count, t.shape()[3]},
              [&](auto, auto, auto row, auto col) { return t.at(0, 0, begin + row, col); });
}

/// Returns a causal problem with the same number of rows and keys. A window keeps the work linear in the length.
Inputs windowed_inputs(std::int64_t length, std::int64_t window, std::uint64_t seed) {
  return make_inputs({.seqlen_q = length,
                      .seqlen_k = length,
                      .head_dim = 2,
                      .head_dim_v = 2,
                      .causal = true,
                      .window_left = window,
                      .seed = seed});
}

/// Returns some rows of a causal problem with a window, and the keys that these rows see, as a separate problem.
Inputs windowed_rows(const Inputs& in, std::int64_t first, std::int64_t count) {
  const std::int64_t keys_before = in.options.window_left;
  Inputs part = in;
  part.options.seqlen_q = count;
  part.options.seqlen_k = count + keys_before;
  part.q = rows_of(in.q, first, count);
  part.dout = rows_of(in.dout, first, count);
  part.k = rows_of(in.k, first - keys_before, count + keys_before);
  part.v = rows_of(in.v, first - keys_before, count + keys_before);
  return part;
}

// There are more than 2^16 rows and keys, so the last rows of the mask begin beyond element 2^32. A 32-bit product of
// row and stride would read the first rows instead, which hide every key. A window keeps the work linear. The mask is
// read only near the diagonal, so its other pages use no memory.
TEST(LongSequence, MaskOf65600RowsAndKeysHidesTheSameInItsLastRows) {
  constexpr std::int64_t kLong = 65600, kRows = 80, kWindow = 150;  // (65600 - 80) * 65600 > 2^32
  constexpr std::int64_t kFirst = kLong - kRows, kFirstKey = kFirst - kWindow;
  const auto is_seen = [](std::int64_t i, std::int64_t j) { return (5 * i + j) % 3 != 0; };
  const Inputs in = windowed_inputs(kLong, kWindow, 77);
  const SparseTensor mask(DType::kBool, {1, 1, kLong, kLong}, contiguous_strides({1, 1, kLong, kLong}));
  if (!mask.ok()) GTEST_SKIP() << "this machine does not give the address space";
  for (std::int64_t i = kFirst; i < kLong; ++i) {
    auto* const row = static_cast<std::uint8_t*>(mask.view().data) + i * kLong;
    for (std::int64_t j = kFirstKey; j < kLong; ++j) row[j] = is_seen(i, j) ? 1 : 0;
  }
  Params params = in.params("cpu");
  params.mask = mask.view();
  const Outputs got = make_outputs(in);
  forward(in.q.view(), in.k.view(), in.v.view(), got.o.view(), &got.lse.view(), params);
  backward(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), got.o.view(), got.lse.view(), got.dq.view(),
           got.dk.view(), got.dv.view(), params);
  Inputs end = windowed_rows(in, kFirst, kRows);
  end.mask = made(DType::kBool, {1, 1, kRows, kRows + kWindow},
                  [&](auto, auto, auto i, auto j) { return is_seen(kFirst + i, kFirstKey + j) ? 1.0 : 0.0; });
  const Outputs want = run(end, "reference");
  const Outputs found = {rows_of(got.o, kFirst, kRows),
                         rows_of(got.lse, kFirst, kRows),
                         rows_of(got.dq, kFirst, kRows),
                         rows_of(got.dk, kFirstKey, kRows + kWindow),
                         rows_of(got.dv, kFirstKey, kRows + kWindow),
                         {}};
  expect_near(found, want, property_tolerance(DType::kF32));
}

// Both lengths exceed 65536. A window keeps the work linear. Compares some rows with those of a short problem.
TEST(LongSequence, WindowOverBothLengths) {
  constexpr std::int64_t kLong = 65537 + 200, kWindow = 3, kSample = 40;
  const Inputs in = windowed_inputs(kLong, kWindow, 76);
  const Outputs out = run(in, "cpu");
  for (const std::int64_t first : {std::int64_t{4}, std::int64_t{32768}, std::int64_t{65536}, kLong - kSample}) {
    SCOPED_TRACE(first);
    const Inputs part = windowed_rows(in, first, kSample);
    const Outputs want = run(part, "reference");
    expect_near("o", rows_of(out.o, first, kSample).values(), want.o.values(), property_tolerance(DType::kF32));
    expect_near("lse", rows_of(out.lse, first, kSample).values(), want.lse.values(), property_tolerance(DType::kF32));
    expect_near("dq", rows_of(out.dq, first, kSample).values(), want.dq.values(), property_tolerance(DType::kF32));
  }
}

}  // namespace
}  // namespace attend::test
