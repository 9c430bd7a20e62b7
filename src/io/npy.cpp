#include "io/npy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "core/dtype_traits.hpp"
#include "io/file.hpp"

namespace attend::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kVersionAt = 6;
constexpr std::size_t kLengthAt = 8;
constexpr std::size_t kAlignment = 64;  // the data starts at a multiple of this many bytes
constexpr std::string_view kAllowedTypes =
    "'<f4' (f32), '<f2' (f16), '<f8' (f64), '<V2' (bf16, two opaque bytes), '|b1' (bool), all little-endian";

static_assert(core::kDTypes.size() == 9,
              "kAllowedTypes names them all but those of caches, which no file holds, and integers");

constexpr std::string_view kIntegers = "'<i4' (i32), '<i8' (i64)";

constexpr std::string_view kBF16WithoutOrder =
    "|V2";  // NumPy writes no byte order for elements of two bytes of unknown type

/// Returns text from a file as one line, in which unprintable characters are replaced by '?'.
std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string out;
  for (const char c : text.substr(0, kLongest)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kLongest ? out + "..." : out;
}

/// Parses the dictionary in a file's header, a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (2,
/// 3), }
class DictionaryParser {
 public:
  DictionaryParser(std::string_view text, std::string_view name, bool takes_integers)
      : rest_(text), name_(name), takes_integers_(takes_integers) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      read_value(key);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) fail("'" + printable(rest_) + "' after the dictionary", "white space");
    if (!dtype_ || !fortran_order_ || !shape_) {
      fail("a dictionary without all its keys", "'descr', 'fortran_order' and 'shape', once each");
    }
    return {*dtype_, *shape_, 0};
  }

 private:
  [[noreturn]] void fail(std::string_view found, std::string_view allowed) const {
    throw Error(ErrorCode::kIo, fmt::format("{}: .npy header has {}, allowed {}", name_, found, allowed));
  }

  void skip_space() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n' || rest_.front() == '\t'))
      rest_.remove_prefix(1);
  }

  bool accept(char wanted) {
    skip_space();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char wanted) {
    if (accept(wanted)) return;
    fail(rest_.empty() ? "an early end" : fmt::format("'{}'", printable(rest_)), fmt::format("'{}' there", wanted));
  }

  bool accept_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::string_view quoted() {
    skip_space();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    const std::size_t end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) fail(fmt::format("'{}'", printable(rest_)), "a quoted string there");
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  void read_value(std::string_view key) {
    if (key == "descr" && !dtype_) {
      dtype_ = dtype();
    } else if (key == "fortran_order" && !fortran_order_) {
      if (accept_word("True")) fail("fortran_order True", "False (C order: numpy.ascontiguousarray)");
      if (!accept_word("False")) fail(fmt::format("fortran_order '{}'", printable(rest_)), "False");
      fortran_order_ = false;
    } else if (key == "shape" && !shape_) {
      shape_ = shape();
    } else {
      fail(fmt::format("key '{}'", printable(key)), "'descr', 'fortran_order' and 'shape', once each");
    }
  }

  DType dtype() {
    skip_space();
    if (rest_.starts_with('[')) fail("descr of a record type", kAllowedTypes);
    const std::string_view descr = quoted();
    for (const DType dtype : core::kDTypes) {
      const core::DTypeTraits traits = core::dtype_traits(dtype);
      if (descr == traits.npy && !traits.is_quantized && (takes_integers_ || !traits.is_integer)) return dtype;
    }
    if (descr == kBF16WithoutOrder) return DType::kBF16;
    const std::string allowed =
        takes_integers_ ? fmt::format("{}, {}", kIntegers, kAllowedTypes) : std::string(kAllowedTypes);
    fail(fmt::format("descr '{}'", printable(descr)), allowed);
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      sizes.push_back(size());
      if (sizes.size() > kMaxNpyRank) fail("a shape of more than 4 dimensions", "at most 4");
      if (accept(',')) continue;
      if (sizes.size() == 1) fail("a shape that is not a tuple", "(n,) for one dimension");
      expect(')');
      break;
    }
    return sizes;
  }

  std::int64_t size() {
    skip_space();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) {
      fail(fmt::format("a size '{}'", printable(rest_.substr(0, rest_.find_first_of(",)")))),
           "integers from 0 to 2^63 - 1");
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::string_view rest_;
  std::string_view name_;
  bool takes_integers_;
  std::optional<DType> dtype_;
  std::optional<bool> fortran_order_;
  std::optional<std::vector<std::int64_t>> shape_;
};

std::size_t little_endian(std::span<const std::byte> bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = value << 8 | std::to_integer<std::size_t>(bytes[i - 1]);
  return value;
}

