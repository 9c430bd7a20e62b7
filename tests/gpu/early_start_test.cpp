// decode(), append() and merge() may start while the previous kernel in the stream still runs. These calls must wait
// for the end of the previous kernel before they read or write (kernels/isa/grid_dependency.cuh). In these tests the
// previous kernel is slow. The previous kernel lets the call start at once, but writes the call's inputs only after 200
// us (LateInputs). Most tests compare the bits with those of the same calls run one at a time. Other tests compare
// results with float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include "core/problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/serving/kernel_cache.hpp"
#include "gpu/late_inputs.hpp"
#include "gpu/serving.hpp"
#include "serving/merge_checks.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kMaxPositions = 2048;

/// A cache layout and the rows of q. In tests that append, the number of new keys equals the number of rows of q.
struct Kind {
  const char* name;
  DType dtype, cache_dtype;
  std::int64_t page_size;  // keys per page; 0 means contiguous
  bool packed, batch_idx, leftpad, sinks;
  std::array<std::int64_t, 4> rows;
  std::array<std::int64_t, 4> lengths;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

constexpr std::array kKinds = {
    Kind{"dense_f32", DType::kF32, DType::kF32, 0, false, false, true, false, {1, 1, 1, 1}, {1900, 3, -1, 700}},
    Kind{"dense_bf16", DType::kBF16, DType::kBF16, 0, false, true, false, true, {2, 2, 2, 2}, {1500, 1024, 2, -1}},
    Kind{"paged_bf16", DType::kBF16, DType::kBF16, 16, false, true, false, false, {1, 1, 1, 1}, {2000, 17, -1, 1025}},
    Kind{"packed_paged_f16", DType::kF16, DType::kF16, 64, true, false, false, true, {5, 1, 40, 2}, {900, 1, 1301, 40}},
    Kind{"paged_f8e4m3", DType::kBF16, DType::kF8E4M3, 64, false, false, false, false, {1, 1, 1, 1}, {999, -1, 64, 65}},
    Kind{"long_bf16", DType::kBF16, DType::kBF16, 16, true, false, false, true, {1, 130, 3, 70}, {1500, 400, 60, 90}},
    Kind{"few_and_long", DType::kF16, DType::kF16, 1, true, true, false, false, {1, 66, 1, 1}, {3000, 66, 2500, 2800}},
    Kind{"packed_i8", DType::kF32, DType::kI8, 0, true, false, false, false, {1, 20, 3, 2}, {1100, 256, 257, 2}}};

CacheFacts facts_of(const Kind& kind) {
  CacheFacts facts;
  facts.dtype = kind.dtype;
  facts.cache_dtype = kind.cache_dtype;
  facts.descales = dtype_bytes(kind.cache_dtype) == 1 ? Descales::kSequences : Descales::kNone;
  facts.group = 4;
  const bool has_long_ones = *std::max_element(kind.rows.begin(), kind.rows.end()) > 64;
  // With fewer key heads, sequences need more query rows to use the long-row kernel.
  if (has_long_ones) facts.num_heads_k = 4;
  facts.page_size = kind.page_size;
  facts.packed = kind.packed;
  facts.batch_idx = kind.batch_idx;
  facts.leftpad = kind.leftpad;
  facts.sinks = kind.sinks;
  facts.rows.assign(kind.rows.begin(), kind.rows.end());
  facts.lengths.assign(kind.lengths.begin(), kind.lengths.end());
  return facts;
}

template <class Array>
std::vector<typename Array::value_type> vector_of(const Array& array) {
  return {array.begin(), array.end()};
}

/// Decode and append calls on one cache. All memory that they read or write belongs to LateInputs, so it is written
/// late.
class LateCalls {
 public:
  LateCalls(LateInputs& memory, const CacheFacts& facts, std::uint64_t seed) : problem_(facts, seed) {
    decode_ = problem_.call();
    memory.input("q", decode_.q);
    memory.input("k_cache", decode_.k_cache);
    memory.input("v_cache", *decode_.v_cache);
    place_index(memory);
    if (decode_.params.sinks) memory.input("sinks", *decode_.params.sinks);
    if (facts.packed) {  // the poison is a valid array with the sequences in reverse order
      std::vector<std::int32_t> offsets = {0};
      for (std::size_t s = facts.rows.size(); s-- > 0;) {
        offsets.push_back(offsets.back() + static_cast<std::int32_t>(facts.rows[s]));
      }
      memory.input("cu_seqlens_q", decode_.params.cu_seqlens_q, offsets);
    }
    Shape shape = decode_.q.shape;
    q_out_ = memory.output(facts.dtype, shape);
    shape[3] = facts.head_dim_v;
    decode_.o = memory.output(facts.dtype, shape);
    shape[3] = 1;
    decode_.lse = memory.output(DType::kF32, shape);
  }

