// Rings whose ranks are processes of an MPI program. They are in a separate library, attend_mpi, so that libattend does
// not depend on MPI.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
//   const attend::RingContext rank = attend::make_mpi_ring(MPI_COMM_WORLD);
//   attend::ring_forward(rank, q, k, v, o, &lse, {.causal = true});
#pragma once

#include <mpi.h>

#include "attend/ring.hpp"

namespace attend {

/// Makes the ring of all processes of the communicator `comm`. Rank and size are those of `comm`. The call is
/// collective: every process of `comm` must call. Messages use a duplicate of `comm`. The destruction of the context's
/// last copy frees the duplicate, so every process must destroy all copies before MPI_Finalize.
///
/// MPI must be initialised with MPI_THREAD_FUNNELED or more, and only the initialising thread may use the context. A
/// process calls MPI_Abort in two situations. Its call fails after the ranks have agreed on it, for example because
/// memory is exhausted. Or it has waited for longer than limits.timeout. Without the abort, the other processes would
/// wait for its messages forever. An invalid call throws an Error on every rank, as in any ring.
/// @throws Error if MPI is not initialised. Also throws if an MPI call fails and the error handler of the communicator
///   returns.
[[nodiscard]] RingContext make_mpi_ring(MPI_Comm comm, const RingLimits& limits = {});

}  // namespace attend
