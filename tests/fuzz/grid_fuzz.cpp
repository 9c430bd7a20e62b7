// Fuzzes the parser of grid files with arbitrary text. The parser must return problems whose sizes are in range, or
// throw an Error.
#include <cstdint>

#include "fuzz/fuzz_support.hpp"
#include "workload/grid.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attend;
  try {
    const auto specs = cli::parse_grid({reinterpret_cast<const char*>(data), size}, "fuzz.json", DType::kF32);
    fuzz::require(!specs.empty());
    for (const cli::GridEntry& entry : specs) {
      const io::FolderSpec& spec = entry.spec;
      fuzz::require(spec.batch >= 1 && spec.num_heads >= 1 && spec.num_heads_kv >= 1 && spec.seqlen_q >= 1);
      fuzz::require(spec.seqlen_k >= 1 && spec.head_dim >= 1 && spec.head_dim <= 512 && spec.head_dim_v <= 512);
      fuzz::require(spec.num_heads % spec.num_heads_kv == 0);
    }
  } catch (const Error& error) {
    fuzz::require_sound(error);
  }
  return 0;
}