  /// Adds new keys and values, rotary tables and norm weights. The new keys become the last keys of each sequence.
  void add_new_keys(LateInputs& memory, std::uint64_t seed) {
    const CacheFacts& facts = problem_.facts();
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const auto random_tensor = [&](DType dtype, const Shape& shape) {
      new_tensors_.emplace_back(dtype, shape);
      new_tensors_.back().generate([&](auto...) { return normal(random); });
      return ConstTensor(new_tensors_.back().view());
    };
    const Shape& q = decode_.q.shape;
    append_.k = random_tensor(facts.dtype, {q[0], facts.num_heads_k, q[2], facts.head_dim});
    append_.v = random_tensor(facts.dtype, {q[0], facts.num_heads_k, q[2], facts.head_dim_v});
    append_.k_norm = random_tensor(DType::kF32, {1, 1, 1, facts.head_dim});
    append_.q_norm = random_tensor(DType::kF32, {1, 1, 1, facts.head_dim});
    const Shape table = {1, 1, kMaxPositions, facts.head_dim / 2};
    append_.rotary = Rotary{.cos = random_tensor(DType::kF32, table), .sin = random_tensor(DType::kF32, table)};
    memory.input("k", append_.k);
    memory.input("v", *append_.v);
    memory.input("k_norm", *append_.k_norm);
    memory.input("q_norm", *append_.q_norm);
    memory.input("cos", append_.rotary->cos);
    memory.input("sin", append_.rotary->sin);
    append_.k_cache = core::input_view(decode_.k_cache);
    append_.v_cache = core::input_view(*decode_.v_cache);
    append_.cache = decode_.cache;
    for (std::size_t s = 0; s < facts.lengths.size(); ++s) {
      const std::int64_t rows = facts.lengths[s] < 0 ? 0 : facts.rows[facts.packed ? s : 0];
      lengths_before_.push_back(static_cast<std::int32_t>(facts.lengths[s] - rows));
    }
    append_.cache.seqlens_k = lengths_before_.data();
    memory.input("seqlens_k before", append_.cache.seqlens_k, std::vector<std::int32_t>(facts.lengths.size(), 0));
    append_.cu_seqlens_new = decode_.params.cu_seqlens_q;
    append_.num_sequences = decode_.params.num_sequences;
    append_.max_seqlen_new = decode_.params.max_seqlen_q;
  }

  [[nodiscard]] const DecodeCall& decode_call() const { return decode_; }

  [[nodiscard]] Step decode_step() const {
    return [this](cuda::StreamHandle stream) { decode(on_gpu(decode_, stream)); };
  }

  /// Returns a step that appends the new keys to the cache and writes q_out from q.
  [[nodiscard]] Step append_step() const {
    return [this](cuda::StreamHandle stream) {
      AppendCall call = append_;
      call.q = decode_.q;
      call.q_out = q_out_;
      call.cu_seqlens_q = decode_.params.cu_seqlens_q;
      call.max_seqlen_q = decode_.params.max_seqlen_q;
      append(on_gpu(call, stream));
    };
  }

  /// Returns a step that decodes the query rows q_out, which append_step() wrote.
  [[nodiscard]] Step decode_of_q_out_step() const {
    return [this](cuda::StreamHandle stream) {
      DecodeCall call = decode_;
      call.q = q_out_;
      decode(on_gpu(call, stream));
    };
  }

