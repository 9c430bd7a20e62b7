// Tests of attend::append on a GPU. Every option is compared with float64, and results must have the same bits as on a
// CPU. Bytes that append does not own must not change. Captured graphs must follow lengths that change between replays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string_view>

#include "core/elements.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/gpu.hpp"
#include "serving/append_checks.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

/// The call of a case, run on GPU 0. The tensors of the case are in memory that host and GPU can both access. The cache
/// and the index arrays are copied to the GPU.
class GpuAppend {
 public:
  explicit GpuAppend(const AppendInputs& in) : call(in.call()) {
    pool_bytes_ = in.pool.size();
    pool_ = copied(in.pool.data(), pool_bytes_);
    pool_of_case_ = const_cast<std::byte*>(in.pool.data());
    const auto move = [](auto& view) { view.device = {DeviceType::kCUDA, 0}; };
    const auto move_if = [&](auto& view) {
      if (view) move(*view);
    };
    const auto move_cache = [&](Tensor& cache) {
      move(cache);
      cache.data = pool_ + (static_cast<std::byte*>(cache.data) - pool_of_case_);
    };
    move(call.k), move_cache(call.k_cache);
    move_if(call.v), move_if(call.q), move_if(call.q_out), move_if(call.q_norm), move_if(call.k_norm);
    if (call.v_cache) move_cache(*call.v_cache);
    if (call.rotary) move(call.rotary->cos), move(call.rotary->sin);
    move_if(call.cache.k_descale), move_if(call.cache.v_descale);
    copy_array(call.cache.seqlens_k, in.seqlens_k);
    copy_array(call.cache.cache_batch_idx, in.batch_idx);
    if (call.cache.page_table) copy_array(call.cache.page_table->pages, in.pages);
    if (call.rotary) copy_array(call.rotary->seqlens, in.rotary_seqlens);
    copy_array(call.cu_seqlens_new, in.cu_seqlens_new);
    copy_array(call.cu_seqlens_q, in.cu_seqlens_q);
    copy_array(call.slot_mapping, in.slots);
    copy_array(call.positions, in.positions);
  }

  /// Runs the call and copies the cache back into the memory of the case.
  void run() {
    append(call);
    wait();
  }

  void wait() {
    const cuda::ContextGuard guard(0);
    cuda::synchronize(static_cast<cuda::StreamHandle>(call.stream));
    std::memcpy(pool_of_case_, pool_, pool_bytes_);
  }

  AppendCall call;

 private:
  template <class T>
  T* copied(const T* data, std::size_t count) {
    memory_.push_back(allocate_tensor_memory(std::max<std::size_t>(count * sizeof(T), 1)));
    std::memcpy(memory_.back().get(), data, count * sizeof(T));
    return reinterpret_cast<T*>(memory_.back().get());
  }
  template <class T, class Array>
  void copy_array(const T*& of_call, const Array& array) {
    if (of_call != nullptr) of_call = copied(array.data(), array.size());
  }

  std::vector<std::shared_ptr<std::byte>> memory_;
  std::byte* pool_ = nullptr;
  std::byte* pool_of_case_ = nullptr;
  std::size_t pool_bytes_ = 0;
};

void append_on_gpu(const AppendInputs& in) {
  GpuAppend(in).run();
}

/// Expects that the GPU writes the same bytes to the cache and to q_out as a CPU.
void expect_bits_of_cpu(const AppendCase& c) {
  SCOPED_TRACE(describe(c));
  const AppendInputs in = make_append_inputs(c), on_cpu = make_append_inputs(c);
  append_on_gpu(in);
  append(on_cpu.call());
  EXPECT_TRUE(in.pool == on_cpu.pool);
  EXPECT_TRUE(in.q_out.bytes() == on_cpu.q_out.bytes());
}

class GpuAppendCases : public GpuTest, public testing::WithParamInterface<AppendCase> {};

TEST_P(GpuAppendCases, WritesItsRowsAndNothingElse) {
  check_append(make_append_inputs(GetParam()), append_on_gpu);
}

TEST_P(GpuAppendCases, HasTheBitsOfACpu) {
  expect_bits_of_cpu(GetParam());
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, GpuAppendCases, testing::ValuesIn(append_cases()), kIndexName);

class GpuAppendTest : public GpuTest {};

