#include "cuda/masks/make_tiles.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/problem_checks.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/masks/device_captures.hpp"
#include "cuda/masks/host_staging.hpp"
#include "cuda/masks/mask_kernels.hpp"
#include "cuda/serving/device_of.hpp"
#include "kernels/masks/mask_args.cuh"

namespace attend::cuda {
namespace {

using core::BlockTiles;

static_assert(kMakerTile == core::kMaskTile && sizeof(core::TilePattern) == kLengthOfPattern * sizeof(uint64));
static_assert(sizeof(core::SeenTiles) == sizeof(MadeEntry));

constexpr int kWarpsOfBlock = kMakerThreads / 32;
constexpr int kBlocksOfMultiprocessor = 4;  // resident blocks per multiprocessor of the kernel mask_patterns
// Bounds of a capture are computed if it has at most this number of runs. The bounds of this number of runs need 24
// MiB.
constexpr std::int64_t kMostRuns = 1 << 20;
// Number of entries per row that are copied before the actual number is known.
constexpr std::int64_t kEntriesCopiedOfRow = 16;

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

std::int64_t num_rows(const BlockTiles& tiles) {
  return tiles.batch * tiles.num_heads * tiles.tile_rows();
}

/// Number of patterns (`places`) and of entries for which memory is allocated.
struct Capacity {
  std::int64_t places, entries;
};

/// Returns the capacity for the first attempt. It suffices for most masks, which have few patterns and few entries per
/// row.
Capacity first_capacity(const BlockTiles& tiles, std::int64_t warps) {
  constexpr std::int64_t kPatterns = 8192, kEntriesOfRow = 32, kEntries = 65536;
  const std::int64_t all = num_rows(tiles) * tiles.tile_columns();
  return {std::min(all, kPatterns + warps), std::min(all, kEntriesOfRow * num_rows(tiles) + kEntries)};
}

/// Layout of several arrays in one allocation.
class Places {
 public:
  /// Adds an array of `count` elements of type T and returns its offset in bytes.
  template <class T>
  std::size_t add(std::int64_t count) {
    const std::size_t at = bytes_;
    bytes_ = (bytes_ + static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 256;
  std::size_t bytes_ = 0;
};

template <class T>
T* at(const Scratch& memory, std::size_t offset) {
  return reinterpret_cast<T*>(memory.data() + offset);  // NOLINT(performance-no-int-to-ptr)
}

/// One attempt to build the mask. The allocated memory has room for a given number of patterns and entries.
class Attempt {
 public:
  Attempt(const std::vector<core::MaskCapture>& captures, const BlockTiles& tiles, const Capacity& capacity,
          StreamHandle stream)
      : stream_(stream), args_(), tiles_(tiles) {
    const std::int64_t rows = num_rows(tiles), all = rows * tiles.tile_columns();
    args_.seqlen_q = tiles.seqlen_q;
    args_.seqlen_k = tiles.seqlen_k;
    args_.num_heads = static_cast<int>(tiles.num_heads);
    args_.tile_rows = static_cast<int>(tiles.tile_rows());
    args_.tile_columns = static_cast<int>(tiles.tile_columns());
    args_.tiles = static_cast<int>(all);
    args_.most_places = static_cast<int>(capacity.places);
    args_.most_entries = static_cast<int>(capacity.entries);
    args_.table_slots = static_cast<int>(std::bit_ceil(2 * static_cast<std::uint64_t>(capacity.places)));
    Places places;
    std::size_t ranges[kMostCaptured] = {};
    for (std::size_t n = 0; n < captures.size(); ++n) ranges[n] = places.add<CaptureRange>(set_capture(n, captures[n]));
    const std::size_t kinds = places.add<int>(all), undecided = places.add<int>(all);
    const std::size_t words = places.add<core::TilePattern>(capacity.places);
    const std::size_t numbers = places.add<int>(capacity.places);
    patterns_ = places.add<core::TilePattern>(capacity.places);
    const std::size_t table = places.add<uint64>(args_.table_slots);
    // One copy to the host transfers counts_ and all arrays after it. All bytes from `table` to the end of counts_ are
    // set to 0 before the kernels use them.
    counts_ = places.add<MakerCounts>(1);
    first_ = places.add<core::TilePattern>(kFirstPatterns);
    rows_ = places.add<MadeRow>(rows);
    entries_ = places.add<MadeEntry>(capacity.entries);
    memory_.emplace(places.bytes(), stream);
    cleared_ = {table, first_ - table};
    args_.cleared = at<uint64>(*memory_, table);
    args_.num_cleared = static_cast<int>(cleared_.bytes / sizeof(uint64));
    for (std::size_t n = 0; n < captures.size(); ++n) {
      if (args_.ranges[n].runs > 0) args_.ranges[n].ranges = at<CaptureRange>(*memory_, ranges[n]);
    }
    args_.kinds = at<int>(*memory_, kinds);
    args_.undecided = at<int>(*memory_, undecided);
    args_.places = at<uint64>(*memory_, words);
    args_.numbers = at<int>(*memory_, numbers);
    args_.patterns = at<uint64>(*memory_, patterns_);
    args_.first_patterns = at<uint64>(*memory_, first_);
    args_.table = at<uint64>(*memory_, table);
    args_.counts = at<MakerCounts>(*memory_, counts_);
    args_.rows = at<MadeRow>(*memory_, rows_);
    args_.entries = at<MadeEntry>(*memory_, entries_);
  }

  void launch(const MaskKernels::Loaded& kernels, std::int64_t warps) {
    const auto run = [&](MakerStep step, std::int64_t blocks) {
      kernels[static_cast<std::size_t>(step)]->launch({.x = static_cast<unsigned>(blocks)}, &args_, stream_);
    };
    if (num_runs_ > 0) {
      // The kernel of this step also sets the memory to 0.
      run(MakerStep::kRanges, ceil_div(num_runs_, kWarpsOfBlock));
    } else {
      clear(memory_->data() + cleared_.begin, cleared_.bytes, stream_, "making a block mask");
    }
    run(MakerStep::kKinds, ceil_div(args_.tiles, kMakerThreads));
    run(MakerStep::kPatterns, ceil_div(warps, kWarpsOfBlock));
    run(MakerStep::kRows, num_rows(tiles_));
  }

  /// Starts copying the results that suffice for most masks: the counts, the first patterns, the rows and the first
  /// entries.
  void begin_copy() {
    const std::int64_t entries = std::min<std::int64_t>(args_.most_entries, kEntriesCopiedOfRow * num_rows(tiles_));
    const std::size_t bytes = entries_ - counts_ + static_cast<std::size_t>(entries) * sizeof(MadeEntry);
    head_ = HostStaging(bytes);
    num_copied_ = entries;
    copy(head_.data(), counts_, bytes);
  }

  /// Returns the numbers of patterns and entries. The caller must have waited for the stream after begin_copy().
  [[nodiscard]] MakerCounts counts() const { return read<MakerCounts>(0, 1).front(); }

  /// Starts copying the entries and patterns that begin_copy() has not copied. Returns whether there are such entries
  /// or patterns. If so, the caller must wait for the stream.
  [[nodiscard]] bool begin_rest() {
    const MakerCounts found = counts();
    found_entries_ = read<core::SeenTiles>(entries_ - counts_, std::min<std::int64_t>(num_copied_, found.entries));
    found_patterns_ = read<core::TilePattern>(first_ - counts_, std::min(kFirstPatterns, found.patterns));
    const bool has_entries = copy_rest(found_entries_, found.entries, entries_);
    return copy_rest(found_patterns_, found.patterns, patterns_) || has_entries;
  }

  /// Fills `tiles` with the results. All entries and patterns must have been copied to the host.
  void fill(BlockTiles& tiles) {
    tiles.seen.reserve(found_entries_.size());
    for (const MadeRow& row : read<MadeRow>(rows_ - counts_, num_rows(tiles))) {
      const auto first = found_entries_.begin() + row.first;
      tiles.seen.insert(tiles.seen.end(), first, first + row.count);
      tiles.row_begin.push_back(static_cast<std::int64_t>(tiles.seen.size()));
    }
    tiles.patterns = std::move(found_patterns_);
  }

 private:
  struct Bytes {
    std::size_t begin = 0, bytes = 0;
  };

  /// Sets the arguments of a capture. Returns the number of its runs (groups of adjacent elements) whose bounds must be
  /// computed.
  std::int64_t set_capture(std::size_t n, const core::MaskCapture& capture) {
    args_.captured[n] = captured_tensor(capture.tensor);
    CaptureRanges& ranges = args_.ranges[n];
    ranges.rank = static_cast<int>(capture.rank);
    if (!capture.has_bounds) return 0;
    const std::size_t last = std::max<std::size_t>(capture.rank, 1) - 1;
    std::int64_t rows = 1;
    const std::int64_t runs = ceil_div(capture.tensor.shape[last], kCaptureRun);
    for (std::size_t d = 0; d < last && rows <= kMostRuns; ++d) rows *= capture.tensor.shape[d];
    // The table of bounds would be too large. Without the table, the kernels assume no bounds for the elements.
    if (rows > kMostRuns || runs > kMostRuns / rows) return 0;
    ranges.rows = rows;
    ranges.runs = runs;
    num_runs_ += rows * runs;
    return rows * runs;
  }

  void copy(void* to, std::size_t offset, std::size_t bytes) {
    if (bytes == 0) return;
    check_call(driver().copy_to_host(to, memory_->data() + offset, bytes, stream_), "cuMemcpyDtoHAsync",
               "reading a block mask");
  }
  /// Resizes `all` to `count` elements and starts copying the new elements. Returns whether there are new elements.
  template <class T>
  bool copy_rest(std::vector<T>& all, int count, std::size_t offset) {
    const std::size_t bytes = all.size() * sizeof(T);
    all.resize(static_cast<std::size_t>(count));
    const std::size_t all_bytes = all.size() * sizeof(T);
    if (bytes == all_bytes) return false;
    copy(reinterpret_cast<std::byte*>(all.data()) + bytes, offset + bytes, all_bytes - bytes);
    return true;
  }
  template <class T>
  [[nodiscard]] std::vector<T> read(std::size_t offset, std::int64_t count) const {
    std::vector<T> all(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(all.data(), head_.data() + offset, all.size() * sizeof(T));
    return all;
  }

  StreamHandle stream_;
  MaskMakerArgs args_;
  const BlockTiles& tiles_;
  std::optional<Scratch> memory_;
  std::size_t patterns_ = 0, counts_ = 0, first_ = 0, rows_ = 0, entries_ = 0;  // offsets in bytes
  Bytes cleared_;
  std::int64_t num_runs_ = 0, num_copied_ = 0;
  HostStaging head_;  // host copy of the arrays that begin_copy() copies; it starts with counts_
  std::vector<core::SeenTiles> found_entries_;
  std::vector<core::TilePattern> found_patterns_;
};

void check_stream(StreamHandle stream) {
  int status = 0;
  std::uint64_t capture = 0;
  GraphHandle graph = nullptr;
  const void* dependencies = nullptr;
  std::size_t num_dependencies = 0;
  check_call(driver().stream_capture(stream, &status, &capture, &graph, &dependencies, &num_dependencies),
             "cuStreamGetCaptureInfo", "making a block mask");
  if (status != 0)
    core::refuse("stream: being captured, allowed other streams, because make_block_mask waits for the stream");
}

/// Waits for the stream. If `start` is set, adds the time since `start` to `milliseconds` and records `start` again.
void wait_here(StreamHandle stream, std::optional<Event>& start, double* milliseconds) {
  if (!start) return synchronize(stream);
  Event end(Event::Timing::kOn);
  end.record(stream);
  synchronize(stream);
  *milliseconds += static_cast<double>(end.milliseconds_since(*start));
  start->record(stream);
}

/// Returns the capacity for the next attempt. If there was too little memory for patterns, the required number is
/// unknown, but it is at most the number of undecided tiles. A tile is undecided if bounds alone do not show whether it
/// is fully visible or fully hidden.
Capacity larger(const Capacity& former, const MakerCounts& found) {
  constexpr std::int64_t kFactor = 16;
  Capacity next = former;
  if (found.places > former.places) {
    next.places = std::min<std::int64_t>(kFactor * former.places, found.undecided);
  }
  next.entries = std::max<std::int64_t>(former.entries, found.entries);
  return next;
}

}  // namespace

void make_tiles(const core::MaskProgram& program, Device device, Stream stream, BlockTiles& tiles, double* gpu_ms) {
  const std::int64_t rows = num_rows(tiles);
  tiles.row_begin.assign(1, 0);
  if (static_cast<double>(rows) * static_cast<double>(tiles.tile_columns()) > std::numeric_limits<int>::max()) {
    core::refuse(
        "batch, num_heads, seqlen_q, seqlen_k: {} rows of {} tiles of 64 x 64, allowed at most 2^31 - 1 tiles "
        "on a GPU",
        rows, tiles.tile_columns());
  }
  const DeviceInfo& info = device_of("device", Tensor{.device = device});
  if (rows == 0 || tiles.tile_columns() == 0) return tiles.row_begin.resize(static_cast<std::size_t>(rows + 1));
  const ContextGuard guard(info.index);
  auto* const handle = static_cast<StreamHandle>(stream);
  check_stream(handle);
  const DeviceCaptures captures(program.captures, info.index, handle);
  const MaskKernels::Loaded kernels = MaskKernels(program, captures.all()).load(info);
  const std::int64_t warps = std::min<std::int64_t>(
      rows * tiles.tile_columns(), std::int64_t{info.num_multiprocessors} * kBlocksOfMultiprocessor * kWarpsOfBlock);
  for (Capacity capacity = first_capacity(tiles, warps);;) {
    Attempt attempt(captures.all(), tiles, capacity, handle);
    std::optional<Event> start;
    if (gpu_ms != nullptr) start.emplace(Event::Timing::kOn).record(handle);
    attempt.launch(kernels, warps);
    attempt.begin_copy();
    wait_here(handle, start, gpu_ms);
    const MakerCounts found = attempt.counts();
    if (found.places <= capacity.places && found.entries <= capacity.entries) {
      if (attempt.begin_rest()) wait_here(handle, start, gpu_ms);
      return attempt.fill(tiles);
    }
    capacity = larger(capacity, found);
  }
}

}  // namespace attend::cuda