  /// Returns a step that appends and decodes in one call.
  [[nodiscard]] Step append_and_decode_step() const {
    return [this](cuda::StreamHandle stream) {
      DecodeCall call = decode_;
      call.cache.seqlens_k = append_.cache.seqlens_k;
      decode(on_gpu(append_, stream), on_gpu(call, stream));
    };
  }

 private:
  /// Moves the lengths, the page table and the other index arrays to late memory. The poison of these arrays consists
  /// of other valid entries.
  void place_index(LateInputs& memory) {
    CacheIndex& cache = decode_.cache;
    const std::size_t sequences = problem_.seqlens.size();
    memory.input("seqlens_k", cache.seqlens_k, std::vector<std::int32_t>(sequences, 0));
    if (cache.page_table) {
      const auto last = static_cast<std::int32_t>(decode_.k_cache.shape[0] - 1);
      std::vector<std::int32_t> others = vector_of(problem_.pages);
      for (std::int32_t& page : others) page = page < 0 ? 0 : last - page;
      memory.input("page_table", cache.page_table->pages, others);
    }
    if (cache.cache_batch_idx != nullptr) {
      std::vector<std::int32_t> others = vector_of(problem_.batch_idx);
      std::reverse(others.begin(), others.end());
      memory.input("cache_batch_idx", cache.cache_batch_idx, others);
    }
    if (cache.cache_leftpad != nullptr) {
      std::vector<std::int32_t> others = vector_of(problem_.leftpad);
      for (std::int32_t& pad : others) pad = pad == 0 ? 1 : 0;
      memory.input("cache_leftpad", cache.cache_leftpad, others);
    }
    if (cache.k_descale) memory.input("k_descale", *cache.k_descale);
    if (cache.v_descale) memory.input("v_descale", *cache.v_descale);
  }

  CacheCase problem_;
  std::vector<TensorBuffer> new_tensors_;
  std::vector<std::int32_t> lengths_before_;
  DecodeCall decode_;
  AppendCall append_ = {.k = {}, .k_cache = {}};
  Tensor q_out_;
};

/// Provides LateInputs on the GPU and makes the GPU's context current.
class EarlyStartTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!cuda::device_info(0).arch().cp_async) GTEST_SKIP() << "decode wants a GPU of compute capability 8.0";
    guard_.emplace(0);
    memory_.emplace();
  }

  [[nodiscard]] LateInputs& memory() { return *memory_; }
  [[nodiscard]] Step late() const {
    return [this](cuda::StreamHandle stream) { memory_->write_late(stream); };
  }
  [[nodiscard]] Step overwrite() const {
    return [this](cuda::StreamHandle stream) { memory_->overwrite(stream); };
  }
  [[nodiscard]] Step look(bool early = false) const {
    return [this, early](cuda::StreamHandle stream) { memory_->look(stream, early); };
  }

 private:
  std::optional<cuda::ContextGuard> guard_;
  std::optional<LateInputs> memory_;
};

class GpuEarlyStart : public EarlyStartTest, public testing::WithParamInterface<Kind> {};

TEST_P(GpuEarlyStart, DecodeWaitsForItsInputs) {
  const LateCalls calls(memory(), facts_of(GetParam()), 51);
  expect_inputs_matter(memory(), {calls.decode_step()});
  expect_same_in_a_row(memory(), {late(), calls.decode_step()});
}

TEST_P(GpuEarlyStart, AppendWaitsForItsInputs) {
  LateCalls calls(memory(), facts_of(GetParam()), 52);
  calls.add_new_keys(memory(), 53);
  expect_inputs_matter(memory(), {calls.append_step()}, {"k_cache", "v_cache", "seqlens_k", "cache_leftpad", "sinks"});
  expect_same_in_a_row(memory(), {late(), calls.append_step()});
}