// Each warp processes several heads, and there are more rows than the GPU has warps.
TEST_F(GpuAppendTest, PrefillHasTheBitsOfACpu) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool packed : {false, true}) {
      AppendCase c = {
          .dtype = dtype, .cache_dtype = dtype, .page_size = 16, .rotary = RotaryKind::kHalves, .norm = true};
      c.queries = QueryKind::kLikeKeys;
      c.packed = c.packed_q = packed;
      c.heads = 7, c.heads_q = 21, c.head_dim = 128, c.head_dim_v = 64, c.num_sequences = 300, c.most_new = 30;
      expect_bits_of_cpu(c);
    }
  }
}

// The kernel finds a row's sequence in the offsets with a 32-way search, so each factor of 32 sequences adds one search
// step.
TEST_F(GpuAppendTest, ThousandsOfPackedSequences) {
  for (const std::int64_t sequences : {1, 2, 31, 32, 33, 1023, 1024, 1025, 5000}) {
    AppendCase c = {.packed = true, .packed_q = true, .rotary = RotaryKind::kNeighbours};
    c.queries = QueryKind::kFewerLast;
    c.heads = c.heads_q = 1, c.head_dim = c.head_dim_v = 8, c.num_sequences = sequences, c.most_new = 3;
    expect_bits_of_cpu(c);
  }
}

// The number of heads exceeds the limit of the grid's y dimension.
TEST_F(GpuAppendTest, VeryManyHeads) {
  AppendCase c = {.queries = QueryKind::kLikeKeys};
  c.heads = 2, c.heads_q = 200001, c.head_dim = c.head_dim_v = 1, c.num_sequences = 5, c.most_new = 1;
  expect_bits_of_cpu(c);
}

// The copied elements include signalling NaN, NaN payloads, signed zeros and subnormals.
TEST_F(GpuAppendTest, CopiesKeepTheirBits) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::int64_t head_dim : {512, 509}) {
      AppendCase c = {.dtype = dtype, .cache_dtype = dtype, .queries = QueryKind::kLikeKeys};
      c.num_sequences = 1, c.heads = c.heads_q = 1, c.head_dim = c.head_dim_v = head_dim, c.most_new = 8;
      const AppendInputs in = make_append_inputs(c);
      const std::int64_t bytes = 8 * head_dim * dtype_bytes(dtype);
      for (const TensorBuffer* t : {&in.k, &in.v, &in.q}) {
        auto* to = static_cast<std::uint8_t*>(t->view().data);
        for (std::int64_t n = 0; n < bytes; ++n) to[n] = static_cast<std::uint8_t>((n * 2654435761U) >> 9);
      }
      append_on_gpu(in);
      const auto same = [&](const void* got, const TensorBuffer& from) {
        return std::memcmp(got, from.view().data, static_cast<std::size_t>(bytes)) == 0;
      };
      EXPECT_TRUE(same(core::element(in.k_cache, 0, 0, 0), in.k));
      EXPECT_TRUE(same(core::element(in.v_cache, 0, 0, 0), in.v));
      EXPECT_TRUE(same(in.q_out.view().data, in.q));
    }
  }
}

// Quantizes random float bit patterns with ordinary, huge, tiny, zero and non-finite descale factors.
TEST_F(GpuAppendTest, EightBitsOfAnyFloat) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const DType cache_dtype : {DType::kF8E4M3, DType::kI8}) {
    for (const float descale : {1.0F, 0.37F, 1e-30F, 1e30F, 0.0F, -2.0F, kInfinity, std::nanf("")}) {
      AppendCase c = {.cache_dtype = cache_dtype, .descales = Descales::kOne};
      c.num_sequences = 1, c.heads = 1, c.head_dim = 1000, c.head_dim_v = 512, c.most_new = 37;
      const AppendInputs in = make_append_inputs(c), on_cpu = make_append_inputs(c);
      for (const AppendInputs* inputs : {&in, &on_cpu}) {
        std::mt19937 random(7);
        for (const TensorBuffer* t : {&inputs->k, &inputs->v}) {
          auto* x = static_cast<float*>(t->view().data);
          for (std::int64_t n = 0; n < t->view().numel(); ++n) {
            const auto bits = static_cast<std::uint32_t>(random());
            // The exponent of every second float is set to -12 to 10, so that it is near the range of the 8-bit type.
            x[n] = std::bit_cast<float>(n % 2 == 0 ? bits : (bits & 0x807fffffU) + ((115U + bits / 8 % 23) << 23));
          }
        }
        inputs->k_descale.fill(descale), inputs->v_descale.fill(descale);
      }
      append_on_gpu(in);
      append(on_cpu.call());
      EXPECT_TRUE(in.pool == on_cpu.pool) << dtype_name(cache_dtype) << ", descale " << descale;
    }
  }
}

