// Fuzzes the folder reader with arbitrary names and file lengths. The reader must accept a name only if the parsed
// problem has exactly that name, and a file only if it has exactly the length that the name implies.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <string>

#include "fuzz/fuzz_support.hpp"
#include "io/folder.hpp"

namespace {

using namespace attend;

constexpr std::int64_t kLargestFile = 1 << 16;  // largest length in bytes for which a file is really written

/// Returns a valid name, or a valid name with one changed byte.
std::string nearly_right_name(FuzzedDataProvider& input) {
  io::FolderSpec spec;
  const auto size = [&](std::int64_t largest) { return input.ConsumeIntegralInRange<std::int64_t>(1, largest); };
  const std::int64_t largest = input.ConsumeBool() ? 4 : std::int64_t{1} << 31;
  spec.batch = size(largest);
  spec.num_heads_kv = size(largest);
  spec.num_heads = spec.num_heads_kv * size(4);
  spec.seqlen_q = size(largest);
  spec.seqlen_k = input.ConsumeBool() ? spec.seqlen_q : size(largest);
  spec.head_dim = size(513);
  spec.head_dim_v = input.ConsumeBool() ? spec.head_dim : size(513);
  spec.dtype = input.PickValueInArray({DType::kF32, DType::kF16, DType::kBF16, DType::kF64});
  std::string name = io::folder_name(spec);
  if (input.ConsumeBool())
    name[input.ConsumeIntegralInRange<std::size_t>(0, name.size() - 1)] = input.ConsumeIntegral<char>();
  return name;
}

void read_file(const Shape& shape, DType dtype, FuzzedDataProvider& input) {
  static const fuzz::MemoryFile file;
  const std::int64_t wanted = io::tensor_bytes(dtype, shape).value();
  if (wanted > kLargestFile) return;
  const std::int64_t length = std::max<std::int64_t>(0, wanted + input.ConsumeIntegralInRange<std::int64_t>(-3, 3));
  file.resize(static_cast<std::size_t>(length));
  try {
    const io::HostTensor tensor = io::read_bin(fuzz::MemoryFile::folder(), file.name(), dtype, shape);
    fuzz::require(length == wanted && static_cast<std::int64_t>(tensor.bytes().size()) == wanted);
  } catch (const Error& error) {
    fuzz::require(length != wanted);
    fuzz::require_sound(error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  std::string name = input.ConsumeBool() ? nearly_right_name(input) : input.ConsumeRandomLengthString(64);
  std::erase(name, '\0');  // file names cannot contain this byte
  io::FolderSpec spec;
  try {
    spec = io::parse_folder_name(name);
  } catch (const Error& error) {
    // The message quotes the name, which may contain line breaks. Therefore the test only requires that the message is
    // not empty.
    fuzz::require(error.what()[0] != '\0');
    return 0;
  }
  fuzz::require(io::folder_name(spec) == name);
  fuzz::require(spec.num_heads % spec.num_heads_kv == 0);
  for (const Shape& shape : {spec.q_shape(), spec.k_shape(), spec.v_shape(), spec.o_shape()}) {
    read_file(shape, spec.dtype, input);
  }
  read_file(spec.lse_shape(), io::lse_dtype(spec.dtype), input);
  return 0;
}
