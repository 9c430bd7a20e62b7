// The raw folder format: a folder whose name describes the problem, and one headerless file for each tensor.
//
//   B2_H8_S512_D64/                               batch 2, 8 heads, 512 rows, head_dim 64, float32
//     Q.bin K.bin V.bin                           inputs
//     O.bin logsumexp.bin                         results of forward; logsumexp is f32 (f64 with f64 tensors),
//                                                 (batch, heads, seqlen)
//     dO.bin                                      gradient of O, optional
//     dQ.bin dK.bin dV.bin                        results of backward
//   B2_H8_Hkv2_Sq128_Sk512_D64_Dv32_bf16/         a name with all optional parts
//
// Files are little-endian and in C order, with the dimensions (batch, heads, seqlen, head_dim). A name contains only
// those sizes that differ from their defaults:
//   B<batch>_H<heads>[_Hkv<key heads>]_S<rows> or _Sq<query rows>_Sk<keys>
//   _D<head_dim>[_Dv<head_dim of V>][_f16|_bf16|_f64]
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/host_tensor.hpp"

namespace attend::io {

/// Returns the dtype of the logsumexp of a problem whose other tensors have `dtype`.
[[nodiscard]] constexpr DType lse_dtype(DType dtype) noexcept {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

/// Returns the dtype of o if q, k and v have `dtype`.
[[nodiscard]] constexpr DType output_dtype(DType dtype) noexcept {
  return dtype == DType::kF8E4M3 ? DType::kBF16 : dtype;
}

/// Returns the names of all files in a folder that attend reads or writes: the tensors of a problem, and the gradients
/// of its options.
[[nodiscard]] std::vector<std::string> tensor_files();

/// The problem that a folder's name describes.
struct FolderSpec {
  std::int64_t batch = 1;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;  ///< must divide num_heads
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_k = 1;
  std::int64_t head_dim = 1;    ///< head_dim of Q and K, 1 to 512
  std::int64_t head_dim_v = 1;  ///< head_dim of V and O, 1 to 512
  DType dtype = DType::kF32;

  [[nodiscard]] Shape q_shape() const { return {batch, num_heads, seqlen_q, head_dim}; }
  [[nodiscard]] Shape k_shape() const { return {batch, num_heads_kv, seqlen_k, head_dim}; }
  [[nodiscard]] Shape v_shape() const { return {batch, num_heads_kv, seqlen_k, head_dim_v}; }
  [[nodiscard]] Shape o_shape() const { return {batch, num_heads, seqlen_q, head_dim_v}; }
  [[nodiscard]] Shape lse_shape() const { return {batch, num_heads, seqlen_q, 1}; }
  bool operator==(const FolderSpec&) const = default;
};

/// Returns the first tensor of a problem that has more than 2^62 bytes, in the form "Q of shape (...)". Returns nothing
/// if there is none.
[[nodiscard]] std::optional<std::string> oversized_tensor(const FolderSpec& spec);

/// Returns the folder name of a problem. Different problems have different names.
[[nodiscard]] std::string folder_name(const FolderSpec& spec);

/// Parses the name of a folder, as the inverse of folder_name(). Accepts only names that folder_name() can return, so
/// that each problem has a single name.
/// @throws Error (kIo) naming the invalid part. The error can be wrong spelling, a size out of range, a number of key
///   heads that does not divide the number of heads, or a tensor of more than 2^62 bytes.
[[nodiscard]] FolderSpec parse_folder_name(std::string_view name);

/// Parses the last component of a path. Also accepts "." and paths that end in a slash.
[[nodiscard]] FolderSpec parse_folder_path(const std::filesystem::path& folder);

/// Reads the file folder/file. Its size must equal that of the tensor.
/// @throws Error (kIo) naming the file, its size, and the size according to the folder's name.
[[nodiscard]] HostTensor read_bin(const std::filesystem::path& folder, std::string_view file, DType dtype,
                                  const Shape& shape);

}  // namespace attend::io
