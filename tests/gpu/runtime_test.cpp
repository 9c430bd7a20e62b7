// Tests the library on a GPU as programs use it: threads, streams, graphs, contexts, refused calls, and the cost of a
// launch.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/driver/shared_library.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/rung.hpp"
#include "gpu/families.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"

namespace attend::test {
namespace {

constexpr Device kGpu = {DeviceType::kCUDA, 0};

void* current_context() {
  void* context = nullptr;
  EXPECT_EQ(driver_function<int (*)(void**)>("cuCtxGetCurrent")(&context), 0);
  return context;
}

AttentionCase small_case(DType dtype, std::uint64_t seed = 1) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 150,
          .seqlen_k = 201,
          .head_dim = 64,
          .head_dim_v = 64,
          .causal = true,
          .seed = seed};
}

/// Calls `visit` for each rung of the ladder, with inputs of the first dtype that the rung supports.
template <class Visit>
void for_each_rung(const Visit& visit) {
  for (const cuda::Rung& rung : cuda::ladder()) {
    const Inputs in = make_inputs(small_case(rung.dtypes.front()));
    if (!supports(rung.name, in)) continue;
    SCOPED_TRACE(rung.name);
    visit(rung, in);
  }
}

class Runtime : public GpuTest {};

TEST_F(Runtime, AFreshThreadHasNoContextBeforeOrAfter) {
  std::thread([] {
    for_each_rung([](const cuda::Rung& rung, const Inputs& in) {
      EXPECT_EQ(current_context(), nullptr);
      (void)run(in, rung.name);
      EXPECT_EQ(current_context(), nullptr);
    });
  }).join();
}

TEST_F(Runtime, TheCallersContextStaysCurrent) {
  const cuda::ContextGuard guard(0);
  void* const mine = current_context();
  for_each_rung([&](const cuda::Rung& rung, const Inputs& in) {
    (void)run(in, rung.name);
    EXPECT_EQ(current_context(), mine);
  });
}

TEST_F(Runtime, RepeatsAreBitEqual) {
  for_each_rung([](const cuda::Rung& rung, const Inputs& in) {
    const Outputs first = run(in, rung.name);
    for (int repeat = 0; repeat < 20; ++repeat) {
      const Outputs again = make_outputs(in);
      run_forward(in, again, rung.name);
      ASSERT_EQ(again.o.bytes(), first.o.bytes());
      ASSERT_EQ(again.lse.bytes(), first.lse.bytes());
    }
  });
}

TEST_F(Runtime, EightThreadsEachWithItsStream) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 4;
  for_each_rung([](const cuda::Rung& rung, const Inputs& in) {
    const Outputs want = run(in, rung.name);
    std::vector<std::thread> threads;
    std::vector<std::vector<Outputs>> got(kThreads);
    for (auto& outputs : got) {
      for (int round = 0; round < kRounds; ++round) outputs.push_back(make_outputs(in));
    }
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const cuda::ContextGuard guard(0);
        const cuda::OwnStream stream;
        for (const Outputs& out : got[static_cast<std::size_t>(t)]) submit(rung.name, in, out, stream.get());
        cuda::synchronize(stream.get());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& outputs : got) {
      for (const Outputs& out : outputs) EXPECT_EQ(out.o.bytes(), want.o.bytes());
    }
  });
}

TEST_F(Runtime, ACapturedGraphFollowsChangedInputs) {
  for_each_rung([&](const cuda::Rung& rung, const Inputs& in) {
    (void)run(in, rung.name);  // compiles and loads the kernels first
    const cuda::ContextGuard guard(0);
    const cuda::OwnStream stream;
    const Outputs out = make_outputs(in);
    CapturedGraph graph(stream.get(), [&] { submit(rung.name, in, out, stream.get()); });
    for (std::uint64_t seed = 2; seed < 5; ++seed) {
      const Inputs fresh = make_inputs(small_case(rung.dtypes.front(), seed));
      for (const auto& [to, from] : {std::pair{&in.q, &fresh.q}, {&in.k, &fresh.k}, {&in.v, &fresh.v}}) {
        to->generate([from = from](auto b, auto h, auto row, auto col) { return from->at(b, h, row, col); });
      }
      graph.launch();
      cuda::synchronize(stream.get());
      EXPECT_EQ(out.o.bytes(), run(fresh, rung.name).o.bytes());
    }
  });
}

