// A tensor that Python passes to the library. It may have any number of dimensions and any strides. An Array keeps
// alive the Python object that owns the memory.
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

/// The order of the dimensions of q, k, v and o.
enum class Layout : std::uint8_t {
  kBhsd,  ///< (batch, heads, seqlen, head_dim)
  kBshd,  ///< (batch, seqlen, heads, head_dim)
  kThd,   ///< (tokens, heads, head_dim), with all sequences packed one after another
};

/// Returns the layout with the name "bhsd", "bshd" or "thd". @throws Error (kInvalidArgument) for any other name.
[[nodiscard]] Layout layout_of(const std::string& name);
/// Returns the layout with the name "bhsd" or "bshd". These are the layouts of tensors that are not packed.
/// @throws Error (kInvalidArgument) for any other name.
[[nodiscard]] Layout dense_layout_of(const std::string& name);

/// A tensor in memory. Strides are in elements.
struct Array {
  /// More dimensions than any argument may have. A tensor with too many dimensions can still be read, so that the error
  /// message can name the argument.
  static constexpr int kMaxDims = 8;

  void* data = nullptr;
  /// Name of the element type as in dtype_name(). If the library does not have the type, a name such as "u16".
  std::string dtype;
  Device device = {};
  int num_dims = 0;
  std::array<std::int64_t, kMaxDims> shape = {};
  std::array<std::int64_t, kMaxDims> stride = {};
  nb::object owner;  ///< the Python object that keeps the memory alive

  /// Reads an object that supports DLPack or the buffer protocol. Does not copy the elements.
  /// @param dtype  if it is not empty, it replaces the element type of the object. NumPy requires this, because it
  ///         exports bfloat16 only as 16-bit integers
  [[nodiscard]] static Array of(nb::handle object, const std::string& dtype);

  /// If `object` is an Array, returns the Array. Otherwise `object` must be a tensor whose type has DLPack's C exchange
  /// table (exchange.hpp). Reading the table is faster than of(). In this case the result does not keep the memory
  /// alive. The caller's object keeps it alive during the call.
  [[nodiscard]] static Array view(nb::handle object);

  /// Returns an Array with the given address, shape and strides in memory that `owner` keeps alive.
  /// @param cuda_index  index of the GPU, or -1 for CPU memory
  [[nodiscard]] static Array at(nb::object owner, std::uintptr_t address, std::string dtype, int cuda_index,
                                nb::handle shape, nb::handle strides);
};

/// The following functions return views for the library. Each of them refuses an array that has the wrong number of
/// dimensions, or an element type that the library does not have. The error message contains `name`. The library itself
/// checks the sizes. View of q, k, v, o or one of their gradients.
[[nodiscard]] Tensor heads_view(const char* name, const Array& a, Layout layout);
/// View of lse, which has no head_dim.
[[nodiscard]] Tensor rows_view(const char* name, const Array& a, Layout layout);
/// View of a tensor with one value per score; missing leading dimensions are broadcast.
[[nodiscard]] Tensor scores_view(const char* name, const Array& a);
[[nodiscard]] Tensor per_head_view(const char* name, const Array& a);  ///< view of (heads) or (batch, heads) values
/// Returns the view of the scaling factors of a cache. The shape is () for one factor, (heads), (batch, heads), or the
/// shape of the cache without head_dim for one factor per cache row.
[[nodiscard]] Tensor descale_view(const char* name, const Array& a, Layout layout);
/// Address of cu_seqlens.
[[nodiscard]] const std::int32_t* offsets_view(const char* name, const Array& a, Device device);
/// Checks that both cu_seqlens arrays have the same length. The library receives only one number of sequences.
/// @throws Error (kInvalidArgument) if the lengths differ.
void check_as_many(const Array& cu_seqlens_q, const Array& cu_seqlens_k);
/// Returns a view whose last dimensions are the dimensions of the array. The leading dimensions have size 1.
[[nodiscard]] Tensor table_view(const char* name, const Array& a, int num_dims, const char* meaning);

/// The requirements for a contiguous array of integers.
struct Entries {
  const char* dtype;  ///< "i32" or "i64"
  Device device;      ///< device on which the array must be
  std::int64_t count;
  /// If it is at least 0, the shape (batch, count / batch) is allowed too.
  std::int64_t batch = -1;
  const char* or_dtype = nullptr;
};

/// Returns the address of the array. @throws Error (kInvalidArgument) if the array does not meet the requirements. The
/// message contains `name`.
[[nodiscard]] const void* entries_view(const char* name, const Array& a, const Entries& allowed);
[[nodiscard]] PageTable page_table_view(const char* name, const Array& a, Device device);
/// Returns the address of the seed and offset of dropout. Python stores the bits of these unsigned integers in signed
/// integers.
[[nodiscard]] const std::uint64_t* philox_state_view(const char* name, const Array& a, Device device);

}  // namespace attend::python
