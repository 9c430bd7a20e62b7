// Tests how the `cpu` backend behaves in its process: after a fork, next to other users of OpenMP, with a selected SIMD
// target, and with work proportional to the number of tokens.
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cpu/parallel.hpp"
#include "cpu/work_list.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

AttentionCase threaded_case() {
  return {.heads_q = 8, .heads_k = 8, .seqlen_q = 300, .seqlen_k = 300, .head_dim = 32, .head_dim_v = 32, .seed = 71};
}

/// Runs work() in a forked child. Returns its exit status, or -1 if it has not ended after 20 s.
template <class Work>
int in_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // kills a child that hangs
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool thread_sanitized() {
#if defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(thread_sanitizer);
#else
  return false;
#endif
}

// A forked child does not have the parent's OpenMP threads. If a parallel region in the child used them, it would wait
// forever.
TEST(Fork, ChildComputesTheSameBits) {
  if (thread_sanitized()) GTEST_SKIP() << "a child of several threads may start none under ThreadSanitizer";
  set_cpu_threads(3);
  const Inputs in = make_inputs(threaded_case());
  const Outputs want = run(in, "cpu");  // starts the OpenMP threads
  const auto same_in_child = [&] {
    const Outputs got = run(in, "cpu");
    return got.o.bytes() == want.o.bytes() && got.dk.bytes() == want.dk.bytes() ? 0 : 1;
  };
  EXPECT_EQ(in_child(same_in_child), 0);
  EXPECT_EQ(in_child([&] { return in_child(same_in_child); }), 0) << "grandchild";
  expect_same_bits(run(in, "cpu"), want);  // the parent process must still work
  set_cpu_threads(0);
}

std::atomic<bool> ends_calls = false;

/// Returns the seconds from the moment when the interrupt check returns true until the call ends. Returns -1 if the
/// call was not interrupted.
double seconds_to_end(const std::function<void()>& call) {
  ends_calls = false;
  cpu::set_interrupt_check([] { return ends_calls.load(); });
  std::chrono::steady_clock::time_point asked;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    asked = std::chrono::steady_clock::now();
    ends_calls = true;
  });
  double seconds = -1;
  try {
    call();
    later.join();
  } catch (const cpu::Interrupted&) {
    const auto now = std::chrono::steady_clock::now();
    later.join();
    seconds = std::chrono::duration<double>(now - asked).count();
  }
  cpu::set_interrupt_check(nullptr);
  return seconds;
}

// One task of the reference takes many seconds, and so does one task of the fast backend's backward. Both backends must
// check for interrupts within a task.
TEST(Interrupt, EndsLongTasksOfEveryBackend) {
  if (thread_sanitized()) GTEST_SKIP() << "OpenMP's threads are not known to ThreadSanitizer";
  set_cpu_threads(2);
  const Inputs in = make_inputs(
      {.heads_q = 2, .heads_k = 2, .seqlen_q = 8192, .seqlen_k = 16384, .head_dim = 64, .head_dim_v = 64, .seed = 73});
  const Outputs out = make_outputs(in);
  out.o.fill(0.5);
  out.lse.fill(20);
  const auto backward_by = [&](const char* compute) {
    return [&in, &out, compute] {
      for (int again = 0; again < 100; ++again) {
        backward(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(), out.dq.view(),
                 out.dk.view(), out.dv.view(), in.params(compute));
      }
    };
  };
  for (const char* compute : {"reference", "cpu_naive", "cpu"}) {
    const double seconds = seconds_to_end(backward_by(compute));
    EXPECT_TRUE(seconds >= 0 && seconds < 2) << compute << " backward: " << seconds;
  }
  for (const char* compute : {"reference", "cpu_naive"}) {
    const double seconds = seconds_to_end(
        [&] { forward(in.q.view(), in.k.view(), in.v.view(), out.o.view(), &out.lse.view(), in.params(compute)); });
    EXPECT_TRUE(seconds >= 0 && seconds < 2) << compute << " forward: " << seconds;
  }
  // A NaN makes the backend compute rows with the reference, also on threads other than the caller's.
  static_cast<float*>(in.dout.view().data)[0] = std::numeric_limits<float>::quiet_NaN();
  static_cast<float*>(in.dout.view().data)[in.dout.view().stride[1]] = std::numeric_limits<float>::quiet_NaN();
  const double seconds = seconds_to_end(backward_by("cpu"));
  EXPECT_TRUE(seconds >= 0 && seconds < 2) << "cpu with NaN: " << seconds;
  set_cpu_threads(0);
}

TEST(ThreadCount, IsWhatAttendWasTold) {
  const int before = cpu_threads();
  const int openmp = omp_get_max_threads();
  omp_set_num_threads(7);  // another library may set this when it is loaded
  EXPECT_EQ(cpu_threads(), before);
  set_cpu_threads(3);
  omp_set_num_threads(1);
  EXPECT_EQ(cpu_threads(), 3);
  set_cpu_threads(0);
  EXPECT_EQ(cpu_threads(), before);
  omp_set_num_threads(openmp);
  EXPECT_THROW(set_cpu_threads(-1), Error);
  int inside = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
  inside = cpu_threads();
  EXPECT_EQ(inside, 1) << "in a parallel region of the caller";
}

TEST(SimdTarget, IsTheOneAskedFor) {
  const char* wish = std::getenv("ATTEND_SIMD");
  if (wish == nullptr) GTEST_SKIP() << "ATTEND_SIMD is not set";
  EXPECT_EQ(cpu_simd_target(), wish);
}

/// Returns whether /proc/cpuinfo lists the flag. The function is independent of the library's detection of processor
/// features.
bool processor_has(const std::string& flag) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("flags")) return (line + " ").find(" " + flag + " ") != std::string::npos;
  }
  return false;
}

