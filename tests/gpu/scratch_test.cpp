// Tests memory and graphs of calls on every family that `auto` picks. Scratch memory may have any contents. Graphs are
// replayed after other calls, with seeds in memory. Threads make the first call, and a forked process makes a call.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/families.hpp"
#include "gpu/forward_checks.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

class ScratchMemory : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(Families, ScratchMemory, testing::ValuesIn(kFamilies), kFamilyName);

/// Returns one case for each option that the family supports. The lengths leave partial tiles. Also returns cases with
/// packed sequences.
std::vector<AttentionCase> scratch_cases(const char* compute) {
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c) {
    // The two modes use different kernels and different partial sums in memory.
    for (const bool is_deterministic : {true, false}) {
      c.deterministic = is_deterministic;
      if (lack_of(compute, make_inputs(c)).empty()) cases.push_back(c);
    }
  };
  for (const std::int64_t head_dim : {128, 192}) {
    AttentionCase c = plain(DType::kBF16, 4, 2, 150, 200, head_dim, true);
    c.dlse = true;
    add(c);
    c.dropout_p = 0.3;
    add(c);
    c.causal = false, c.window_left = 70, c.window_right = 9;
    add(c);
    AttentionCase packed = plain(DType::kBF16, 4, 1, 0, 0, head_dim, true);
    packed.varlen_q = {130, 0, 3, 65, 1};
    packed.varlen_k = {65, 4, 200, 0, 129};
    add(packed);
    AttentionCase biased = plain(DType::kBF16, 2, 2, 136, 200, head_dim, false);
    biased.batch = 2;
    for (const bool is_shared : {false, true}) {
      biased.bias = Broadcast{!is_shared, true, true};
      biased.dbias = true;
      add(biased);
      biased.dbias = false;
      add(biased);
    }
    biased.bias = Broadcast{true, true, false};
    biased.dbias = true;
    add(biased);
    AttentionCase capped = plain(DType::kBF16, 2, 1, 150, 131, head_dim, true);
    capped.softcap = 3;
    add(capped);
    // Kernels may sum dk and dv in memory.
    AttentionCase grouped = plain(DType::kBF16, 8, 1, 1030, 70, head_dim, false);
    add(grouped);
    // The gradient of the sinks has partial sums in memory.
    packed.sinks = packed.sinks_per_sequence = grouped.sinks = true;
    add(packed);
    add(grouped);
  }
  return cases;
}

/// Runs both passes in a workspace. Before each call, all bytes of the workspace are set to `value`.
Outputs run_in_workspace(const char* compute, const Inputs& in, unsigned char value, cuda::StreamHandle stream) {
  const Outputs out = make_outputs(in);
  if (!has_forward(compute)) run_forward(in, out, compute);
  const auto [forward_bytes, backward_bytes] = workspace_bytes(compute, in, out);
  const cuda::Scratch forward_memory(forward_bytes, stream), backward_memory(backward_bytes, stream);
  Workspaces workspaces;
  for (const auto& [memory, view] :
       {std::pair{&forward_memory, &workspaces.forward}, {&backward_memory, &workspaces.backward}}) {
    if (memory->bytes() == 0) continue;
    cuda::check_call(cuda::driver().memset_async(memory->data(), value, memory->bytes(), stream), "cuMemsetD8Async",
                     "poisoning a workspace");
    *view = {reinterpret_cast<void*>(memory->data()), memory->bytes()};
  }
  submit_passes(compute, in, out, stream, workspaces);
  cuda::synchronize(stream);
  return out;
}

/// The contents of scratch memory before a call must not affect the result. The memory is filled with NaN or with
/// numbers. The results must equal those with memory that the library allocates. If sums have a fixed order, the bits
/// must be equal.
TEST_P(ScratchMemory, MayHoldAnythingWhenACallBegins) {
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const std::vector<AttentionCase> cases = scratch_cases(GetParam());
  EXPECT_GE(cases.size(), 12U);
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(describe(c));
    const Inputs in = make_inputs(c);
    const Outputs want = run(in, GetParam());
    expect_finite(GetParam(), want);
    for (const unsigned char value : {0xFF, 0x41}) {
      const Outputs got = run_in_workspace(GetParam(), in, value, stream.get());
      if (c.deterministic || !has_backward(GetParam())) {
        expect_same_bits(got, want);
      } else {
        expect_near(got, want, property_tolerance(c.dtype));
      }
      if (HasFailure()) return;
    }
  }
}

AttentionCase graph_case(std::int64_t seqlen) {
  AttentionCase c = plain(DType::kBF16, 4, 2, seqlen, seqlen + 51, 64, true);
  c.batch = 2;
  c.deterministic = true;
  return c;
}

/// A captured call with its inputs, its outputs and the expected results.
struct CapturedCall {
  CapturedCall(const char* compute, const AttentionCase& c, cuda::StreamHandle stream)
      : in(make_inputs(c)), want(run(in, compute)), out(make_outputs(in)) {
    if (!has_forward(compute)) run_forward(in, out, compute);
    graph.emplace(stream, [&] { submit_passes(compute, in, out, stream); });
  }
  /// Fills the call's outputs with NaN.
  void poison(const char* compute) const {
    if (has_forward(compute)) {
      out.o.fill(NAN);
      out.lse.fill(NAN);
    }
    for (const TensorBuffer* t : {&out.dq, &out.dk, &out.dv}) {
      if (has_backward(compute)) t->fill(NAN);
    }
  }

  Inputs in;
  Outputs want, out;
  std::optional<CapturedGraph> graph;
};

