// Reads and writes NumPy's .npy files, format versions 1.0 to 3.0.
//
// Supported tensors are little-endian and in C order. Their types are f32 '<f4', f16 '<f2', f64 '<f8', bool '|b1' and
// bfloat16. The type code of bfloat16 is '<V2' or '|V2', which means two opaque bytes. ml_dtypes, JAX and
// array.view('V2') write this code. Unsupported are big-endian data, Fortran order, objects and records. Arrays for
// score functions may also have the integer types '<i4' and '<i8', but no other integers. The error for an unsupported
// file names the format that was found. Files are written in version 1.0, with the first of the type codes above.
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

// Maximum size of the header's text. NumPy reads at most 10000 bytes by default.
constexpr std::size_t kMaxNpyHeaderBytes = 1 << 16;
constexpr std::size_t kMaxNpyRank = 4;

struct NpyHeader {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  ///< at most kMaxNpyRank sizes, each at least 0
  std::int64_t data_offset = 0;     ///< number of bytes before the first element

  bool operator==(const NpyHeader&) const = default;
};

/// Parses the magic, the version and the dictionary at the beginning of a file. `prefix` is the complete file or at
/// least its first 12 + kMaxNpyHeaderBytes bytes. `name` starts every error text. Does not read the data.
/// @throws Error (kIo) naming the value found and the allowed values.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> prefix, std::string_view name,
                                         bool takes_integers = false);

/// Returns the bytes that precede the data in a file of version 1.0. Their number is a multiple of 64, as in files of
/// NumPy.
[[nodiscard]] std::string npy_header(DType dtype, std::span<const std::int64_t> shape);

/// Allowed ranks of an array. A rank below 4 determines where missing dimensions of size 1 are inserted.
enum class NpyRank {
  kExact,  ///< rank 4
  /// Ranks 1 to 4. Ones are inserted in front, as in NumPy's broadcasting. For example, a bias (Sq, Sk) becomes (1, 1,
  /// Sq, Sk).
  kBroadcast,
  kLse,     ///< rank 3 or 4: (B, H, S) becomes (B, H, S, 1)
  kSlopes,  ///< Ranks 1, 2 and 4. The shape (H) becomes (1, H, 1, 1), and (B, H) becomes (B, H, 1, 1).
};

/// Reads an array. In a bool array, every nonzero byte becomes 1.
/// @throws Error (kIo) naming the file if it is unreadable, if its header or rank is invalid, or if its length differs
///   from that in the header.
[[nodiscard]] HostTensor read_npy(const std::filesystem::path& path, NpyRank rank);

/// An array of 0 to 4 dimensions. Its elements may be integers.
struct NpyArray {
  HostTensor tensor;                ///< sizes as in `shape`, followed by ones
  std::vector<std::int64_t> shape;  ///< sizes as in the file
};
[[nodiscard]] NpyArray read_npy_array(const std::filesystem::path& path);

}  // namespace attend::io