TEST_P(GpuEarlyStart, AppendAndDecodeInOneCallWait) {
  LateCalls calls(memory(), facts_of(GetParam()), 54);
  calls.add_new_keys(memory(), 55);
  expect_inputs_matter(memory(), {calls.append_and_decode_step()}, {"seqlens_k"});
  expect_same_in_a_row(memory(), {late(), calls.append_and_decode_step()});
}

/// Another stream writes half of the inputs. The call's stream waits for that half through an event.
TEST_P(GpuEarlyStart, DecodeWaitsForTwoStreams) {
  const LateCalls calls(memory(), facts_of(GetParam()), 64);
  const cuda::OwnStream side;
  cuda::Event fork, join;
  const Step written = [&](cuda::StreamHandle stream) {
    fork.record(stream);
    fork.make_wait(side.get());
    memory().write_half_late(0, stream);
    memory().write_half_late(1, side.get());
    join.record(side.get());
    join.make_wait(stream);
  };
  expect_same_in_a_row(memory(), {written, calls.decode_step()});
}

/// decode() reads the cache rows and the query rows that append() has just written.
TEST_P(GpuEarlyStart, DecodeWaitsForAppend) {
  LateCalls calls(memory(), facts_of(GetParam()), 56);
  calls.add_new_keys(memory(), 57);
  expect_inputs_matter(memory(), {calls.append_step(), calls.decode_of_q_out_step()});
  expect_same_in_a_row(memory(), {late(), calls.append_step(), calls.decode_of_q_out_step()});
}

/// An ordinary kernel launch must run after all earlier work in the stream, even if earlier kernels started early. The
/// ordinary kernel may therefore overwrite the inputs of earlier kernels.
TEST_P(GpuEarlyStart, WhatComesAfterMayOverwriteTheInputs) {
  LateCalls calls(memory(), facts_of(GetParam()), 58);
  calls.add_new_keys(memory(), 59);
  expect_same_in_a_row(memory(), {late(), calls.decode_step(), overwrite()});
  expect_same_in_a_row(memory(), {late(), calls.append_step(), look(), overwrite()});
  expect_same_in_a_row(memory(), {late(), calls.append_and_decode_step(), look(), overwrite()});
  expect_same_in_a_row(memory(), {late(), calls.append_step(), calls.decode_of_q_out_step(), overwrite()});
}

/// append() overwrites cache rows that the previous decode() reads.
TEST_P(GpuEarlyStart, AppendWaitsForDecode) {
  LateCalls calls(memory(), facts_of(GetParam()), 60);
  calls.add_new_keys(memory(), 61);
  expect_same_in_a_row(memory(), {late(), calls.decode_step(), calls.append_step()});
  expect_same_in_a_row(memory(), {late(), calls.decode_step(), late(), calls.append_step(), overwrite()});
}

/// If all sequences are dead, the call has nothing to do. The call must still not end before the previous kernel,
/// because the next kernel reads data that the previous kernel wrote.
TEST_P(GpuEarlyStart, CallsWithNothingToDoWaitToo) {
  CacheFacts facts = facts_of(GetParam());
  facts.capacity = 64;
  for (std::int64_t& length : facts.lengths) length = -1;
  LateCalls calls(memory(), facts, 62);
  calls.add_new_keys(memory(), 63);
  expect_same_in_a_row(memory(), {late(), calls.decode_step(), look()});
  EXPECT_TRUE(memory().seen() == memory().written());
  expect_same_in_a_row(memory(), {late(), calls.append_step(), look()});
  EXPECT_TRUE(memory().seen() == memory().written());
  expect_same_in_a_row(memory(), {late(), calls.append_and_decode_step(), look()});
  EXPECT_TRUE(memory().seen() == memory().written());
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuEarlyStart, testing::ValuesIn(kKinds),
                         [](const auto& of) { return std::string(of.param.name); });

class GpuEarlyMerge : public EarlyStartTest {};

