// Fuzzes the .npy reader with arbitrary bytes. The reader must read or refuse them. If it reads them, a header written
// from the result must parse to the same dtype and shape.
#include <cstdint>
#include <span>

#include "fuzz/fuzz_support.hpp"
#include "io/npy.hpp"

namespace {

using namespace attend;

void parse_header(std::span<const std::byte> bytes) {
  try {
    const io::NpyHeader header = io::parse_npy_header(bytes, "fuzz.npy");
    fuzz::require(header.shape.size() <= io::kMaxNpyRank);
    fuzz::require(header.data_offset > 0 && header.data_offset <= static_cast<std::int64_t>(bytes.size()));
    const std::string written = io::npy_header(header.dtype, header.shape);
    const io::NpyHeader again = io::parse_npy_header(std::as_bytes(std::span(written)), "again.npy");
    fuzz::require(again.dtype == header.dtype && again.shape == header.shape);
  } catch (const Error& error) {
    fuzz::require_sound(error);
  }
}

void read_file(const std::string& path, io::NpyRank rank) {
  try {
    const io::HostTensor tensor = io::read_npy(path, rank);
    fuzz::require(io::tensor_bytes(tensor.dtype(), tensor.shape()) == static_cast<std::int64_t>(tensor.bytes().size()));
    for (const std::byte value : tensor.bytes()) {
      fuzz::require(tensor.dtype() != DType::kBool || value <= std::byte{1});
    }
  } catch (const Error& error) {
    fuzz::require_sound(error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::MemoryFile file;
  parse_header(std::as_bytes(std::span(data, size)));
  file.set(data, size);
  const std::string path = fuzz::MemoryFile::folder() + "/" + file.name();
  for (const io::NpyRank rank :
       {io::NpyRank::kExact, io::NpyRank::kBroadcast, io::NpyRank::kLse, io::NpyRank::kSlopes}) {
    read_file(path, rank);
  }
  return 0;
}
