#include "array.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "core/dtype_traits.hpp"
#include "exchange.hpp"

namespace attend::python {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string dtype_text(nb::dlpack::dtype dtype) {
  using nb::dlpack::dtype_code;
  const auto code = static_cast<dtype_code>(dtype.code);
  constexpr std::pair<dtype_code, const char*> kPrefixes[] = {
      {dtype_code::Float, "f"}, {dtype_code::Bfloat, "bf"}, {dtype_code::Int, "i"}, {dtype_code::UInt, "u"}};
  if (code == dtype_code::Bool) return "bool";
  if (code == dtype_code::Complex) return "complex" + std::to_string(dtype.bits);
  for (const auto& [known, prefix] : kPrefixes) {
    if (code == known) return prefix + std::to_string(dtype.bits);
  }
  // The element types of DLPack 1.1 with the codes from kFirst on. The names are those that frameworks use.
  constexpr int kFirst = 7;
  constexpr const char* kNarrow[] = {"float8_e3m4",     "float8_e4m3",   "float8_e4m3b11fnuz", "float8_e4m3fn",
                                     "float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",    "float8_e8m0fnu",
                                     "float6_e2m3fn",   "float6_e3m2fn", "float4_e2m1fn"};
  const int narrow = dtype.code - kFirst;
  if (narrow >= 0 && narrow < static_cast<int>(std::size(kNarrow))) return kNarrow[narrow];
  return fmt::format("of DLPack code {}", dtype.code);
}

Device device_of(int device_type, int device_id) {
  if (device_type == nb::device::cpu::value || device_type == nb::device::cuda_host::value) return {};
  if (device_type == nb::device::cuda::value || device_type == nb::device::cuda_managed::value) {
    return {DeviceType::kCUDA, device_id};
  }
  refuse(fmt::format("device: DLPack type {}, allowed the CPU and CUDA", device_type));
}

void check_num_dims(int num_dims) {
  if (num_dims > Array::kMaxDims) refuse(fmt::format("{} dimensions, allowed at most {}", num_dims, Array::kMaxDims));
}

/// Sets the strides of an empty tensor to 1. Frameworks give empty tensors arbitrary strides, and the library might
/// refuse such strides.
void forget_strides_of_nothing(Array& a) {
  std::int64_t numel = 1;
  for (int d = 0; d < a.num_dims; ++d) numel *= a.shape[d];
  if (numel == 0) a.stride.fill(1);
}

DType element_type(const char* name, const std::string& dtype) {
  const std::optional<DType> type = core::find_dtype(dtype);
  if (type && !core::dtype_traits(*type).is_integer) return *type;
  refuse(fmt::format("{}: dtype {}, allowed f32, f16, bf16, f64; bool for a mask", name, dtype));
}

void require_dims(const char* name, const Array& a, int num_dims, const char* meaning) {
  if (a.num_dims != num_dims)
    refuse(fmt::format("{}: {} dimensions, allowed {} {}", name, a.num_dims, num_dims, meaning));
}

Tensor view(const char* name, const Array& a, const Shape& shape, const Shape& stride) {
  return {a.data, element_type(name, a.dtype), a.device, shape, stride};
}

/// Returns the view of an array that has at most 4 dimensions. If leading dimensions are missing, they have size 1.
Tensor right_aligned(const char* name, const Array& a) {
  Shape shape = {1, 1, 1, 1};
  Shape stride = {0, 0, 0, 1};
  const int missing = 4 - a.num_dims;
  for (int d = 0; d < a.num_dims; ++d) {
    shape[missing + d] = a.shape[d];
    stride[missing + d] = a.stride[d];
  }
  return view(name, a, shape, stride);
}

void require_device(const char* name, const Array& a, Device device) {
  if (!(a.device == device))
    refuse(fmt::format("{}: on another device than the tensors, allowed the same device", name));
}

std::string shape_text(const Array& a) {
  return fmt::format("({})", fmt::join(a.shape.begin(), a.shape.begin() + a.num_dims, ", "));
}

bool is_dense(const Array& a) {
  std::int64_t step = 1;
  for (int d = a.num_dims - 1; d >= 0; --d) {
    if (a.shape[d] > 1 && a.stride[d] != step) return false;
    step *= a.shape[d];
  }
  return true;
}

}  // namespace

Layout dense_layout_of(const std::string& name) {
  if (name == "bhsd") return Layout::kBhsd;
  if (name == "bshd") return Layout::kBshd;
  refuse(fmt::format("layout: '{}', allowed 'bhsd', 'bshd'", name));
}

Layout layout_of(const std::string& name) {
  return name == "thd" ? Layout::kThd : dense_layout_of(name);
}

