// A tensor argument from Python, with any number of dimensions and any layout. An Array holds the object that owns its
// memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // required in every source; otherwise std::string would have a different converter

#include <array>
#include <cstdint>
#include <string>

#include "attend/attention.hpp"
#include "attend/serving.hpp"

namespace attend::python {

namespace nb = nanobind;

/// Order of the dimensions of q, k, v and o.
enum class Layout : std::uint8_t {
  kBhsd,  ///< (batch, heads, seqlen, head_dim)
  kBshd,  ///< (batch, seqlen, heads, head_dim)
  kThd,   ///< (tokens, heads, head_dim): packed sequences
};

/// Returns the layout for "bhsd", "bshd" or "thd". @throws Error (kInvalidArgument) for any other name.
[[nodiscard]] Layout layout_of(const std::string& name);
/// Returns the layout for "bhsd" or "bshd", for tensors that are not packed. @throws Error (kInvalidArgument) for any
/// other name.
[[nodiscard]] Layout dense_layout_of(const std::string& name);

/// A strided block of memory. Strides are in elements.
struct Array {
  /// More dimensions than any argument may have, so that a view can name an argument with too many dimensions.
  static constexpr int kMaxDims = 8;

  void* data = nullptr;
  /// Name as in dtype_name(), or e.g. "u16" if the library has no such element type.
  std::string dtype;
  Device device = {};
  int num_dims = 0;
  std::array<std::int64_t, kMaxDims> shape = {};
  std::array<std::int64_t, kMaxDims> stride = {};
  nb::object owner;  ///< keeps the memory alive

  /// Reads an object that supports DLPack or the buffer protocol, without a copy. A non-empty `dtype` replaces the
  /// element type, because NumPy exports bfloat16 only as raw 16-bit integers.
  [[nodiscard]] static Array of(nb::handle object, const std::string& dtype);

  /// Returns an Array unchanged, or reads a tensor whose type has DLPack's C exchange table (exchange.hpp), which is
  /// faster. The result does not own memory. The caller's object keeps the memory alive during the call.
  [[nodiscard]] static Array view(nb::handle object);

  /// Returns a block of `owner` with the given address, shape and strides. `cuda_index` is -1 for CPU memory.
  [[nodiscard]] static Array at(nb::object owner, std::uintptr_t address, std::string dtype, int cuda_index,
                                nb::handle shape, nb::handle strides);
};

/// Views of the library. Each function names the argument in its errors. The library checks the sizes.
[[nodiscard]] Tensor heads_view(const char* name, const Array& a, Layout layout);  ///< q, k, v, o and their gradients
[[nodiscard]] Tensor rows_view(const char* name, const Array& a, Layout layout);   ///< lse: no head_dim
[[nodiscard]] Tensor scores_view(const char* name, const Array& a);    ///< per score; broadcast from the right
[[nodiscard]] Tensor per_head_view(const char* name, const Array& a);  ///< per head: (heads) or (batch, heads)
/// Returns the view of a cache's scaling factors. Shapes: (), (heads), (batch, heads), or one factor per cache row,
/// which is the shape of the cache without head_dim.
[[nodiscard]] Tensor descale_view(const char* name, const Array& a, Layout layout);
[[nodiscard]] const std::int32_t* offsets_view(const char* name, const Array& a, Device device);  ///< cu_seqlens
/// Refuses cu_seqlens arrays of different lengths, because the library has only one number of sequences.
/// @throws Error (kInvalidArgument)
void check_as_many(const Array& cu_seqlens_q, const Array& cu_seqlens_k);
[[nodiscard]] Tensor table_view(const char* name, const Array& a, int num_dims,
                                const char* meaning);  ///< the array's dimensions become the last ones

/// Requirements for a dense array of integers.
struct Entries {
  const char* dtype;  ///< "i32" or "i64"
  Device device;      ///< device of the tensors
  std::int64_t count;
  /// If it is not negative, the shape may also be (batch, count / batch).
  std::int64_t batch = -1;
  const char* or_dtype = nullptr;
};

/// @throws Error (kInvalidArgument) naming the argument if the array does not meet the requirements.
[[nodiscard]] const void* entries_view(const char* name, const Array& a, const Entries& allowed);
[[nodiscard]] PageTable page_table_view(const char* name, const Array& a, Device device);
/// Returns the address of seed and offset, which are stored as the bits of signed integers.
[[nodiscard]] const std::uint64_t* philox_state_view(const char* name, const Array& a, Device device);

}  // namespace attend::python
