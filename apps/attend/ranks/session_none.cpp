// Replaces session_mpi.cpp if the program is built without MPI.
#include "attend/error.hpp"
#include "ranks/session.hpp"

namespace attend::cli {

std::unique_ptr<RingSession> join_ring() {
  throw Error(
      ErrorCode::kMissingHardware,
      "--ring: this program is built without MPI, allowed with --ranks N (threads), or if MPI is installed before "
      "the build (Debian: libopenmpi-dev openmpi-bin; make ring does both)");
}

}  // namespace attend::cli