Shape four_dimensions(const NpyHeader& header, NpyRank rank, std::string_view name) {
  struct Rule {
    std::uint32_t ranks;  // set of allowed ranks: bit r is 1 if rank r is allowed
    std::string_view text;
  };
  constexpr std::array<Rule, 4> kRules = {{{1U << 4, "4"},
                                           {1U << 1 | 1U << 2 | 1U << 3 | 1U << 4, "1 to 4"},
                                           {1U << 3 | 1U << 4, "3 or 4"},
                                           {1U << 1 | 1U << 2 | 1U << 4, "1, 2 or 4"}}};
  const Rule& rule = kRules[static_cast<std::size_t>(rank)];
  const std::size_t given = header.shape.size();
  if ((rule.ranks >> given & 1U) == 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: shape ({}), allowed {} dimensions", name, fmt::join(header.shape, ", "), rule.text));
  }
  const std::size_t leading_ones = rank == NpyRank::kBroadcast              ? 4 - given
                                   : rank == NpyRank::kSlopes && given == 1 ? 1
                                                                            : 0;
  Shape shape = {1, 1, 1, 1};
  std::copy(header.shape.begin(), header.shape.end(), shape.begin() + leading_ones);
  return shape;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> prefix, std::string_view name, bool takes_integers) {
  const std::string_view text(reinterpret_cast<const char*>(prefix.data()), prefix.size());
  if (!text.starts_with(kMagic)) {
    throw Error(ErrorCode::kIo, fmt::format("{}: does not start as a .npy file, allowed .npy files", name));
  }
  const int major = text.size() > kVersionAt ? std::to_integer<int>(prefix[kVersionAt]) : 0;
  if (major < 1 || major > 3) {
    throw Error(ErrorCode::kIo, fmt::format("{}: .npy format version {}, allowed 1 to 3", name, major));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t begin = kLengthAt + length_bytes;
  if (prefix.size() < begin) throw Error(ErrorCode::kIo, fmt::format("{}: ends inside its .npy header", name));
  const std::size_t length = little_endian(prefix.subspan(kLengthAt, length_bytes));
  if (length > kMaxNpyHeaderBytes) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: .npy header of {} bytes, allowed at most {}", name, length, kMaxNpyHeaderBytes));
  }
  if (prefix.size() - begin < length) throw Error(ErrorCode::kIo, fmt::format("{}: ends inside its .npy header", name));
  NpyHeader header = DictionaryParser(text.substr(begin, length), name, takes_integers).parse();
  header.data_offset = static_cast<std::int64_t>(begin + length);
  return header;
}

std::string npy_header(DType dtype, std::span<const std::int64_t> shape) {
  std::string dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", core::dtype_traits(dtype).npy,
                  fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  const std::size_t before = kLengthAt + 2;
  const std::size_t total = (before + dictionary.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  dictionary.resize(total - before - 1, ' ');
  dictionary += '\n';
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(dictionary.size() & 0xFF), static_cast<char>(dictionary.size() >> 8)};
  return header + dictionary;
}

namespace {

/// Reads a file. shape_of(header) returns the tensor's four sizes for the header's shape.
template <class ShapeOf>
HostTensor read_elements(const std::filesystem::path& path, bool takes_integers, const ShapeOf& shape_of) {
  const InputFile file(path);
  const std::string name = path.string();
  std::vector<std::byte> prefix(std::min<std::size_t>(file.size(), kLengthAt + 4 + kMaxNpyHeaderBytes));
  file.read(0, prefix);
  const NpyHeader header = parse_npy_header(prefix, name, takes_integers);
  const Shape shape = shape_of(header);
  const std::optional<std::int64_t> bytes = tensor_bytes(header.dtype, shape);
  const std::int64_t found = file.size() - header.data_offset;
  if (!bytes || *bytes != found) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {} bytes of data, allowed {} for {} ({})", name, found,
                                            bytes ? fmt::to_string(*bytes) : "at most 2^62", dtype_name(header.dtype),
                                            fmt::join(header.shape, ", ")));
  }
  require_memory(name, *bytes);
  HostTensor tensor(header.dtype, shape);
  file.read(header.data_offset, tensor.bytes());
  if (header.dtype == DType::kBool) {
    for (std::byte& value : tensor.bytes()) value = value == std::byte{0} ? std::byte{0} : std::byte{1};
  }
  return tensor;
}

}  // namespace

HostTensor read_npy(const std::filesystem::path& path, NpyRank rank) {
  return read_elements(path, /*takes_integers=*/false,
                       [&](const NpyHeader& header) { return four_dimensions(header, rank, path.string()); });
}

NpyArray read_npy_array(const std::filesystem::path& path) {
  NpyArray array;
  array.tensor = read_elements(path, /*takes_integers=*/true, [&](const NpyHeader& header) {
    array.shape = header.shape;
    Shape shape = {1, 1, 1, 1};
    std::copy(header.shape.begin(), header.shape.end(), shape.begin());
    return shape;
  });
  return array;
}

}  // namespace attend::io
