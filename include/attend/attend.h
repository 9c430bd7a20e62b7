// Exact attention from C: all that the C++ interface has, but for rings of MPI and NCCL. C99; C++ takes it too.
//
//   attend_tensor q, k, v, o;
//   const int64_t shape[4] = {batch, num_heads, seqlen, head_dim};
//   attend_tensor_init(&q, q_data, ATTEND_F32, shape);                      // k, v and o likewise
//   attend_params params;
//   attend_params_init(&params, sizeof params);
//   params.causal = 1;
//   attend_forward_call call;
//   attend_forward_call_init(&call, sizeof call);
//   call.q = &q; call.k = &k; call.v = &v; call.o = &o; call.params = &params;
//   attend_error error;
//   if (attend_forward(&call, &error) != ATTEND_OK) fprintf(stderr, "%s\n", error.message);
//
// Link with libattend_c (pkg-config attend_c, or attend::attend_c of CMake's package attend). It needs no other library
// of attend. Its ABI is stable: functions, numbers and fields are added, never changed or removed, and symbols carry
// the version ATTEND_1.
//
// Rules that hold for every function:
//   - It returns ATTEND_OK or another attend_status. The text of the error goes to `error`, the last argument, which
//     may be null. It is the line that the C++ interface gives. No exception comes out.
//   - A call that refuses its arguments has written nothing but `error`.
//   - A pointer that may be null is said to be. Others are refused where they are.
//   - Flags are 0 or 1. Fields named `reserved` are 0.
//   - What a struct points to has to stay until the call is done: on a CPU until the function returns, on a GPU until
//     the stream has done the work. The structs themselves may go when the function returns.
//   - Functions are thread-safe where nothing else is said, as long as no call writes what another one reads or writes.
//
// A struct that begins with `struct_size` grows at its end in later versions. Its init function sets every field that
// caller and library both know to its default, and `struct_size` to the caller's. The value 0 of a field that was added
// later means what the library did before it, so that older callers and newer libraries understand each other, and the
// other way round: a library refuses a struct that is larger than its own, unless all that it does not know is 0.
#ifndef ATTEND_ATTEND_H_
#define ATTEND_ATTEND_H_

#include "attend/c/attention.h"  // IWYU pragma: export
#include "attend/c/ring.h"       // IWYU pragma: export
#include "attend/c/serving.h"    // IWYU pragma: export
#include "attend/c/types.h"      // IWYU pragma: export

#endif  // ATTEND_ATTEND_H_
