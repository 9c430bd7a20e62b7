// Exact attention from C: everything in the C++ interface, except rings of MPI and NCCL. Written in C99; also compiles
// as C++.
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
// Link with libattend_c (pkg-config attend_c, or attend::attend_c of the CMake package attend). libattend_c needs no
// other library of attend. Its ABI is stable: functions, numbers and fields are added, never changed or removed.
// Symbols carry the version ATTEND_1.
//
// These rules hold for every function:
//
// - It returns ATTEND_OK or another attend_status. The last argument, `error`, receives the error text of the C++
//   interface; it may be null. No exception leaves a function.
//
// - A call that refuses its arguments writes nothing except `error`.
//
// - A pointer may be null only if its comment allows null. Other null pointers are refused.
//
// - Flags are 0 or 1. Fields named `reserved` are 0.
//
// - The memory that a struct points to must stay valid until the call is done: on a CPU until the function returns, on
//   a GPU until the stream has done the work. The structs themselves may be destroyed when the function returns.
//
// - Functions are thread-safe unless stated otherwise, as long as no call writes memory that another call reads or
//   writes.
//
// A struct that begins with `struct_size` grows at its end in later versions. Its init function sets `struct_size` to
// the caller's value. It sets every field that both caller and library have to its default. For a field added later,
// the value 0 means the behaviour before that field existed. Older callers therefore work with newer libraries. A newer
// caller works with an older library, which refuses a larger struct unless all its unknown fields are 0.
#ifndef ATTEND_ATTEND_H_
#define ATTEND_ATTEND_H_

#include "attend/c/attention.h"  // IWYU pragma: export
#include "attend/c/ring.h"       // IWYU pragma: export
#include "attend/c/serving.h"    // IWYU pragma: export
#include "attend/c/types.h"      // IWYU pragma: export

#endif  // ATTEND_ATTEND_H_
