// What all functions of attend/attend.h share: status, error, tensor, version. Include attend/attend.h.
#ifndef ATTEND_C_TYPES_H_
#define ATTEND_C_TYPES_H_

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): C
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#include "attend/export.hpp"
#include "attend/version.hpp"

/// The version of the headers as a number that grows: 1203 is 0.12.3.
#define ATTEND_VERSION_NUMBER (ATTEND_VERSION_MAJOR * 10000 + ATTEND_VERSION_MINOR * 100 + ATTEND_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/// What functions return, and attend_error::code. Later versions may add numbers.
enum {
  ATTEND_OK = 0,
  ATTEND_INVALID_ARGUMENT = 1,  ///< a shape, stride, dtype or parameter that attention does not define
  ATTEND_UNSUPPORTED = 2,       ///< well defined, but the chosen backend, or this library, does not do it
  ATTEND_MISSING_HARDWARE = 3,  ///< the chosen backend needs a device or driver that is not here
  ATTEND_IO = 4,                ///< a file is missing, malformed, or cannot be written
  ATTEND_INTERNAL = 5,          ///< a defect of the library, a GPU or another rank that failed
  ATTEND_OUT_OF_MEMORY = 6      ///< of the host
};
/// One of these numbers.
typedef int32_t attend_status;

/// Where a function puts what went wrong: memory of the caller, on any thread's stack. Frozen.
typedef struct attend_error {
  int32_t code;        ///< an attend_status. ATTEND_OK after a call that succeeded
  char message[1020];  ///< one line, UTF-8, ends in 0: the argument, the value found, what is allowed. Cut if longer
} attend_error;

/// Element types. ATTEND_F64 is taken by the backend `reference` only, ATTEND_BOOL (one byte, 0 or 1) by masks only,
/// ATTEND_F8E4M3 (float8_e4m3fn) and ATTEND_I8 by caches of keys and values only.
enum {
  ATTEND_F32 = 0,
  ATTEND_F16 = 1,
  ATTEND_BF16 = 2,
  ATTEND_F64 = 3,
  ATTEND_BOOL = 4,
  ATTEND_F8E4M3 = 5,
  ATTEND_I8 = 6
};

enum { ATTEND_CPU = 0, ATTEND_CUDA = 1 };  ///< attend_tensor::device_type

/// A view of memory that the caller owns. Dimensions are always (batch, heads, seqlen, head_dim); a BSHD buffer is the
/// same view with other strides. Strides are in elements, >= 0, and the last one is 1. Inputs may have stride 0
/// (broadcast); outputs may not. Frozen.
typedef struct attend_tensor {
  void* data;            ///< an input's is only read. May be null where a dimension is 0
  int64_t shape[4];      ///< in elements
  int64_t stride[4];     ///< in elements
  int32_t dtype;         ///< ATTEND_F32, ...
  int32_t device_type;   ///< ATTEND_CPU or ATTEND_CUDA
  int32_t device_index;  ///< 0 on a CPU; the GPU's number
  int32_t reserved;      ///< 0
} attend_tensor;

/// A dense (batch, heads, seqlen, head_dim) view of `data` on the CPU.
/// @param tensor  out
/// @param data    const for the sake of inputs; an output's memory must not be const
/// @param shape   (batch, heads, seqlen, head_dim). The calls that take the tensor check it. Null: (0, 0, 0, 0)
ATTEND_API void attend_tensor_init(attend_tensor* tensor, const void* data, int32_t dtype, const int64_t shape[4]);

/// The same for a dense (batch, seqlen, heads, head_dim) buffer. `shape` is still (batch, heads, seqlen, head_dim).
ATTEND_API void attend_tensor_init_bshd(attend_tensor* tensor, const void* data, int32_t dtype, const int64_t shape[4]);

/// "MAJOR.MINOR.PATCH" of the library. Stays valid.
ATTEND_API const char* attend_version(void);

/// ATTEND_VERSION_NUMBER of the library.
ATTEND_API int32_t attend_version_number(void);

/// "ok", "invalid argument", "unsupported", ...; "unknown status" for other numbers. Stays valid.
ATTEND_API const char* attend_status_name(int32_t status);

/// "f32", "f16", "bf16", "f64", "bool", "f8e4m3", "i8"; "?" for other numbers. Stays valid.
ATTEND_API const char* attend_dtype_name(int32_t dtype);

/// Bytes of one element; 0 for other numbers.
ATTEND_API int64_t attend_dtype_bytes(int32_t dtype);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_TYPES_H_
