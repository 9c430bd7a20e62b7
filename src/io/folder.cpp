#include "io/folder.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <system_error>

#include "core/dtype_traits.hpp"
#include "core/problem.hpp"
#include "core/problem_checks.hpp"
#include "core/score_options.hpp"
#include "io/file.hpp"

namespace attend::io {
namespace {

constexpr std::string_view kForm = "a folder such as B2_H8_S512_D64 or B2_H8_Hkv2_Sq128_Sk512_D64_Dv32_bf16";

/// Parses a folder name from left to right. Each step consumes "_<letters><number>"; the first one has no underscore.
class NameParser {
 public:
  explicit NameParser(std::string_view name) : name_(name), rest_(name) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}, allowed {}", name_, what, kForm));
  }

  std::optional<std::int64_t> accept(std::string_view letters, std::int64_t largest = core::kMaxLength) {
    std::string_view at = rest_;
    if (at.data() != name_.data()) {
      if (!at.starts_with('_')) return std::nullopt;
      at.remove_prefix(1);
    }
    if (!at.starts_with(letters)) return std::nullopt;
    at.remove_prefix(letters.size());
    if (at.empty() || at.front() < '0' || at.front() > '9') return std::nullopt;
    const std::string_view digits = at.substr(0, at.find('_'));
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 1 || value > largest) {
      throw Error(ErrorCode::kIo, fmt::format("{}: {} is {}, allowed 1 to {}", name_, letters, digits, largest));
    }
    rest_ = at.substr(digits.size());
    return value;
  }

  std::int64_t expect(std::string_view letters, std::int64_t largest = core::kMaxLength) {
    const std::optional<std::int64_t> value = accept(letters, largest);
    if (!value) fail(fmt::format("the folder's name has no {}<number> at that place", letters));
    return *value;
  }

  DType dtype() {
    if (!rest_.starts_with('_')) return DType::kF32;
    const std::optional<DType> named = core::find_dtype(rest_.substr(1));
    if (!named || !core::is_float(*named) || *named == DType::kF32) return DType::kF32;
    rest_ = {};
    return *named;
  }

  [[nodiscard]] bool done() const { return rest_.empty(); }

 private:
  std::string_view name_;
  std::string_view rest_;
};

void check_sizes(std::string_view name, const FolderSpec& spec) {
  if (spec.num_heads % spec.num_heads_kv != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: Hkv is {}, allowed a divisor of H {}", name, spec.num_heads_kv, spec.num_heads));
  }
  if (const auto tensor = oversized_tensor(spec)) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {} has more than 2^62 bytes, allowed fewer", name, *tensor));
  }
}

}  // namespace

std::vector<std::string> tensor_files() {
  std::vector<std::string> files = {"Q.bin",         "K.bin",  "V.bin",  "dO.bin", "O.bin",
                                    "logsumexp.bin", "dQ.bin", "dK.bin", "dV.bin"};
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (row.gradient != nullptr) files.push_back(fmt::format("{}.npy", row.gradient));
  }
  return files;
}

std::optional<std::string> oversized_tensor(const FolderSpec& spec) {
  struct Named {
    const char* name;
    DType dtype;
    Shape shape;
  };
  for (const Named& tensor : {Named{"Q", spec.dtype, spec.q_shape()}, Named{"K", spec.dtype, spec.k_shape()},
                              Named{"V", spec.dtype, spec.v_shape()}, Named{"O", spec.dtype, spec.o_shape()},
                              Named{"logsumexp", lse_dtype(spec.dtype), spec.lse_shape()}}) {
    if (!tensor_bytes(tensor.dtype, tensor.shape)) {
      return fmt::format("{} of shape {}", tensor.name, core::shape_text(tensor.shape));
    }
  }
  return std::nullopt;
}

std::string folder_name(const FolderSpec& spec) {
  std::string name = fmt::format("B{}_H{}", spec.batch, spec.num_heads);
  if (spec.num_heads_kv != spec.num_heads) name += fmt::format("_Hkv{}", spec.num_heads_kv);
  name += spec.seqlen_q == spec.seqlen_k ? fmt::format("_S{}", spec.seqlen_q)
                                         : fmt::format("_Sq{}_Sk{}", spec.seqlen_q, spec.seqlen_k);
  name += fmt::format("_D{}", spec.head_dim);
  if (spec.head_dim_v != spec.head_dim) name += fmt::format("_Dv{}", spec.head_dim_v);
  if (spec.dtype != DType::kF32) name += fmt::format("_{}", dtype_name(spec.dtype));
  return name;
}

FolderSpec parse_folder_name(std::string_view name) {
  NameParser parser(name);
  FolderSpec spec;
  spec.batch = parser.expect("B");
  spec.num_heads = parser.expect("H");
  spec.num_heads_kv = parser.accept("Hkv").value_or(spec.num_heads);
  if (const auto both = parser.accept("S")) {
    spec.seqlen_q = spec.seqlen_k = *both;
  } else {
    spec.seqlen_q = parser.expect("Sq");
    spec.seqlen_k = parser.expect("Sk");
  }
  spec.head_dim = parser.expect("D", core::kMaxHeadDim);
  spec.head_dim_v = parser.accept("Dv", core::kMaxHeadDim).value_or(spec.head_dim);
  spec.dtype = parser.dtype();
  if (!parser.done()) parser.fail("the folder's name does not describe a problem");
  check_sizes(name, spec);
  if (const std::string wanted = folder_name(spec); wanted != name) {
    throw Error(ErrorCode::kIo, fmt::format("{}: not the name of this problem, allowed {}", name, wanted));
  }
  return spec;
}

FolderSpec parse_folder_path(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(folder, error);
  if (!std::filesystem::exists(status))
    throw Error(ErrorCode::kIo, fmt::format("{}: no such folder, allowed {}", folder.string(), kForm));
  if (!std::filesystem::is_directory(status)) {
    throw Error(ErrorCode::kIo, fmt::format("{}: not a folder, allowed {}", folder.string(), kForm));
  }
  std::filesystem::path normal = folder.lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  const std::string name = normal.filename().string();
  if (name != "." && name != "..") return parse_folder_name(name);
  return parse_folder_name(std::filesystem::canonical(folder).filename().string());
}

HostTensor read_bin(const std::filesystem::path& folder, std::string_view file, DType dtype, const Shape& shape) {
  const InputFile input(folder / file);
  const std::optional<std::int64_t> wanted = tensor_bytes(dtype, shape);
  if (!wanted || input.size() != *wanted) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("{}: {} bytes, allowed {}: {} {} by the folder's name", input.path().string(), input.size(),
                    wanted ? fmt::to_string(*wanted) : "at most 2^62", dtype_name(dtype), core::shape_text(shape)));
  }
  require_memory(input.path().string(), *wanted);
  HostTensor tensor(dtype, shape);
  input.read(0, tensor.bytes());
  return tensor;
}

}  // namespace attend::io