Array Array::of(nb::handle object, const std::string& dtype) {
  nb::ndarray<nb::ro> source;
  if (!nb::try_cast(object, source)) {
    refuse(fmt::format("{}: neither DLPack nor a buffer of a known element type",
                       nb::cast<std::string>(nb::str(nb::type_name(object.type())))));
  }
  check_num_dims(static_cast<int>(source.ndim()));
  Array a;
  // The library uses the same view type for inputs and outputs, so the constness is removed. Inputs are never written.
  a.data = const_cast<void*>(source.data());
  a.dtype = dtype.empty() ? dtype_text(source.dtype()) : dtype;
  a.device = device_of(source.device_type(), source.device_id());
  a.num_dims = static_cast<int>(source.ndim());
  for (std::size_t d = 0; d < source.ndim(); ++d) {
    a.shape[d] = static_cast<std::int64_t>(source.shape(d));
    a.stride[d] = source.stride(d);
  }
  forget_strides_of_nothing(a);
  // A DLPack capsule can be read only once, so the Array keeps the object that has read it. The policy `reference`
  // keeps the same memory, whereas a move would copy the elements.
  a.owner = nb::cast(source, nb::rv_policy::reference);
  return a;
}

Array Array::view(nb::handle object) {
  if (Array* known = nullptr; nb::try_cast(object, known)) return *known;
  const nb::dlpack::dltensor tensor = exchanged_tensor(object);
  check_num_dims(tensor.ndim);
  Array a;
  a.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  a.dtype = dtype_text(tensor.dtype);
  a.device = device_of(tensor.device.device_type, tensor.device.device_id);
  a.num_dims = tensor.ndim;
  for (int d = 0; d < tensor.ndim; ++d) {
    a.shape[d] = tensor.shape[d];
    a.stride[d] = tensor.strides[d];
  }
  forget_strides_of_nothing(a);
  return a;
}

Array Array::at(nb::object owner, std::uintptr_t address, std::string dtype, int cuda_index, nb::handle shape,
                nb::handle strides) {
  Array a;
  a.owner = std::move(owner);
  a.data = reinterpret_cast<void*>(address);
  a.dtype = std::move(dtype);
  if (cuda_index >= 0) a.device = {DeviceType::kCUDA, cuda_index};
  a.num_dims = static_cast<int>(nb::len(shape));
  check_num_dims(a.num_dims);
  for (int d = 0; d < a.num_dims; ++d) {
    a.shape[d] = nb::cast<std::int64_t>(shape[d]);
    a.stride[d] = nb::cast<std::int64_t>(strides[d]);
  }
  forget_strides_of_nothing(a);
  return a;
}

Tensor heads_view(const char* name, const Array& a, Layout layout) {
  const auto& n = a.shape;
  const auto& s = a.stride;
  switch (layout) {
    case Layout::kBhsd:
      require_dims(name, a, 4, "(batch, heads, seqlen, head_dim)");
      return view(name, a, {n[0], n[1], n[2], n[3]}, {s[0], s[1], s[2], s[3]});
    case Layout::kBshd:
      require_dims(name, a, 4, "(batch, seqlen, heads, head_dim)");
      return view(name, a, {n[0], n[2], n[1], n[3]}, {s[0], s[2], s[1], s[3]});
    case Layout::kThd:
      require_dims(name, a, 3, "(tokens, heads, head_dim)");
      return view(name, a, {1, n[1], n[0], n[2]}, {n[0] * s[0], s[1], s[0], s[2]});
  }
  refuse("layout: not a value of Layout");
}

Tensor rows_view(const char* name, const Array& a, Layout layout) {
  const auto& n = a.shape;
  const auto& s = a.stride;
  if (layout == Layout::kThd) {
    require_dims(name, a, 2, "(heads, tokens)");
    return view(name, a, {1, n[0], n[1], 1}, {n[0] * s[0], s[0], s[1], 1});
  }
  require_dims(name, a, 3, "(batch, heads, seqlen)");
  return view(name, a, {n[0], n[1], n[2], 1}, {s[0], s[1], s[2], 1});
}

Tensor scores_view(const char* name, const Array& a) {
  if (a.num_dims < 1 || a.num_dims > 4) {
    refuse(fmt::format("{}: {} dimensions, allowed 1 to 4 (batch, heads, seqlen_q, seqlen_k)", name, a.num_dims));
  }
  return right_aligned(name, a);
}

Tensor per_head_view(const char* name, const Array& a) {
  if (a.num_dims == 2) return view(name, a, {a.shape[0], a.shape[1], 1, 1}, {a.stride[0], a.stride[1], 1, 1});
  require_dims(name, a, 1, "(heads), or 2 (batch, heads)");
  return view(name, a, {1, a.shape[0], 1, 1}, {0, a.stride[0], 1, 1});
}

