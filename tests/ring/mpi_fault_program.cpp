// mpirun -n N mpi_fault_program killed|stopped|late: runs a ring whose last rank dies during a call, stops answering,
// or never calls. The other ranks must end with an error message. tests/ring/CMakeLists.txt checks this message. A rank
// that reaches the end of this program prints "nothing happened".
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "attend/ring_mpi.hpp"
#include "ring/ring_run.hpp"

int main(int argc, char** argv) {
  using namespace attend;
  const std::string fault = argc > 1 ? argv[1] : "";
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  const RingContext context = make_mpi_ring(MPI_COMM_WORLD, {.timeout = std::chrono::milliseconds(1500)});
  const test::RingCase c = {{.seqlen_q = 300, .seqlen_k = 300, .head_dim = 32}, Sharding::kZigzag, context.size()};
  const test::RankTensors tensors = test::rank_tensors(test::make_inputs(c.problem), c, context.rank());
  const bool is_faulty = context.rank() == context.size() - 1;
  if (is_faulty && fault == "late") ::pause();
  const auto start = std::chrono::steady_clock::now();
  std::thread([&] {  // the delay is shorter than the calls below, so the fault happens during a call
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (is_faulty && fault == "killed") ::raise(SIGKILL);
    if (is_faulty && fault == "stopped") ::raise(SIGSTOP);
  })
      .detach();
  while (std::chrono::steady_clock::now() - start < std::chrono::seconds(30)) {
    test::ring_forward_of(context, tensors, c, "auto");
  }
  std::puts("nothing happened");
  MPI_Finalize();
  return 0;
}