/// A graph must use the dropout seed that is in memory when the graph runs.
TEST_F(Runtime, ACapturedGraphDropsWhatTheSeedInMemorySays) {
  for (const char* name : {"simt", "sm80_forward", "sm90_forward"}) {
    AttentionCase c = small_case(DType::kBF16);
    c.dropout_p = 0.4;
    const Inputs in = make_inputs(c);
    ASSERT_NE(in.philox_state, nullptr);
    if (!supports(name, in)) continue;
    SCOPED_TRACE(name);
    (void)run(in, name);  // compiles and loads the kernels before the capture
    const cuda::ContextGuard guard(0);
    const cuda::OwnStream stream;
    const Outputs out = make_outputs(in);
    CapturedGraph graph(stream.get(), [&] { submit(name, in, out, stream.get()); });
    std::vector<std::vector<std::byte>> found;
    for (const std::uint64_t seed : {std::uint64_t{3}, ~std::uint64_t{0}, std::uint64_t{3} << 32}) {
      in.philox_state.get()[0] = seed;
      graph.launch();
      cuda::synchronize(stream.get());
      found.push_back(out.o.bytes());
      EXPECT_EQ(found.back(), run(in, name).o.bytes());
      for (std::size_t before = 0; before + 1 < found.size(); ++before) EXPECT_NE(found.back(), found[before]);
    }
  }
}

TEST_F(Runtime, NanInOneQueryRowStaysInThatRow) {
  for_each_rung([](const cuda::Rung& rung, const Inputs& in) {
    const Outputs clean = run(in, rung.name);
    const std::int64_t row = 77;
    in.q.set(1, 2, row, 5, NAN);
    const Outputs out = run(in, rung.name);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t i = 0; i < 150; ++i) {
          const bool hit = b == 1 && h == 2 && i == row;
          EXPECT_EQ(std::isnan(out.o.at(b, h, i, 3)), hit) << b << " " << h << " " << i;
          EXPECT_EQ(std::isnan(out.lse.at(b, h, i, 0)), hit) << b << " " << h << " " << i;
          if (!hit) {
            EXPECT_EQ(out.o.at(b, h, i, 3), clean.o.at(b, h, i, 3));
          }
        }
      }
    }
  });
}

