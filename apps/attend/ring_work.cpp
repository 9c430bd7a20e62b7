#include "ring_work.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "io/host_tensor.hpp"
#include "io/random_normal.hpp"
#include "kernels/common/key_range.cuh"
#include "ring/transport.hpp"
#include "timing.hpp"

namespace attend::cli {
namespace {

constexpr int kWarmUps = 2;
constexpr int kCallsOfAGpuSample = 3;  // in a row: the host is ahead then, as it is in a program

/// Normally distributed numbers: products of zeros would draw less power.
const io::HostTensor& numbers(DType dtype) {
  static const io::HostTensor kFloats = [] {
    constexpr std::int64_t kCount = 1'048'573;  // prime: repeated, they line up with no row and no tile
    io::HostTensor values(DType::kF32, {1, 1, 1, kCount});
    io::fill_normal({static_cast<float*>(values.view().data), static_cast<std::size_t>(kCount)}, 1,
                    io::NormalStream::kQ, 0);
    return values;
  }();
  static const io::HostTensor kF16 = kFloats.converted(DType::kF16), kBf16 = kFloats.converted(DType::kBF16),
                              kF64 = kFloats.converted(DType::kF64);
  return dtype == DType::kF16 ? kF16 : dtype == DType::kBF16 ? kBf16 : dtype == DType::kF64 ? kF64 : kFloats;
}

/// The tensors of a rank's call, on its device.
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

/// A device's context, and a stream of its own, where it is a GPU.
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

/// Milliseconds of one pass, of so many in a row on a GPU.
double sample_of(const Call& call, Mode pass, const Place& place, int calls) {
  if (!place.on_gpu()) return wall_clock([&] { call(pass); })();
  cuda::Event start(cuda::Event::Timing::kOn), end(cuda::Event::Timing::kOn);
  start.record(place.stream());
  for (int n = 0; n < calls; ++n) call(pass);
  end.record(place.stream());
  end.synchronize();
  return static_cast<double>(end.milliseconds_since(start)) / calls;
}

/// Samples of the ring and of the share alone in turns: the clocks of GPUs drift with what they have done before.
PassTimes samples_of(const Call& ring, const Call& alone, Mode pass, const Place& place, std::int64_t repeat,
                     const std::function<void()>& together) {
  for (const Call* call : {&ring, &alone}) {
    for (int i = 0; i < kWarmUps; ++i) (*call)(pass);
    place.wait();
  }
  PassTimes times;
  for (std::int64_t i = 0; i < repeat; ++i) {
    for (const auto& [call, samples] : {std::pair{&ring, &times.samples}, {&alone, &times.alone}}) {
      together();
      samples->push_back(sample_of(*call, pass, place, kCallsOfAGpuSample));
    }
    if (!place.on_gpu()) continue;
    for (const auto& [call, samples] : {std::pair{&ring, &times.single}, {&alone, &times.alone_single}}) {
      together();
      samples->push_back(sample_of(*call, pass, place, 1));
    }
  }
  return times;
}

/// Makes kBoth of the two passes.
template <class Forward, class Backward>
Call call_of(Forward forward, Backward backward) {
  return [forward, backward](Mode pass) {
    if (pass != Mode::kBackward) forward();
    if (pass != Mode::kForward) backward();
  };
}

/// Keys that a row of the whole sees in the mean.
double mean_keys(const RingOptions& options) {
  const io::FolderSpec& spec = options.spec;
  const AttentionOptions& a = options.attention;
  const WindowMask mask = {spec.seqlen_q, spec.seqlen_k, a.window_left, a.causal ? 0 : a.window_right};
  double keys = 0;
  for (std::int64_t row = 0; row < spec.seqlen_q; ++row) {
    const KeyRange range = mask.row(row);
    if (!range.empty()) keys += static_cast<double>(range.end - range.begin);
  }
  return keys / static_cast<double>(spec.seqlen_q);
}

Params params_of_share(const RingOptions& options) {
  AttentionOptions unmasked = options.attention;
  unmasked.causal = false;
  unmasked.window_left = unmasked.window_right = -1;
  return unmasked.params("auto");
}

}  // namespace

std::vector<Mode> ring_passes(Mode mode) {
  if (mode == Mode::kBoth) return {Mode::kForward, Mode::kBackward, Mode::kBoth};
  return {mode};
}

void to_json(nlohmann::json& json, const PassTimes& times) {
  json = {{"samples", times.samples},
          {"alone", times.alone},
          {"single", times.single},
          {"alone_single", times.alone_single},
          {"spans", nlohmann::json::array()}};
  for (const ring::Span& s : times.spans) {
    json["spans"].push_back({static_cast<int>(s.activity), s.step, s.begin_ms, s.end_ms});
  }
}

void from_json(const nlohmann::json& json, PassTimes& times) {
  json.at("samples").get_to(times.samples);
  json.at("alone").get_to(times.alone);
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
  const RankTensors t(spec, shard_seqlen(sharding, spec.seqlen_q, context.rank(), context.size()),
                      shard_seqlen(sharding, spec.seqlen_k, context.rank(), context.size()), device);
  const Params params = options.attention.params("auto");
  const Call ring =
      call_of([&] { ring_forward(context, t.q, t.k, t.v, t.o, &t.lse, params, options.ring, place.stream()); },
              [&] {
                ring_backward(context, t.dout, t.q, t.k, t.v, t.o, t.lse, t.dq, t.dk, t.dv, params, options.ring,
                              place.stream());
              });
  const RankTensors share(spec, std::max<std::int64_t>(1, spec.seqlen_q / context.size()),
                          std::max<std::int64_t>(1, static_cast<std::int64_t>(mean_keys(options))), device);
  const Params unmasked = params_of_share(options);
  const Call alone = call_of([&] { forward(share.q, share.k, share.v, share.o, &share.lse, unmasked, place.stream()); },
                             [&] {
                               backward(share.dout, share.q, share.k, share.v, share.o, share.lse, share.dq, share.dk,
                                        share.dv, unmasked, place.stream());
                             });
  for (const Call* call : {&ring, &alone}) (*call)(Mode::kForward);  // a backward alone reads what it gives
  std::vector<PassTimes> all;
  for (const Mode pass : ring_passes(options.mode)) {
    PassTimes times = samples_of(ring, alone, pass, place, options.repeat, together);
    if (pass != Mode::kBoth) {
      ring::Timeline timeline(place.on_gpu());
      together();
      for (int n = 1; place.on_gpu() && n < kCallsOfAGpuSample; ++n) ring(pass);  // at the clock of calls in a row
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