/// Captures two graphs on one stream and replays them alternately on another. Larger calls in between allocate and free
/// more memory than either graph holds.
TEST_P(ScratchMemory, OfAGraphIsItsOwn) {
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream captured, replayed;
  CapturedCall small(GetParam(), graph_case(100), captured.get()), large(GetParam(), graph_case(333), captured.get());
  const Inputs largest = make_inputs(graph_case(1500));
  for (int round = 0; round < 4; ++round) {
    (void)run(largest, GetParam());
    std::vector<CapturedCall*> calls = {&small, &large};
    if (round % 2 == 1) std::swap(calls[0], calls[1]);
    for (CapturedCall* call : calls) call->poison(GetParam());
    for (CapturedCall* call : calls) call->graph->launch_on(replayed.get());
    cuda::synchronize(replayed.get());
    expect_same_bits(small.out, small.want);
    expect_same_bits(large.out, large.want);
  }
}

/// In a graph, forward and backward must drop the same entries. The seed in memory at replay selects the entries.
TEST_P(ScratchMemory, AGraphsGradientsDropWhatItsForwardDrops) {
  AttentionCase c = graph_case(100);
  c.dropout_p = 0.4;
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  CapturedCall call(GetParam(), c, stream.get());
  ASSERT_NE(call.in.philox_state, nullptr);
  std::vector<Outputs> found;
  for (const std::uint64_t seed : {std::uint64_t{3}, ~std::uint64_t{0}, std::uint64_t{3} << 32}) {
    call.in.philox_state.get()[0] = seed;
    const Outputs want = run(call.in, GetParam());
    if (!has_forward(GetParam())) {  // this family's forward is not in the graph
      for (const auto& [to, from] : {std::pair{&call.out.o, &want.o}, {&call.out.lse, &want.lse}}) {
        to->generate([from = from](auto... at) { return from->at(at...); });
      }
    }
    call.graph->launch_on(stream.get());
    cuda::synchronize(stream.get());
    expect_same_bits(call.out, want);
    for (const Outputs& before : found) EXPECT_NE(before.o.bytes(), want.o.bytes()) << "another seed drops the same";
    found.push_back(want);
  }
}

/// A thread that has never had a CUDA context makes the first call of a kernel variant.
TEST_P(ScratchMemory, AFreshThreadMayCompileAndLoad) {
  AttentionCase c = plain(DType::kF16, 2, 1, 90, 110, 104, true);  // no other test uses this head_dim with this dtype
  c.window_left = 60;
  c.dropout_p = 0.1;
  const Inputs in = make_inputs(c);
  if (!lack_of(GetParam(), in).empty()) GTEST_SKIP() << lack_of(GetParam(), in);
  Outputs first;
  std::thread([&] { first = run(in, GetParam()); }).join();
  const Outputs again = run(in, GetParam());
  expect_near("o", first.o.values(), again.o.values(), 0);
  if (has_backward(GetParam())) expect_near(first, again, property_tolerance(c.dtype));
  check_backend(GetParam(), in);
}

/// Eight threads alternately launch kernels with little and with much shared memory. Each thread has a separate stream.
TEST_P(ScratchMemory, EightThreadsOfSmallAndLargeTilesGiveTheSameBits) {
  constexpr int kThreads = 8, kRounds = 6;
  std::vector<Inputs> ins;
  std::vector<Outputs> wants;
  for (const std::int64_t head_dim : {64, 128, 192}) {
    for (const std::int64_t seqlen : {40, 300}) {
      AttentionCase c = plain(DType::kBF16, 2, 1, seqlen, seqlen, head_dim, true);
      c.deterministic = true;
      ins.push_back(make_inputs(c));
      wants.push_back(run(ins.back(), GetParam()));
      expect_finite(GetParam(), wants.back());
    }
  }
  const auto number = [&](int thread, int round) { return static_cast<std::size_t>(5 * thread + round) % ins.size(); };
  std::vector<std::vector<Outputs>> got(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t n = number(t, round);
      got[static_cast<std::size_t>(t)].push_back(make_outputs(ins[n]));
      if (!has_forward(GetParam())) run_forward(ins[n], got[static_cast<std::size_t>(t)].back(), GetParam());
    }
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const cuda::ContextGuard guard(0);
      const cuda::OwnStream stream;
      for (int round = 0; round < kRounds; ++round) {
        const auto& out = got[static_cast<std::size_t>(t)][static_cast<std::size_t>(round)];
        submit_passes(GetParam(), ins[number(t, round)], out, stream.get());
      }
      cuda::synchronize(stream.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    for (int round = 0; round < kRounds; ++round) {
      expect_same_bits(got[static_cast<std::size_t>(t)][static_cast<std::size_t>(round)], wants[number(t, round)]);
    }
  }
}

/// The driver does not work in a process that was forked after the driver was initialized. A call in the child process
/// must fail with a one-line error message.
TEST_P(ScratchMemory, AChildForkedAfterTheFirstCallIsToldInOneLine) {
  const Inputs in = make_inputs(graph_case(100));
  const Outputs out = run(in, GetParam());
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // kills a child that hangs
    try {
      submit_passes(GetParam(), in, out, nullptr);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(std::string_view(error.what()).find('\n') == std::string_view::npos ? 0 : 3);
    } catch (...) {
      _exit(2);
    }
    _exit(1);  // status 1: no error was thrown
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: no error; 2: no attend::Error; 3: of several lines";
  expect_same_bits(run(in, GetParam()), out);  // the parent process must still work
}

class AheadScratch : public FamilyTest {};

TEST_P(AheadScratch, CompilesWhatScratchMemoryNeeds) {
  compile_ahead(GetParam(), scratch_cases(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Ahead, AheadScratch, testing::ValuesIn(kFamilies), kFamilyName);

}  // namespace
}  // namespace attend::test