Tensor table_view(const char* name, const Array& a, int num_dims, const char* meaning) {
  require_dims(name, a, num_dims, meaning);
  return right_aligned(name, a);
}

Tensor descale_view(const char* name, const Array& a, Layout layout) {
  const auto& n = a.shape;
  const auto& s = a.stride;
  switch (a.num_dims) {
    case 0:
      return view(name, a, {1, 1, 1, 1}, {0, 0, 0, 1});
    case 1:
    case 2:
      return per_head_view(name, a);
    case 3:
      if (layout == Layout::kBshd) return view(name, a, {n[0], n[2], n[1], 1}, {s[0], s[2], s[1], 1});
      return view(name, a, {n[0], n[1], n[2], 1}, {s[0], s[1], s[2], 1});
    default:
      break;
  }
  refuse(fmt::format("{}: {} dimensions, allowed 0, 1 (heads), 2 (sequences, heads), or 3 (those of the cache)", name,
                     a.num_dims));
}

void check_as_many(const Array& cu_seqlens_q, const Array& cu_seqlens_k) {
  // offsets_view refuses arrays with another number of dimensions.
  if (cu_seqlens_q.num_dims != 1 || cu_seqlens_k.num_dims != 1) return;
  if (cu_seqlens_k.shape[0] == cu_seqlens_q.shape[0]) return;
  throw Error(ErrorCode::kInvalidArgument, "cu_seqlens_k: " + std::to_string(cu_seqlens_k.shape[0]) +
                                               " entries, allowed as many as cu_seqlens_q, " +
                                               std::to_string(cu_seqlens_q.shape[0]));
}

const std::int32_t* offsets_view(const char* name, const Array& a, Device device) {
  require_dims(name, a, 1, "(sequences + 1)");
  if (a.dtype != "i32") refuse(fmt::format("{}: dtype {}, allowed i32", name, a.dtype));
  if (a.shape[0] < 1) refuse(fmt::format("{}: 0 entries, allowed the number of sequences + 1", name));
  if (a.shape[0] > 1 && a.stride[0] != 1) refuse(fmt::format("{}: stride {}, allowed 1", name, a.stride[0]));
  if (!(a.device == device)) refuse(fmt::format("{}: on another device than q, allowed the device of q", name));
  return static_cast<const std::int32_t*>(a.data);
}

const void* entries_view(const char* name, const Array& a, const Entries& allowed) {
  const bool has_other = allowed.or_dtype != nullptr;
  if (a.dtype != allowed.dtype && !(has_other && a.dtype == allowed.or_dtype)) {
    refuse(fmt::format("{}: dtype {}, allowed {}{}{}", name, a.dtype, allowed.dtype, has_other ? ", " : "",
                       has_other ? allowed.or_dtype : ""));
  }
  const bool in_a_row = a.num_dims == 1 && a.shape[0] == allowed.count;
  const bool by_batch = a.num_dims == 2 && a.shape[0] == allowed.batch && a.shape[0] * a.shape[1] == allowed.count;
  if (!in_a_row && !by_batch) {
    const bool may_be_by_batch = allowed.batch > 0;
    refuse(
        fmt::format("{}: shape {}, allowed ({}){}", name, shape_text(a), allowed.count,
                    may_be_by_batch ? fmt::format(" or ({}, {})", allowed.batch, allowed.count / allowed.batch) : ""));
  }
  if (!is_dense(a)) refuse(fmt::format("{}: strides with gaps, allowed dense entries", name));
  require_device(name, a, allowed.device);
  // An empty array needs an address, because a null pointer would mean that the argument is missing.
  static constexpr std::uint64_t kNothing = 0;
  return allowed.count == 0 ? &kNothing : a.data;
}

PageTable page_table_view(const char* name, const Array& a, Device device) {
  require_dims(name, a, 2, "(rows, pages of a row)");
  if (a.dtype != "i32") refuse(fmt::format("{}: dtype {}, allowed i32", name, a.dtype));
  if (a.shape[1] > 1 && a.stride[1] != 1) refuse(fmt::format("{}: last stride {}, allowed 1", name, a.stride[1]));
  require_device(name, a, device);
  return {static_cast<const std::int32_t*>(a.data), a.shape[0], a.shape[1], a.shape[0] > 1 ? a.stride[0] : a.shape[1]};
}

const std::uint64_t* philox_state_view(const char* name, const Array& a, Device device) {
  const bool fits = a.num_dims == 1 && a.shape[0] == 2 && a.stride[0] == 1 && a.dtype == "i64";
  if (!fits || !(a.device == device)) refuse(fmt::format("{}: allowed i64 (2) on the device of q", name));
  return static_cast<const std::uint64_t*>(a.data);
}

}  // namespace attend::python
