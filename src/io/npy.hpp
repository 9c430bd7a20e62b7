// Reads and writes NumPy's .npy files, format versions 1.0 to 3.0.
//
// Supported tensors: little-endian f32 '<f4', f16 '<f2', f64 '<f8', bool '|b1' and bfloat16 '<V2' or '|V2' (two opaque
// bytes, as ml_dtypes, JAX and array.view('V2') write them), in C order. Refused, by name: big-endian data, Fortran
// order, integers (except '<i4' and '<i8' in arrays for score functions), objects, records. Files are written in
// version 1.0, with the first of the spellings above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/host_tensor.hpp"

namespace attend::io {

constexpr std::size_t kMaxNpyHeaderBytes = 1 << 16;  // limit of the header text; NumPy reads at most 10000 by default
constexpr std::size_t kMaxNpyRank = 4;

struct NpyHeader {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  ///< at most kMaxNpyRank sizes, each >= 0
  std::int64_t data_offset = 0;     ///< bytes before the first element

  bool operator==(const NpyHeader&) const = default;
};

/// Reads magic, version and dictionary from the first bytes of a file (the complete file, or at least 12 +
/// kMaxNpyHeaderBytes). `name` starts every message. Does not read the data.
/// @throws Error (kIo) naming the value found and the allowed values.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> prefix, std::string_view name,
                                         bool takes_integers = false);

/// Returns the bytes before the data of a file of version 1.0; their number is a multiple of 64, as in NumPy.
[[nodiscard]] std::string npy_header(DType dtype, std::span<const std::int64_t> shape);

/// Allowed ranks, and the position of the missing ones among the four dimensions.
enum class NpyRank {
  kExact,      ///< 4
  kBroadcast,  ///< 1 to 4, with leading ones as in NumPy's broadcasting: a bias (Sq, Sk) is (1, 1, Sq, Sk)
  kLse,        ///< 3 or 4: (B, H, S) is (B, H, S, 1)
  kSlopes,     ///< 1, 2 or 4: (H) is (1, H, 1, 1), (B, H) is (B, H, 1, 1)
};

/// Reads an array. Nonzero bytes of a bool array become 1.
/// @throws Error (kIo) naming the file, if it is unreadable, has an invalid header or rank, or its length differs from
///   the header's.
[[nodiscard]] HostTensor read_npy(const std::filesystem::path& path, NpyRank rank);

/// An array of 0 to 4 dimensions, possibly of integers.
struct NpyArray {
  HostTensor tensor;                ///< the sizes of `shape`, followed by ones
  std::vector<std::int64_t> shape;  ///< as in the file
};
[[nodiscard]] NpyArray read_npy_array(const std::filesystem::path& path);

}  // namespace attend::io