// Runs in a separate process, because the method for bf16 products is chosen at the first call.
TEST(Bf16Unit, IsTheOneAskedFor) {
  const char* wish = std::getenv("ATTEND_CPU_BF16_DOT");
  if (wish == nullptr) GTEST_SKIP() << "ATTEND_CPU_BF16_DOT is not set";
  const bool has_512_bits = cpu_simd_target().starts_with("AVX3");
  const struct {
    const char* wish;
    const char* unit;
    bool is_there;
  } units[] = {{"0", "float32", true},
               {"1", "AVX512_BF16", has_512_bits && processor_has("avx512_bf16")},
               {"amx", "AMX", has_512_bits && processor_has("amx_bf16")},
               {"emulated", "emulated AMX", has_512_bits}};
  std::string allowed;
  for (const auto& unit : units) {
    if (unit.is_there) allowed += (allowed.empty() ? "" : ", ") + std::string(unit.wish);
  }
  for (const auto& unit : units) {
    if (std::string_view(wish) != unit.wish || !unit.is_there) continue;
    EXPECT_EQ(cpu_bf16_unit(), unit.unit);
    return;
  }
  try {  // either this processor does not support the method, or its name is unknown
    FAIL() << cpu_bf16_unit();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), std::string("ATTEND_CPU_BF16_DOT: '") + wish +
                                "', allowed on this processor with SIMD target " + std::string(cpu_simd_target()) +
                                ": " + allowed);
  }
  EXPECT_THROW((void)run(make_inputs(threaded_case()), "cpu"), Error)
      << "and not in a thread, where it would end the process";
}

// Compares the tasks that WorkList numbers with a direct count.
std::int64_t check_tasks(const core::Problem& p, cpu::BlocksOf of, std::int64_t block) {
  const cpu::WorkList work(p, of, block);
  const std::int64_t heads = of == cpu::BlocksOf::kRows ? p.num_heads_q : p.num_heads_k;
  std::vector<std::vector<std::int64_t>> covered(static_cast<std::size_t>(p.num_sequences * heads));
  for (std::int64_t number = 0; number < work.size(); ++number) {
    const auto [sequence, head, begin, end] = work.at(number);
    const std::int64_t length = of == cpu::BlocksOf::kRows ? sequence.seqlen_q : sequence.seqlen_k;
    EXPECT_TRUE(begin % block == 0 && begin < end && end <= length && end - begin <= block) << number;
    for (std::int64_t at = begin; at < end; ++at) covered[sequence.index * heads + head].push_back(at);
  }
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const core::Sequence sequence = p.sequence(index);
    const std::int64_t length = of == cpu::BlocksOf::kRows ? sequence.seqlen_q : sequence.seqlen_k;
    for (std::int64_t head = 0; head < heads; ++head) {
      std::vector<std::int64_t>& rows = covered[index * heads + head];
      std::sort(rows.begin(), rows.end());
      EXPECT_EQ(std::ssize(rows), length) << "sequence " << index << ", head " << head;
      EXPECT_EQ(std::unique(rows.begin(), rows.end()), rows.end());
    }
  }
  return work.size();
}

core::Problem problem_of(const Inputs& in, const Outputs& out) {
  return core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), nullptr, in.params("cpu"));
}

TEST(WorkList, HoldsEveryBlockOnce) {
  AttentionCase packed = {.heads_q = 4, .heads_k = 2, .head_dim = 4, .head_dim_v = 4};
  packed.varlen_q = {0, 5, 0, 0, 300, 1, 128, 0};
  packed.varlen_k = {7, 0, 0, 3, 129, 64, 256, 0};
  const Inputs in = make_inputs(packed);
  const Outputs out = make_outputs(in);
  EXPECT_EQ(check_tasks(problem_of(in, out), cpu::BlocksOf::kRows, 128), 4 * (1 + 3 + 1 + 1));
  EXPECT_EQ(check_tasks(problem_of(in, out), cpu::BlocksOf::kKeys, 64), 2 * (1 + 1 + 3 + 1 + 4));
  for (const std::int64_t batch : {0, 1, 3}) {
    const Inputs dense = make_inputs({.batch = batch, .heads_q = 4, .heads_k = 2, .seqlen_q = 130, .seqlen_k = 64});
    const Outputs dense_out = make_outputs(dense);
    EXPECT_EQ(check_tasks(problem_of(dense, dense_out), cpu::BlocksOf::kRows, 128), batch * 4 * 2);
    EXPECT_EQ(check_tasks(problem_of(dense, dense_out), cpu::BlocksOf::kKeys, 64), batch * 2);
  }
}

// The time must depend on the number of tokens. A max_seqlen far above every length must not add work.
TEST(Varlen, GenerousMaxSeqlenCostsNothing) {
  AttentionCase c = {.heads_q = 4, .heads_k = 2, .head_dim = 16, .head_dim_v = 16, .seed = 72};
  c.varlen_q = c.varlen_k = std::vector<std::int64_t>(64, 2);
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, "cpu");
  Params params = in.params("cpu");
  params.varlen->max_seqlen_q = params.varlen->max_seqlen_k = (std::int64_t{1} << 31) - 1;
  const Outputs out = make_outputs(in);
  const auto start = std::chrono::steady_clock::now();
  forward(in.q.view(), in.k.view(), in.v.view(), out.o.view(), &out.lse.view(), params);
  backward(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(), out.dq.view(),
           out.dk.view(), out.dv.view(), params);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  expect_same_bits(out, want);
  EXPECT_LT(seconds, 2);  // work proportional to max_seqlen would take minutes
}

}  // namespace
}  // namespace attend::test
