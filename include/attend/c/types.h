// Types that all functions of attend/attend.h share: status, error, tensor, version. Include attend/attend.h.
#ifndef ATTEND_C_TYPES_H_
#define ATTEND_C_TYPES_H_

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): C
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#include "attend/export.hpp"
#include "attend/version.hpp"

/// Version of the headers as an increasing number: 1203 is 0.12.3.
#define ATTEND_VERSION_NUMBER (ATTEND_VERSION_MAJOR * 10000 + ATTEND_VERSION_MINOR * 100 + ATTEND_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/// Results of functions, and values of attend_error::code. Later versions may add numbers.
enum {
  ATTEND_OK = 0,
  ATTEND_INVALID_ARGUMENT = 1,  ///< a shape, stride, dtype or parameter that attention does not define
  ATTEND_UNSUPPORTED = 2,       ///< well defined, but not supported by the chosen backend or by this library
  ATTEND_MISSING_HARDWARE = 3,  ///< the chosen backend needs a missing device or driver
  ATTEND_IO = 4,                ///< a file is missing, malformed, or cannot be written
  ATTEND_INTERNAL = 5,          ///< a defect of the library, or a failure of a GPU or another rank
  ATTEND_OUT_OF_MEMORY = 6      ///< host memory is exhausted
};
/// A status number.
typedef int32_t attend_status;

/// Receives the description of an error. The memory belongs to the caller; the stack is fine. Frozen.
typedef struct attend_error {
  int32_t code;  ///< an attend_status. ATTEND_OK after a call that succeeded
  /// one line, UTF-8, terminated by 0: the argument, the value found, the allowed values. Truncated if longer
  char message[1020];
} attend_error;

/// Element types. ATTEND_F64 is supported only by the backend `reference`. ATTEND_BOOL (one byte, 0 or 1) is only for
/// masks. ATTEND_F8E4M3 (float8_e4m3fn) and ATTEND_I8 are only for caches of keys and values.
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
/// same view with other strides. Strides are in elements and >= 0, and the last stride is 1. Inputs may have stride 0
/// (broadcast); outputs may not. Frozen.
typedef struct attend_tensor {
  void* data;            ///< memory of an input is only read. May be null if a dimension is 0
  int64_t shape[4];      ///< extents
  int64_t stride[4];     ///< in elements
  int32_t dtype;         ///< ATTEND_F32, ...
  int32_t device_type;   ///< ATTEND_CPU or ATTEND_CUDA
  int32_t device_index;  ///< number of the GPU; 0 on a CPU
  int32_t reserved;      ///< 0
} attend_tensor;

/// Sets a dense (batch, heads, seqlen, head_dim) view of `data` on the CPU.
/// @param tensor  out
/// @param data    const, so that inputs can be const; memory of an output must not be const
/// @param dtype   type of every element
/// @param shape   (batch, heads, seqlen, head_dim), checked by the calls that use the tensor. Null: (0, 0, 0, 0)
ATTEND_API void attend_tensor_init(attend_tensor* tensor, const void* data, int32_t dtype, const int64_t shape[4]);

/// Sets a view of a dense (batch, seqlen, heads, head_dim) buffer. `shape` is still (batch, heads, seqlen, head_dim).
ATTEND_API void attend_tensor_init_bshd(attend_tensor* tensor, const void* data, int32_t dtype, const int64_t shape[4]);

/// Returns "MAJOR.MINOR.PATCH" of the library. The string stays valid.
ATTEND_API const char* attend_version(void);

/// Returns ATTEND_VERSION_NUMBER of the library.
ATTEND_API int32_t attend_version_number(void);

/// Returns "ok", "invalid argument", "unsupported", ...; "unknown status" for other numbers. The string stays valid.
ATTEND_API const char* attend_status_name(int32_t status);

/// Returns "f32", "f16", "bf16", "f64", "bool", "f8e4m3", "i8"; "?" for other numbers. The string stays valid.
ATTEND_API const char* attend_dtype_name(int32_t dtype);

/// Returns the bytes of one element; 0 for other numbers.
ATTEND_API int64_t attend_dtype_bytes(int32_t dtype);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_TYPES_H_