TEST_F(Runtime, HugeAndEqualScores) {
  for_each_rung([](const cuda::Rung& rung, const Inputs& in) {
    for (const double size : {30.0, 120.0}) {  // q.k is 64 * size^2, which is 57600 or 921600; the scale is 1/8
      in.q.fill(size);
      in.k.fill(size);
      const Outputs out = run(in, rung.name);
      in.k.fill(-size);
      const Outputs negative = run(in, rung.name);
      for (std::int64_t i = 0; i < 150; ++i) {  // all scores of a row are equal, so o is the mean of the visible values
        double mean = 0;
        const std::int64_t keys = i + 1 + 201 - 150;
        for (std::int64_t j = 0; j < keys; ++j) mean += in.v.at(1, 1, j, 7) / double(keys);
        EXPECT_NEAR(out.o.at(1, 3, i, 7), mean, 0.02);
        EXPECT_NEAR(negative.o.at(1, 3, i, 7), mean, 0.02);
      }
    }
  });
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST_F(Runtime, WhatARungLacksIsRefusedByName) {
  for_each_rung([](const cuda::Rung& rung, const Inputs& /*in*/) {
    const std::string name = std::string("'") + rung.name + "'";
    const auto refused = [&](const char* argument, const auto& change) {
      AttentionCase c = small_case(rung.dtypes.front());
      c.causal = false;
      change(c);
      const Inputs changed = make_inputs(c);
      const Outputs out = make_outputs(changed);
      EXPECT_THAT(refusal([&] { run_forward(changed, out, rung.name); }),
                  testing::AllOf(testing::HasSubstr(argument), testing::HasSubstr(name)));
      EXPECT_TRUE(std::isnan(out.o.at(0, 0, 0, 0))) << "something was written";
    };
    refused("softcap", [](AttentionCase& c) { c.softcap = 5; });
    refused("window_left", [](AttentionCase& c) { c.window_left = 3; });
    refused("dropout_p", [](AttentionCase& c) { c.dropout_p = 0.5; });
    refused("bias", [](AttentionCase& c) { c.bias = Broadcast{}; });
    refused("mask", [](AttentionCase& c) { c.mask = Broadcast{}; });
    refused("alibi", [](AttentionCase& c) { c.alibi = true; });
    refused("sinks", [](AttentionCase& c) { c.sinks = true; });
    refused("varlen", [](AttentionCase& c) { c.varlen_q = {3, 4}, c.varlen_k = {5, 4}; });
    refused("dtype",
            [&](AttentionCase& c) { c.dtype = rung.dtypes.front() == DType::kF32 ? DType::kF16 : DType::kF32; });
    if (!rung.head_dims.empty()) refused("head_dim", [](AttentionCase& c) { c.head_dim = c.head_dim_v = 72; });
    if (rung.needs_alignment) refused("multiples of", [](AttentionCase& c) { c.base_offset = 1; });
  });
}

/// Offsets in cu_seqlens may have any value. Memory outside the tensors must not be accessed, which the sanitizers
/// check too.
class Slice : public GpuTest {};

TEST_F(Slice, WrongOffsetsStayInsideTheTensors) {
  for (const char* compute : {"simt", "sm80_forward", "sm90_forward"}) {
    AttentionCase c = small_case(DType::kBF16);
    c.varlen_q = {100, 50, 30};
    c.varlen_k = {90, 60, 40};
    const Inputs in = make_inputs(c);
    if (!supports(compute, in)) continue;
    const std::int32_t wrong[][4] = {{0, 1000000, -5, 180}, {-7, -3, 2000000000, 4}, {170, 20, 5, 180}, {0, 0, 0, 0}};
    for (const auto& offsets : wrong) {
      std::copy(std::begin(offsets), std::end(offsets), in.cu_q.get());
      std::copy(std::rbegin(offsets), std::rend(offsets), in.cu_k.get());
      const Outputs out = make_outputs(in);
      run_forward(in, out, compute);
      if (has_backward(compute)) run_backward(in, out, compute);
      for (const TensorBuffer* t : {&out.o, &out.lse, &out.dq, &out.dk, &out.dv}) {
        EXPECT_TRUE(t->gaps_intact()) << compute << ": memory outside of an output was written";
      }
    }
  }
}

class SeveralGpus : public FamilyTest {
 protected:
  void SetUp() override {
    FamilyTest::SetUp();
    if (!IsSkipped() && cuda::device_count() < 2) GTEST_SKIP() << "one GPU, wanted two";
  }
};

INSTANTIATE_TEST_SUITE_P(SeveralGpus, SeveralGpus, testing::ValuesIn(kFamilies), kFamilyName);

/// Tensors are on GPU 1 while GPU 0 is current. The call must run on GPU 1 and leave GPU 0 current. If both GPUs are
/// the same model, it must give the same bits as GPU 0.
TEST_P(SeveralGpus, ACallOnOneThatIsNotCurrentComputesThere) {
  AttentionCase c = small_case(DType::kBF16);
  c.deterministic = true;
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, GetParam()), out = make_outputs(in);
  if (!has_forward(GetParam())) run_forward(in, out, GetParam());
  const cuda::ContextGuard guard(0);
  void* const mine = current_context();
  submit_passes(GetParam(), in, out, nullptr, {}, 1);
  EXPECT_EQ(current_context(), mine);
  {
    const cuda::ContextGuard there(1);
    cuda::synchronize(nullptr);
  }
  EXPECT_EQ(out.o.bytes(), want.o.bytes());
  EXPECT_EQ(out.dq.bytes(), want.dq.bytes());
  EXPECT_EQ(out.dk.bytes(), want.dk.bytes());
}

