// The functions of NCCL that the library uses, declared here and loaded at run time. Building needs no NCCL header.
// Source: NVIDIA, NCCL documentation, API. The numbers of enumerators have not changed in nccl.h since version 2.7.
#pragma once

#include <string>

#include "attend/ring_nccl.hpp"
#include "cuda/driver/driver_types.hpp"

namespace attend::ring {

using NcclResult = int;                    // ncclResult_t; 0 is success
using NcclComm = struct NcclCommTag*;      // ncclComm_t
constexpr NcclResult kNcclInProgress = 7;  // ncclInProgress
constexpr int kNcclBytes = 0;              // ncclInt8 of ncclDataType_t

// List of NCCL's functions. The arguments of the macro X are the member of Nccl, the symbol of libnccl, and the
// parameter list.
#define ATTEND_NCCL_FUNCTIONS(X)                                                                \
  X(get_unique_id, ncclGetUniqueId, (NcclId*))                                                  \
  X(comm_init_rank, ncclCommInitRank, (NcclComm*, int size, NcclId, int rank))                  \
  X(comm_destroy, ncclCommDestroy, (NcclComm))                                                  \
  X(comm_abort, ncclCommAbort, (NcclComm))                                                      \
  X(comm_count, ncclCommCount, (NcclComm, int*))                                                \
  X(comm_device, ncclCommCuDevice, (NcclComm, int*))                                            \
  X(comm_rank, ncclCommUserRank, (NcclComm, int*))                                              \
  X(comm_error, ncclCommGetAsyncError, (NcclComm, NcclResult*))                                 \
  X(group_start, ncclGroupStart, ())                                                            \
  X(group_end, ncclGroupEnd, ())                                                                \
  X(send, ncclSend, (const void*, std::size_t, int type, int to, NcclComm, cuda::StreamHandle)) \
  X(receive, ncclRecv, (void*, std::size_t, int type, int from, NcclComm, cuda::StreamHandle))  \
  X(all_gather, ncclAllGather, (const void*, void*, std::size_t each, int type, NcclComm, cuda::StreamHandle))

/// Function pointers to NCCL's entry points.
struct Nccl {
// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are declarators and parameter lists.
#define ATTEND_DECLARE(member, symbol, parameters) NcclResult(*member) parameters = nullptr;
  ATTEND_NCCL_FUNCTIONS(ATTEND_DECLARE)
#undef ATTEND_DECLARE
  // NOLINTEND(bugprone-macro-parentheses)
  const char* (*get_error_string)(NcclResult) = nullptr;
  std::string path;  ///< path of the loaded libnccl.so.2
};

/// Returns NCCL's entry points. The first call loads the library. @throws Error (kMissingHardware) if NCCL is not
/// found.
[[nodiscard]] const Nccl& nccl();

/// Checks that `result`, returned by the function `call`, is success. @throws Error (kInternal) with NCCL's error text.
void check_nccl(NcclResult result, const char* call);

}  // namespace attend::ring
