// NumPy's .npy files, format versions 1.0 to 3.0, in and out.
//
// Taken as tensors: little-endian f32 '<f4', f16 '<f2', f64 '<f8', bool '|b1' and bfloat16 '<V2' or '|V2' (two opaque
// bytes: what ml_dtypes and JAX write, and what array.view('V2') gives), in C order. Refused, by name: big-endian data,
// Fortran order, integers (but in arrays for score functions: '<i4', '<i8'), objects, records. Written: version 1.0,
// the first of the spellings above.
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

constexpr std::size_t kMaxNpyHeaderBytes = 1 << 16;  // of the text; NumPy itself reads no more than 10000 by default
constexpr std::size_t kMaxNpyRank = 4;

struct NpyHeader {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  ///< at most kMaxNpyRank sizes, each >= 0
  std::int64_t data_offset = 0;     ///< bytes before the first element

  bool operator==(const NpyHeader&) const = default;
};

/// Reads magic, version and dictionary from the first bytes of a file (all of it, or at least
/// 12 + kMaxNpyHeaderBytes). `name` starts every message. The data itself is not looked at.
/// @throws Error (kIo) naming what was found and what is allowed.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> prefix, std::string_view name,
                                         bool takes_integers = false);

/// The bytes before the data of a file of version 1.0; their count is a multiple of 64, as NumPy's own.
[[nodiscard]] std::string npy_header(DType dtype, std::span<const std::int64_t> shape);

/// Which ranks are taken, and where the missing ones of the four dimensions go.
enum class NpyRank {
  kExact,      ///< 4
  kBroadcast,  ///< 1 to 4, leading ones as NumPy broadcasts: a bias (Sq, Sk) is (1, 1, Sq, Sk)
  kLse,        ///< 3 or 4: (B, H, S) is (B, H, S, 1)
  kSlopes,     ///< 1, 2 or 4: (H) is (1, H, 1, 1), (B, H) is (B, H, 1, 1)
};

/// Reads an array. Bytes of a bool array other than 0 become 1.
/// @throws Error (kIo) naming the file: not to be read, a header as above, a rank, or a length that is not
/// exactly what the header says.
[[nodiscard]] HostTensor read_npy(const std::filesystem::path& path, NpyRank rank);

/// An array of 0 to 4 dimensions, of integers too.
struct NpyArray {
  HostTensor tensor;                ///< the sizes of `shape`, and ones behind them
  std::vector<std::int64_t> shape;  ///< as in the file
};
[[nodiscard]] NpyArray read_npy_array(const std::filesystem::path& path);

}  // namespace attend::io
