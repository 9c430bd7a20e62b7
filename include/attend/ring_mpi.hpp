// Ranks of a ring that are processes of an MPI program. In a library of its own, attend_mpi, so that libattend links no
// MPI.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
//   const attend::RingContext rank = attend::make_mpi_ring(MPI_COMM_WORLD);
//   attend::ring_forward(rank, q, k, v, o, &lse, {.causal = true});
#pragma once

#include <mpi.h>

#include "attend/ring.hpp"

namespace attend {

/// The ring of the processes of a communicator: rank and size are those of `comm`. Collective: every process of it has
/// to call. The messages travel in a duplicate of `comm`, which is freed with the last copy of the context: before
/// MPI_Finalize, on every process.
///
/// MPI has to be initialised with MPI_THREAD_FUNNELED or more, and only the thread that did so uses the context. A
/// process whose call ends in an error after the ranks have agreed on it (out of memory), or that has waited for longer
/// than limits.timeout, calls MPI_Abort: the others wait for its messages. What all ranks refuse is an Error on each of
/// them, as with any ring.
/// @throws Error where MPI is not initialised, or an MPI call fails that the communicator's handler lets return.
[[nodiscard]] RingContext make_mpi_ring(MPI_Comm comm, const RingLimits& limits = {});

}  // namespace attend
