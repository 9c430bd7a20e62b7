// A tensor argument as Python gives it: any number of dimensions, any layout, and what keeps its memory alive.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every source: without it std::string would convert in another way

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

/// @throws Error (kInvalidArgument) for another name than "bhsd", "bshd", "thd".
[[nodiscard]] Layout layout_of(const std::string& name);
/// The same of tensors that are not packed: "bhsd" or "bshd".
[[nodiscard]] Layout dense_layout_of(const std::string& name);

/// A strided block of memory. Strides are in elements.
struct Array {
  static constexpr int kMaxDims = 8;  ///< more than any argument may have, so that a view can name what has too many

  void* data = nullptr;
  std::string dtype;  ///< as in dtype_name(), or "i32", "u16", ... where the library has no such element type
  Device device = {};
  int num_dims = 0;
  std::array<std::int64_t, kMaxDims> shape = {};
  std::array<std::int64_t, kMaxDims> stride = {};
  nb::object owner;  ///< holds the memory

  /// Reads anything that speaks DLPack or the buffer protocol, without a copy. `dtype`, where not empty, replaces the
  /// element type: NumPy exports bfloat16 as raw 16-bit integers only.
  [[nodiscard]] static Array of(nb::handle object, const std::string& dtype);

  /// An Array as it is, or a tensor whose type has DLPack's C exchange table (exchange.hpp), which is the quick way.
  /// The result holds no memory: the caller's object does, as long as the call lasts.
  [[nodiscard]] static Array view(nb::handle object);

  /// A block of `owner`, described by its numbers. `cuda_index` is -1 for CPU memory.
  [[nodiscard]] static Array at(nb::object owner, std::uintptr_t address, std::string dtype, int cuda_index,
                                nb::handle shape, nb::handle strides);
};

/// The views of the library. Each names the argument in what it refuses; sizes are the library's to check.
[[nodiscard]] Tensor heads_view(const char* name, const Array& a, Layout layout);  ///< q, k, v, o and their gradients
[[nodiscard]] Tensor rows_view(const char* name, const Array& a, Layout layout);   ///< lse: no head_dim
[[nodiscard]] Tensor scores_view(const char* name, const Array& a);    ///< of scores: broadcast from the right
[[nodiscard]] Tensor per_head_view(const char* name, const Array& a);  ///< of heads: (heads) or (batch, heads)
/// Factors of a cache: (), (heads), (batch, heads), or of each of its rows: the cache's dimensions but for head_dim.
[[nodiscard]] Tensor descale_view(const char* name, const Array& a, Layout layout);
[[nodiscard]] const std::int32_t* offsets_view(const char* name, const Array& a, Device device);  ///< cu_seqlens
/// Refuses cu_seqlens of different lengths: the library knows one number of sequences.
/// @throws Error (kInvalidArgument)
void check_as_many(const Array& cu_seqlens_q, const Array& cu_seqlens_k);
[[nodiscard]] Tensor table_view(const char* name, const Array& a, int num_dims,
                                const char* meaning);  ///< its dimensions last

/// Integers that lie densely: how many, and of which type.
struct Entries {
  const char* dtype;  ///< "i32", "i64"
  Device device;      ///< that of the tensors
  std::int64_t count;
  std::int64_t batch = -1;  ///< where it is not negative, the shape may be (batch, count / batch) too
  const char* or_dtype = nullptr;
};

/// @throws Error (kInvalidArgument) naming the argument, if the array is another one.
[[nodiscard]] const void* entries_view(const char* name, const Array& a, const Entries& allowed);
[[nodiscard]] PageTable page_table_view(const char* name, const Array& a, Device device);
/// Seed and offset, as the bits of signed numbers.
[[nodiscard]] const std::uint64_t* philox_state_view(const char* name, const Array& a, Device device);

}  // namespace attend::python