// Measures time, so tools/gpu_test.py runs it last, without other tests on the GPU or the host.
class Alone : public GpuTest {};

/// Returns the host time per call in microseconds, averaged over a batch that fits in the stream's queue.
template <class Call>
double batch_us(const Call& call, cuda::StreamHandle stream) {
  constexpr int kCalls = 50;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const auto time = std::chrono::steady_clock::now() - start;
  cuda::synchronize(stream);
  return std::chrono::duration<double, std::micro>(time).count() / kCalls;
}

/// A kernel with one thread that ends at once. The kernel is launched directly through the driver.
struct BareLaunch {
  std::shared_ptr<const cuda::Kernel> kernel = cuda::Jit::instance().load({.name = "sm_clock",
                                                                           .source = "probe/sm_clock.cuh",
                                                                           .function = "sm_clock",
                                                                           .args = "ClockArgs",
                                                                           .config = {{"kThreads", std::int64_t{1}}},
                                                                           .arch = cuda::device_info(0).arch().target},
                                                                          0);
  cuda::Scratch result;

  explicit BareLaunch(cuda::StreamHandle stream) : result(2 * sizeof(std::int64_t), stream) {}

  void operator()(cuda::StreamHandle stream) const {
    struct {
      cuda::DevicePointer cycles_and_ns;
      std::int64_t least_ns;
    } args = {result.data(), 0};
    void* parameters[] = {&args};
    kernel->launch({}, parameters, stream);
  }
};

double median_of(std::vector<double>& samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

/// A launch must take less than 5 us of host time, of which the library may use at most 1.5 us. If the driver alone is
/// slow, the limit is the driver's time plus 1.5 us.
TEST_F(Alone, ALaunchCostsTheHostLittle) {
  constexpr std::size_t kRounds = 60;
  constexpr double kMostUs = 5.0, kMostOwnUs = 1.5;
  struct Measured {
    const cuda::Rung* rung;
    Inputs in;
    Outputs out;
    std::vector<double> us = {};
  };
  std::vector<Measured> all;
  for (const cuda::Rung& rung : cuda::ladder()) {
    if (rung.max_workspace != SIZE_MAX) continue;  // skips a teaching rung, because it allocates memory for all scores
    AttentionCase c = small_case(rung.dtypes.front());
    c.batch = c.heads_q = c.heads_k = 1;
    c.seqlen_q = c.seqlen_k = 64;
    Inputs in = make_inputs(c);
    if (!supports(rung.name, in)) continue;
    Outputs out = run(in, rung.name);
    all.push_back({&rung, std::move(in), std::move(out)});
  }
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const BareLaunch bare(stream.get());
  std::vector<double> bare_us;
  // The measurements alternate, so that a busy host affects every rung equally.
  for (std::size_t round = 0; round < kRounds; ++round) {
    bare_us.push_back(batch_us([&] { bare(stream.get()); }, stream.get()));
    for (Measured& m : all)
      m.us.push_back(batch_us([&] { submit(m.rung->name, m.in, m.out, stream.get()); }, stream.get()));
  }
  const double driver_us = median_of(bare_us);
  std::printf("%-20s %.2f us of host time for a launch without the library\n", "(driver)", driver_us);
  for (Measured& m : all) {
    const double median = median_of(m.us);
    std::printf("%-20s %.2f us of host time for a call (median of %zu batches; %.2f to %.2f)\n", m.rung->name, median,
                kRounds, m.us.front(), m.us.back());
    RecordProperty(m.rung->name, std::to_string(median));
    EXPECT_LT(median, std::max(kMostUs, driver_us + kMostOwnUs)) << m.rung->name;
  }
}

}  // namespace
}  // namespace attend::test