/// A launch passes up to 32 states as kernel parameters. For more states, small kernels write the list of states first.
TEST_F(GpuEarlyMerge, OfAnyNumberOfStatesWaitsForThem) {
  const TensorBuffer sinks(DType::kF32, {1, 4, 1, 1});
  sinks.fill(0.5);
  for (const std::size_t count : {2, 32, 40}) {
    SCOPED_TRACE(count);
    LateInputs fresh;
    ConstTensor sink = sinks.view();
    fresh.input("sinks", sink);
    const States states = make_states({.states = std::vector<DType>(count, DType::kBF16), .shape = {3, 4, 20, 64}});
    std::vector<PartialState> views = states.views();
    std::vector<std::string> names;
    for (std::size_t n = 0; n < count; ++n) names.push_back(std::to_string(n));
    for (std::size_t n = 0; n < count; ++n) {
      fresh.input(("o " + names[n]).c_str(), views[n].o);
      fresh.input(("lse " + names[n]).c_str(), views[n].lse);
    }
    const Tensor o = fresh.output(DType::kF32, views[0].o.shape), lse = fresh.output(DType::kF32, views[0].lse.shape);
    const Step merged = [&](cuda::StreamHandle stream) { merge(views, o, &lse, {.sinks = sink}, stream); };
    const Step written = [&](cuda::StreamHandle stream) { fresh.write_late(stream); };
    const Step overwritten = [&](cuda::StreamHandle stream) { fresh.overwrite(stream); };
    expect_inputs_matter(fresh, {merged});
    expect_same_in_a_row(fresh, {written, merged});
    expect_same_in_a_row(fresh, {written, merged, overwritten});
  }
}

/// merge() reads the results that two decode() calls have just written.
TEST_F(GpuEarlyMerge, WaitsForDecode) {
  for (const Kind& kind : {kKinds[0], kKinds[2], kKinds[3]}) {
    SCOPED_TRACE(kind.name);
    LateInputs fresh;
    const LateCalls first(fresh, facts_of(kind), 71), second(fresh, facts_of(kind), 72);
    std::vector<PartialState> states;
    for (const LateCalls* calls : {&first, &second}) {
      states.push_back({calls->decode_call().o, *calls->decode_call().lse});
    }
    const Tensor o = fresh.output(kind.dtype, states[0].o.shape), lse = fresh.output(DType::kF32, states[0].lse.shape);
    const Step merged = [&](cuda::StreamHandle stream) { merge(states, o, &lse, {}, stream); };
    const Step written = [&](cuda::StreamHandle stream) { fresh.write_late(stream); };
    const Step overwritten = [&](cuda::StreamHandle stream) { fresh.overwrite(stream); };
    expect_same_in_a_row(fresh, {written, first.decode_step(), second.decode_step(), merged});
    expect_same_in_a_row(fresh, {written, first.decode_step(), second.decode_step(), merged, overwritten});
  }
}

/// Verifies that these tests can fail. A kernel that starts early but does not wait must read poison. If other
/// processes use the GPU, the kernel may sometimes start late, but not in every round.
TEST_F(GpuEarlyMerge, AKernelThatDoesNotWaitReadsPoison) {
  if (!cuda::may_start_early(cuda::device_info(0))) GTEST_SKIP() << "no kernel starts early here";
  constexpr int kMostRounds = 50;
  const TensorBuffer some(DType::kF32, {1, 1, 1000, 64});
  some.fill(1);
  ConstTensor input = some.view();
  memory().input("some", input);
  const cuda::OwnStream stream;
  CapturedGraph graph(stream.get(), [&] { late()(stream.get()), look(true)(stream.get()); });
  for (const bool replayed : {false, true}) {
    int early = 0;
    for (int round = 0; round < kMostRounds && early == 0; ++round) {
      memory().restore(stream.get());
      if (replayed) {
        graph.launch();
      } else {
        late()(stream.get()), look(true)(stream.get());
      }
      cuda::synchronize(stream.get());
      early += memory().seen() == memory().poison() ? 1 : 0;
      EXPECT_TRUE(memory().bytes() == memory().written());
    }
    EXPECT_GT(early, 0) << (replayed ? "in a graph" : "eagerly") << ": the tests above could not fail";
  }
}

}  // namespace
}  // namespace attend::test
