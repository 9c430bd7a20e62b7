// attend generate: writes random Q, K and V as a folder of raw files. Files are written in small pieces, so they can be
// larger than the memory.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "commands/commands.hpp"
#include "core/elements.hpp"
#include "io/file.hpp"
#include "io/random_normal.hpp"
#include "process/interrupt.hpp"
#include "process/progress.hpp"

namespace attend::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPiece = 1 << 16;  // number of elements in a piece; a multiple of 4

struct Output {
  const char* file;
  io::NormalStream stream;
  Shape shape;
};

std::int64_t numel(const Shape& shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

void write_values(io::FileTransaction& files, io::FileTransaction::Handle file, const Output& output,
                  const GenerateOptions& options, Progress& progress) {
  const DType dtype = options.spec.dtype;
  std::vector<float> values(kPiece);
  std::vector<std::byte> bytes(static_cast<std::size_t>(kPiece * dtype_bytes(dtype)));
  const std::int64_t total = numel(output.shape);
  for (std::int64_t first = 0; first < total; first += kPiece) {
    const std::int64_t count = std::min(kPiece, total - first);
    io::fill_normal(std::span(values).first(count), options.seed, output.stream, static_cast<std::uint64_t>(first));
    for (std::int64_t i = 0; i < count; ++i) core::store(bytes.data(), dtype, i, values[i]);
    files.append(file, std::span(bytes).first(count * dtype_bytes(dtype)));
    progress.advance(count);
    stop_if_interrupted();
  }
}

/// Returns the total size of all new files in bytes. The disk must have this space in addition to the old files,
/// because an old file is replaced only after all new files are written.
std::uint64_t total_bytes(const std::vector<Output>& outputs, DType dtype) {
  std::uint64_t total = 0;
  for (const Output& output : outputs) {
    if (__builtin_add_overflow(total, *io::tensor_bytes(dtype, output.shape), &total)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
  }
  return total;
}

/// Returns the names of the result files in the folder, for example "O.bin, dQ.bin". They belong to older inputs.
std::string stale_results(const fs::path& folder) {
  std::string names;
  std::error_code error;
  for (const char* name : {"O.bin", "logsumexp.bin", "dO.bin", "dQ.bin", "dK.bin", "dV.bin"}) {
    if (fs::exists(folder / name, error)) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

}  // namespace

int generate(const GenerateOptions& options) {
  const io::FolderSpec& spec = options.spec;
  const fs::path folder = options.output_dir / io::folder_name(spec);
  std::vector<Output> outputs = {{"Q.bin", io::NormalStream::kQ, spec.q_shape()},
                                 {"K.bin", io::NormalStream::kK, spec.k_shape()},
                                 {"V.bin", io::NormalStream::kV, spec.v_shape()}};
  if (options.with_dout) outputs.push_back({"dO.bin", io::NormalStream::kDOut, spec.o_shape()});
  io::require_space(folder, total_bytes(outputs, spec.dtype));  // throws if the disk has too little space
  io::FileTransaction files;
  files.make_folders(folder);
  for (const std::string& name : io::tensor_files()) files.keep_from_links(folder / name);
  const std::string stale = stale_results(folder);
  std::vector<io::FileTransaction::Handle> handles;
  std::int64_t total = 0;
  for (const Output& output : outputs) {
    handles.push_back(files.create(folder / output.file, *io::tensor_bytes(spec.dtype, output.shape)));
    total += numel(output.shape);
  }
  {
    Progress progress("generate", total);
    for (std::size_t i = 0; i < outputs.size(); ++i) write_values(files, handles[i], outputs[i], options, progress);
  }
  files.commit();
  fmt::print("wrote Q.bin, K.bin, V.bin{} ({}, seed {}) to {}\n", options.with_dout ? ", dO.bin" : "",
             dtype_name(spec.dtype), options.seed, folder.string());
  if (!stale.empty()) fmt::print("note: the folder still has results of earlier inputs: {}\n", stale);
  return kExitDone;
}

}  // namespace attend::cli
