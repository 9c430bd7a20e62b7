// mpirun -n N mpi_program: each process is a rank. Each rank compares its rows with the result of a single device.
// Exits with 0 if the results of every rank are right.
#include <cmath>
#include <cstdio>
#include <string>

#include "attend/ring_mpi.hpp"
#include "ring/ring_run.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

/// Returns the largest difference between a rank's rows and those of the full tensor, relative to the largest magnitude
/// in the full tensor.
double distance(const TensorBuffer& local, const TensorBuffer& whole, const RingCase& c, int rank) {
  const auto rows = shard_positions(c.sharding, whole.shape()[2], rank, c.num_ranks);
  double error = 0, scale = 1e-30;
  for (const double value : whole.values()) scale = std::isfinite(value) ? std::max(scale, std::abs(value)) : scale;
  for (std::int64_t b = 0; b < local.shape()[0]; ++b) {
    for (std::int64_t h = 0; h < local.shape()[1]; ++h) {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::int64_t col = 0; col < local.shape()[3]; ++col) {
          const double got = local.at(b, h, static_cast<std::int64_t>(row), col);
          const double want = whole.at(b, h, rows[row], col);
          if (got == want) continue;  // for example, both are -inf
          const double e = std::abs(got - want);
          if (std::isnan(e)) return e;  // std::max() would drop the NaN
          error = std::max(error, e);
        }
      }
    }
  }
  return error / scale;
}

bool agrees(const RingContext& context, const RingCase& c) {
  const Inputs whole = make_inputs(c.problem);
  const Outputs want = run(whole, "cpu");
  const RankTensors t = rank_tensors(whole, c, context.rank());
  ring_forward_of(context, t, c, "auto");
  ring_backward_of(context, t, c, "auto");
  bool ok = true;
  for (const auto& [name, got, one] : {std::tuple{"o", &t.out.o, &want.o},
                                       {"lse", &t.out.lse, &want.lse},
                                       {"dq", &t.out.dq, &want.dq},
                                       {"dk", &t.out.dk, &want.dk},
                                       {"dv", &t.out.dv, &want.dv}}) {
    const double error = distance(*got, *one, c, context.rank());
    const double allowed = property_tolerance(c.problem.dtype);
    std::printf("rank %d %s %s: error %.3g allowed %.3g\n", context.rank(), describe(c).c_str(), name, error, allowed);
    ok = ok && error <= allowed;
  }
  return ok;
}

bool has_groups(int num_ranks) {
  return num_ranks % 2 == 0 && num_ranks > 2;
}

/// Returns whether the library refuses to divide a prime number of ranks into groups.
bool refuses_groups(const RingContext& context) {
  const RingCase c = {{.heads_q = 4 * context.size(), .heads_k = context.size(), .seqlen_q = 40, .seqlen_k = 40},
                      Sharding::kZigzag,
                      context.size(),
                      RingAlgorithm::kTwoLevel};
  try {
    ring_forward_of(context, rank_tensors(make_inputs(c.problem), c, context.rank()), c, "auto");
  } catch (const Error& error) {
    return std::string(error.what()).starts_with("num_ranks: " + std::to_string(context.size()) + " with ");
  }
  return false;
}

/// Passes a different option on one rank. Returns whether every rank throws the same error message.
bool refuses(const RingContext& context) {
  const RingCase c = {{.seqlen_q = 40, .seqlen_k = 40}, Sharding::kZigzag, context.size()};
  RankTensors t = rank_tensors(make_inputs(c.problem), c, context.rank());
  const int last = context.size() - 1;
  t.in.options.causal = context.rank() == last;
  const std::string want = "causal: true on rank " + std::to_string(last) + ", allowed false as on rank 0";
  try {
    ring_forward_of(context, t, c, "auto");
  } catch (const Error& error) {
    return error.what() == want;
  }
  return false;
}

bool all_right(const RingContext& context) {
  AttentionCase everything = {.batch = 2,
                              .heads_q = 2 * context.size(),
                              .heads_k = context.size(),
                              .seqlen_q = 61,
                              .seqlen_k = 80,
                              .head_dim = 16,
                              .head_dim_v = 24,
                              .causal = true,
                              .alibi = true,
                              .dropout_p = 0.2,
                              .dlse = true,
                              .seed = 91};
  AttentionCase windowed = everything;
  windowed.causal = false;
  windowed.window_left = 20;
  windowed.window_right = 3;
  windowed.dropout_p = 0;
  windowed.softcap = 5;
  windowed.bias = Broadcast{true, false, true};
  windowed.mask = Broadcast{false, true, true};
  bool ok = refuses(context) && (has_groups(context.size()) || refuses_groups(context));
  for (const RingAlgorithm algorithm : {RingAlgorithm::kExchange, RingAlgorithm::kAllGather, RingAlgorithm::kAllToAll,
                                        RingAlgorithm::kTwoLevel, RingAlgorithm::kAutomatic}) {
    if (algorithm == RingAlgorithm::kTwoLevel && !has_groups(context.size())) continue;
    for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        everything.dtype = windowed.dtype = dtype;
        ok = agrees(context, {everything, sharding, context.size(), algorithm}) && ok;
        ok = agrees(context, {windowed, sharding, context.size(), algorithm}) && ok;
      }
    }
  }
  return ok;
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int ok = 0, everywhere = 0, rank = 0;
  {
    const attend::RingContext context = attend::make_mpi_ring(MPI_COMM_WORLD);
    rank = context.rank();
    ok = attend::test::all_right(context) ? 1 : 0;
  }
  MPI_Allreduce(&ok, &everywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Finalize();
  if (rank == 0) std::printf("mpi: %s\n", everywhere == 1 ? "ok" : "a rank found a fault");
  return everywhere == 1 ? 0 : 1;
}
