#include "ranks/work.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "io/host_tensor.hpp"
#include "io/random_normal.hpp"
#include "ranks/share.hpp"
#include "ring/transport/transport.hpp"
#include "workload/timing.hpp"

namespace attend::cli {
namespace {

constexpr int kWarmUps = 2;
// Number of consecutive calls in one sample. During several calls, the host runs ahead of the GPU, as in a real
// program.
constexpr int kCallsOfAGpuSample = 3;

/// Returns normally distributed numbers. Zeros would give unrealistic times, because their products need less power,
/// and the GPU's clock depends on power.
const io::HostTensor& numbers(DType dtype) {
  static const io::HostTensor kFloats = [] {
    constexpr std::int64_t kCount = 1'048'573;  // prime, so that no row or tile length divides the period
    io::HostTensor values(DType::kF32, {1, 1, 1, kCount});
    io::fill_normal({static_cast<float*>(values.view().data), static_cast<std::size_t>(kCount)}, 1,
                    io::NormalStream::kQ, 0);
    return values;
  }();
  static const io::HostTensor kF16 = kFloats.converted(DType::kF16), kBf16 = kFloats.converted(DType::kBF16),
                              kF64 = kFloats.converted(DType::kF64);
  switch (dtype) {
    case DType::kF32:
      return kFloats;
    case DType::kF16:
      return kF16;
    case DType::kBF16:
      return kBf16;
    case DType::kF64:
      return kF64;
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  throw Error(ErrorCode::kInternal, fmt::format("numbers: dtype {}, allowed f32, f16, bf16, f64", dtype_name(dtype)));
}

/// Tensors for the calls of one rank, on the rank's device.
class RankTensors {
 public:
  RankTensors(const io::FolderSpec& spec, std::int64_t rows, std::int64_t keys, Device device) : device_(device) {
    const Shape q_shape = {spec.batch, spec.num_heads, rows, spec.head_dim};
    const Shape k_shape = {spec.batch, spec.num_heads_kv, keys, spec.head_dim};
    const Shape v_shape = {spec.batch, spec.num_heads_kv, keys, spec.head_dim_v};
    const Shape o_shape = {spec.batch, spec.num_heads, rows, spec.head_dim_v};
    q = make(spec.dtype, q_shape), dq = make(spec.dtype, q_shape);
    k = make(spec.dtype, k_shape), dk = make(spec.dtype, k_shape);
    v = make(spec.dtype, v_shape), dv = make(spec.dtype, v_shape);
    o = make(spec.dtype, o_shape), dout = make(spec.dtype, o_shape);
    lse = make(io::lse_dtype(spec.dtype), {spec.batch, spec.num_heads, rows, 1});
  }

  Tensor q, k, v, o, dout, dq, dk, dv, lse;

 private:
  Tensor make(DType dtype, const Shape& shape) {
    Tensor t = Tensor::bshd<void>(nullptr, dtype, shape, device_);
    const auto bytes = static_cast<std::size_t>(t.numel() * dtype_bytes(dtype));
    const std::span<const std::byte> block = numbers(dtype).bytes();
    const bool on_host = device_.type == DeviceType::kCPU;
    if (on_host) {
      host_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
      t.data = host_.back().get();
    } else {
      gpu_.emplace_back(bytes);
      t.data = reinterpret_cast<void*>(gpu_.back().data());  // NOLINT(performance-no-int-to-ptr)
    }
    for (std::size_t at = 0; at < bytes; at += block.size()) {
      const std::size_t piece = std::min(block.size(), bytes - at);
      if (on_host) {
        std::memcpy(host_.back().get() + at, block.data(), piece);
      } else {
        cuda::check_call(cuda::driver().copy_to_device(gpu_.back().data() + at, block.data(), piece, nullptr),
                         "cuMemcpyHtoDAsync", "filling a tensor");
      }
    }
    return t;
  }

  Device device_;
  std::vector<std::unique_ptr<std::byte[]>> host_;
  std::vector<cuda::DeviceMemory> gpu_;
};

/// If the device is a GPU, holds its context and a separate stream.
class Place {
 public:
  explicit Place(Device device) {
    if (device.type == DeviceType::kCPU) return;
    guard_.emplace(device.index);
    stream_.emplace();
  }
  [[nodiscard]] bool on_gpu() const { return stream_.has_value(); }
  [[nodiscard]] cuda::StreamHandle stream() const { return stream_ ? stream_->get() : nullptr; }
  void wait() const {
    if (stream_) cuda::synchronize(stream_->get());
  }

 private:
  std::optional<cuda::ContextGuard> guard_;
  std::optional<cuda::OwnStream> stream_;
};

using Call = std::function<void(Mode)>;

/// Returns the time of one pass in milliseconds. On a GPU, it is the average of `calls` consecutive passes.
double sample_of(const Call& call, Mode pass, const Place& place, int calls) {
  if (!place.on_gpu()) return wall_clock([&] { call(pass); })();
  cuda::Event start(cuda::Event::Timing::kOn), end(cuda::Event::Timing::kOn);
  start.record(place.stream());
  for (int n = 0; n < calls; ++n) call(pass);
  end.record(place.stream());
  end.synchronize();
  return static_cast<double>(end.milliseconds_since(start)) / calls;
}

/// The call on the ring, and the calls without a ring with which it is compared.
struct Calls {
  Call ring, alone;
  Call unmasked;     ///< null if the call `alone` has no mask
  double scale = 1;  ///< factor that scales the time of `alone` to the average number of visible pairs per rank
};

/// Takes samples of all calls in alternation, because the clock of a GPU depends on its previous load.
PassTimes samples_of(const Calls& calls, Mode pass, const Place& place, std::int64_t repeat,
                     const std::function<void()>& together) {
  PassTimes times;
  std::vector<std::pair<const Call*, std::vector<double>*>> timed = {{&calls.ring, &times.samples},
                                                                     {&calls.alone, &times.alone}};
  if (calls.unmasked) timed.emplace_back(&calls.unmasked, &times.unmasked);
  for (const auto& [call, samples] : timed) {
    for (int i = 0; i < kWarmUps; ++i) (*call)(pass);
    place.wait();
  }
  for (std::int64_t i = 0; i < repeat; ++i) {
    for (const auto& [call, samples] : timed) {
      together();
      samples->push_back(sample_of(*call, pass, place, kCallsOfAGpuSample));
    }
    if (!place.on_gpu()) continue;
    for (const auto& [call, samples] : {std::pair{&calls.ring, &times.single}, {&calls.alone, &times.alone_single}}) {
      together();
      samples->push_back(sample_of(*call, pass, place, 1));
    }
  }
  for (double& ms : times.alone) ms *= calls.scale;
  for (double& ms : times.alone_single) ms *= calls.scale;
  return times;
}

/// Makes one call from the functions of the two passes. kBoth runs forward and then backward.
template <class Forward, class Backward>
Call call_of(Forward forward, Backward backward) {
  return [forward, backward](Mode pass) {
    if (pass != Mode::kBackward) forward();
    if (pass != Mode::kForward) backward();
  };
}

/// Returns a call that computes all rows and keys of `t` at once.
Call whole_call(const RankTensors& t, const AttentionOptions& options, Stream stream) {
  const auto params = [options] { return options.params("auto"); };
  return call_of(
      [&t, params, stream] { forward(t.q, t.k, t.v, t.o, &t.lse, params(), stream); },
      [&t, params, stream] { backward(t.dout, t.q, t.k, t.v, t.o, t.lse, t.dq, t.dk, t.dv, params(), stream); });
}

/// Returns a call that computes each piece separately, with the rows and keys of `t` that belong to it. If two pieces
/// share keys, their contributions to dk and dv are not summed.
Call pieces_call(const RankTensors& t, const std::vector<SharePiece>& pieces, const AttentionOptions& options,
                 Stream stream) {
  const auto params_of = [options](const SharePiece& piece) {
    AttentionOptions own = options;
    own.causal = false;  // not needed, because window_right of the piece has the same effect
    own.window_left = piece.window_left, own.window_right = piece.window_right;
    return own.params("auto");
  };
  const auto rows = [](const Tensor& x, const SharePiece& piece) { return rows_from(x, piece.row, piece.num_rows); };
  const auto keys = [](const Tensor& x, const SharePiece& piece) { return rows_from(x, piece.key, piece.num_keys); };
  return call_of(
      [=, &t] {
        for (const SharePiece& p : pieces) {
          const Tensor lse = rows(t.lse, p);
          forward(rows(t.q, p), keys(t.k, p), keys(t.v, p), rows(t.o, p), &lse, params_of(p), stream);
        }
      },
      [=, &t] {
        for (const SharePiece& p : pieces) {
          backward(rows(t.dout, p), rows(t.q, p), keys(t.k, p), keys(t.v, p), rows(t.o, p), rows(t.lse, p),
                   rows(t.dq, p), keys(t.dk, p), keys(t.dv, p), params_of(p), stream);
        }
      });
}

bool is_masked(const AttentionOptions& options) {
  return options.causal || options.window_left >= 0 || options.window_right >= 0;
}

}  // namespace

std::vector<Mode> ring_passes(Mode mode) {
  if (mode == Mode::kBoth) return {Mode::kForward, Mode::kBackward, Mode::kBoth};
  return {mode};
}

void to_json(nlohmann::json& json, const PassTimes& times) {
  json = {{"samples", times.samples},           {"alone", times.alone},
          {"unmasked", times.unmasked},         {"single", times.single},
          {"alone_single", times.alone_single}, {"spans", nlohmann::json::array()}};
  for (const ring::Span& s : times.spans) {
    json["spans"].push_back({static_cast<int>(s.activity), s.step, s.begin_ms, s.end_ms});
  }
}

void from_json(const nlohmann::json& json, PassTimes& times) {
  json.at("samples").get_to(times.samples);
  json.at("alone").get_to(times.alone);
  json.at("unmasked").get_to(times.unmasked);
  json.at("single").get_to(times.single);
  json.at("alone_single").get_to(times.alone_single);
  for (const nlohmann::json& s : json.at("spans")) {
    times.spans.push_back({static_cast<ring::Activity>(s.at(0).get<int>()), s.at(1), s.at(2), s.at(3)});
  }
}

std::vector<PassTimes> time_rank(const RingOptions& options, const RingContext& context, Device device,
                                 const std::function<void()>& together) {
  const Place place(device);
  const io::FolderSpec& spec = options.spec;
  const Sharding sharding = options.ring.sharding;
  const std::int64_t rows = shard_seqlen(sharding, spec.seqlen_q, context.rank(), context.size());
  const RankTensors t(spec, rows, shard_seqlen(sharding, spec.seqlen_k, context.rank(), context.size()), device);
  const Params params = options.attention.params("auto");
  const Call ring =
      call_of([&] { ring_forward(context, t.q, t.k, t.v, t.o, &t.lse, params, options.ring, place.stream()); },
              [&] {
                ring_backward(context, t.dout, t.q, t.k, t.v, t.o, t.lse, t.dq, t.dk, t.dv, params, options.ring,
                              place.stream());
              });
  const RankTensors mean(spec, std::max<std::int64_t>(1, spec.seqlen_q / context.size()),
                         std::max<std::int64_t>(1, static_cast<std::int64_t>(mean_keys(options))), device);
  Calls calls = {ring, whole_call(mean, unmasked(options.attention), place.stream()), {}};
  std::optional<RankTensors> own;  // the rank's rows of q and all keys
  const std::vector<SharePiece> pieces = share_pieces(options, context.rank(), context.size());
  // The condition must have the same value on all ranks, because they wait for each other before each sample.
  if (is_masked(options.attention) && has_pieces(options)) {
    own.emplace(spec, rows, spec.seqlen_k, device);
    if (!pieces.empty()) calls.scale = mean_over_own(options, context.rank(), context.size());
    calls.unmasked = std::exchange(calls.alone, pieces_call(*own, pieces, options.attention, place.stream()));
  }
  // Backward reads the results of these forward calls, even if only backward is timed.
  for (const Call* call : {&calls.ring, &calls.alone}) (*call)(Mode::kForward);
  if (calls.unmasked) calls.unmasked(Mode::kForward);
  std::vector<PassTimes> all;
  for (const Mode pass : ring_passes(options.mode)) {
    PassTimes times = samples_of(calls, pass, place, options.repeat, together);
    if (pass != Mode::kBoth) {
      ring::Timeline timeline(place.on_gpu());
      together();
      // Warm-up, so that the GPU's clock is the same as in consecutive calls.
      for (int n = 1; place.on_gpu() && n < kCallsOfAGpuSample; ++n) ring(pass);
      context.transport().record_in(&timeline);
      ring(pass);
      context.transport().record_in(nullptr);
      times.spans = timeline.spans();
    }
    all.push_back(std::move(times));
  }
  return all;
}

}  // namespace attend::cli