TEST_F(GpuAppendTest, AGraphReadsLengthsAndTablesWhenItRuns) {
  AppendCase c = {.page_size = 16, .rotary = RotaryKind::kHalves, .norm = true, .queries = QueryKind::kLikeKeys};
  c.head_dim = 61;  // no other test uses this head_dim, so its kernel may not be loaded yet
  const AppendInputs in = make_append_inputs(c);
  AppendInputs on_cpu = make_append_inputs(c);
  GpuAppend on_gpu(in);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  on_gpu.call.stream = stream.get();
  CapturedGraph graph(stream.get(), [&] { append(on_gpu.call); });
  for (int step = 0; step < 3; ++step) {
    graph.launch();
    on_gpu.wait();
    append(on_cpu.call());
    EXPECT_TRUE(in.pool == on_cpu.pool) << "step " << step;
    EXPECT_TRUE(in.q_out.bytes() == on_cpu.q_out.bytes()) << "step " << step;
    for (std::int64_t s = 0; s < c.num_sequences; ++s) {
      on_cpu.seqlens_k[s] = s == step ? -1 : on_cpu.seqlens_k[s] + 1;
      const_cast<std::int32_t*>(on_gpu.call.cache.seqlens_k)[s] = on_cpu.seqlens_k[s];
    }
  }
}

TEST_F(GpuAppendTest, OfNothingWritesNothing) {
  for (const bool packed : {false, true}) {
    AppendCase c = {.packed = packed, .packed_q = packed, .rotary = RotaryKind::kHalves, .norm = true};
    c.queries = QueryKind::kLikeKeys;
    for (const auto& [sequences, rows, heads] : {std::array{0, 3, 2}, {3, 0, 2}, {3, 3, 0}}) {
      if (packed && (rows == 0 || sequences == 0)) continue;
      c.num_sequences = sequences, c.most_new = rows, c.heads = c.heads_q = heads;
      const AppendInputs in = make_append_inputs(c);
      const auto before = in.pool;
      append_on_gpu(in);
      EXPECT_TRUE(in.pool == before);
    }
  }
}

// The library reads ATTEND_CHECK only once. To run these tests, set it for the entire program: ATTEND_CHECK=1
// attend_gpu_tests --gtest_filter='GpuAppendCheck.*'.
class GpuAppendCheck : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    const char* check = std::getenv("ATTEND_CHECK");
    if (check == nullptr || std::string_view(check) != "1") GTEST_SKIP() << "without ATTEND_CHECK=1";
  }

  /// Returns the error message of a call after `change`. Checks that the refused call wrote nothing.
  template <class Change>
  static std::string refusal(const AppendCase& c, const Change& change) {
    const AppendInputs in = make_append_inputs(c);
    GpuAppend on_gpu(in);
    change(on_gpu.call);
    const auto before = in.pool;
    std::string why;
    try {
      on_gpu.run();
    } catch (const Error& error) {
      why = error.what();
      on_gpu.wait();
      EXPECT_TRUE(in.pool == before);
    }
    return why;
  }

  template <class T>
  static void set(const T* array, std::int64_t at, T value) {
    const_cast<T*>(array)[at] = value;
  }
};

TEST_F(GpuAppendCheck, NamesTheEntry) {
  AppendCase c = {.page_size = 16, .batch_idx = true, .packed = true, .rotary = RotaryKind::kHalves};
  EXPECT_EQ(refusal(c, [](AppendCall&) {}), "");
  EXPECT_THAT(refusal(c, [](auto& call) { set(call.cache.seqlens_k, 2, 1000); }),
              testing::StartsWith("seqlens_k: entry 2 is 1000, allowed at most"));
  EXPECT_THAT(refusal(c, [](auto& call) { set(call.cache.cache_batch_idx, 3, 99); }),
              testing::StartsWith("cache_batch_idx: entry 3 is 99"));
  EXPECT_THAT(refusal(c, [](auto& call) { std::fill_n(const_cast<int*>(call.cache.page_table->pages), 20, -1); }),
              testing::StartsWith("page_table: entry ("));
  EXPECT_THAT(refusal(c, [](auto& call) { set(call.cu_seqlens_new, 0, 1); }), testing::StartsWith("cu_seqlens_new"));
  c.slots = true;
  EXPECT_THAT(refusal(c, [](auto& call) { set(call.slot_mapping, 1, std::int64_t{1} << 40); }),
              testing::StartsWith("slot_mapping: entry 1 is 1099511627776"));
}

}  // namespace
}  // namespace attend::test
