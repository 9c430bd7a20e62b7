// Exact attention from C. It covers the C++ interface, except rings that use MPI or NCCL. The headers are C99 and also
// compile as C++.
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
// Programs must be linked with libattend_c. pkg-config supports the name attend_c, and the CMake package attend has the
// target attend::attend_c. libattend_c needs no other library of attend. Its ABI is stable: later versions may add
// functions, enumerators and fields, but never change or remove them. Symbols carry the version ATTEND_1.
//
// The following conditions hold for every function:
//
// - It returns ATTEND_OK or another attend_status. The last argument, `error`, receives the error text of the C++
//   interface. It may be null. No function throws an exception.
//
// - A call that refuses its arguments writes nothing except `error`.
//
// - A pointer may be null only if its comment allows it. Functions refuse other null pointers.
//
// - A flag is 0 or 1. A field named `reserved` must be 0.
//
// - The memory that a struct points to must stay valid until the call is done. On a CPU the call is done when the
//   function returns. On a GPU it is done when the stream has finished the work. The structs themselves may be
//   destroyed when the function returns.
//
// - Functions are thread-safe unless their comment states otherwise. However, a call must not write memory that another
//   call reads or writes at the same time.
//
// A struct that begins with `struct_size` may grow at its end in later versions. Its init function sets `struct_size`
// to the value that the caller passes. It sets all fields up to that size to their defaults. If a later version adds a
// field, its value 0 keeps the behaviour of the versions without the field. Older callers therefore work with newer
// libraries. A newer caller works with an older library if all fields that are unknown to the library are 0. Otherwise
// the library refuses the struct.
#ifndef ATTEND_ATTEND_H_
#define ATTEND_ATTEND_H_

#include "attend/c/attention.h"  // IWYU pragma: export
#include "attend/c/ring.h"       // IWYU pragma: export
#include "attend/c/serving.h"    // IWYU pragma: export
#include "attend/c/types.h"      // IWYU pragma: export

#endif  // ATTEND_ATTEND_H_
