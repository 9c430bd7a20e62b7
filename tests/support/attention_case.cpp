#include "support/attention_case.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "dispatch/dispatch.hpp"

namespace attend::test {
namespace {

constexpr double kOutlierQ = 448;
constexpr double kOutlierK = 1880;
constexpr double kOneHotGap = 30;  // approximate score gap between the best key and the others, in natural-log units
constexpr double kMaskDensity = 0.7;
constexpr double kSinkDeviation = 2;     // sinks have mean 1: some exceed a row's scores, some do not
constexpr double kNoSinkDensity = 0.15;  // fraction of heads whose sink is -inf

struct Shapes {
  Shape q, k, v, o, lse;
};

Shapes shapes_of(const AttentionCase& c) {
  const auto total = [](const std::vector<std::int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  };
  const std::int64_t batch = c.packed() ? 1 : c.batch;
  const std::int64_t rows = c.packed() ? total(c.varlen_q) : c.seqlen_q;
  const std::int64_t keys = c.packed() ? total(c.varlen_k) : c.seqlen_k;
  return {{batch, c.heads_q, rows, c.head_dim},
          {batch, c.heads_k, keys, c.head_dim},
          {batch, c.heads_k, keys, c.head_dim_v},
          {batch, c.heads_q, rows, c.head_dim_v},
          {batch, c.heads_q, rows, 1}};
}

Placement placement_of(const AttentionCase& c) {
  const Layout layout = c.layout == CaseLayout::kBHSD     ? Layout::kBHSD
                        : c.layout == CaseLayout::kPadded ? Layout::kPadded
                        : c.layout == CaseLayout::kSliced ? Layout::kSliced
                                                          : Layout::kBSHD;
  return {layout, c.base_offset};
}

/// Makes q, k and v (or their gradients), as views of one buffer if the layout requests it and the shapes allow it.
std::vector<TensorBuffer> make_qkv(const AttentionCase& c, DType dtype) {
  const Shapes s = shapes_of(c);
  const Placement at = placement_of(c);
  if (c.layout != CaseLayout::kFused || s.k[3] != s.v[3]) {
    return {{dtype, s.q, at}, {dtype, s.k, at}, {dtype, s.v, at}};
  }
  if (s.q[2] == s.k[2]) return TensorBuffer::fused(dtype, {s.q, s.k, s.v}, c.base_offset);
  std::vector<TensorBuffer> kv = TensorBuffer::fused(dtype, {s.k, s.v}, c.base_offset);
  return {{dtype, s.q, at}, kv[0], kv[1]};
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double normal() { return normal_(engine_); }
  bool chance(double probability) { return std::uniform_real_distribution<double>(0, 1)(engine_) < probability; }
  void normal(const TensorBuffer& t, double factor) {
    t.generate([&](auto...) { return factor * normal(); });
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

/// Makes each query a multiple of one key of its head, so that this key's score exceeds all others by about kOneHotGap.
void point_queries_at_keys(const Inputs& in, double scale) {
  const Shape& q = in.q.shape();
  if (in.k.shape()[2] == 0 || scale == 0) return;
  const std::int64_t group = q[1] / in.k.shape()[1];
  in.q.generate([&](auto b, auto h, auto row, auto col) {
    const std::int64_t key = (row * 7 + h) % in.k.shape()[2];
    double norm = 0;
    for (std::int64_t c = 0; c < q[3]; ++c) norm += std::pow(in.k.at(b, h / group, key, c), 2);
    return kOneHotGap / (scale * std::max(norm, 0.25)) * in.k.at(b, h / group, key, col);
  });
}

void fill_inputs(const Inputs& in, Random& random) {
  const AttentionCase& c = in.options;
  const double factor = c.fill == Fill::kSmall ? 0.01 : c.fill == Fill::kLarge ? 5.0 : 1.0;
  for (const TensorBuffer* t : {&in.q, &in.k, &in.v}) random.normal(*t, factor);
  const std::int64_t channel = c.head_dim / 2;
  if (c.fill == Fill::kOneHot) point_queries_at_keys(in, c.scale.value_or(1 / std::sqrt(double(c.head_dim))));
  if (c.fill == Fill::kOutlier) {
    const auto put = [channel](const TensorBuffer& t, double value) {
      t.generate([&](auto b, auto h, auto row, auto col) { return col == channel ? value : t.at(b, h, row, col); });
    };
    put(in.q, kOutlierQ);
    put(in.k, kOutlierK);
  }
  if (c.fill == Fill::kNearUniform) in.k.generate([&](auto...) { return 1.0 + 1e-3 * random.normal(); });
}

TensorBuffer make_dout(const AttentionCase& c, Random& random) {
  const Shape shape = shapes_of(c).o;
  if (!c.broadcast_dout) {
    TensorBuffer dout(c.dtype, shape, placement_of(c));
    random.normal(dout, 1);
    return dout;
  }
  const TensorBuffer row(c.dtype, {1, 1, 1, shape[3]});
  random.normal(row, 1);
  return row.expanded(shape);
}

Shape broadcast_shape(const AttentionCase& c, const Broadcast& full) {
  return {full.batch ? c.batch : 1, full.heads ? c.heads_q : 1, full.rows ? c.seqlen_q : 1, c.seqlen_k};
}

/// Returns the cumulative sequence offsets, stored in memory that the backend can access.
std::shared_ptr<std::int32_t> offsets(const std::vector<std::int64_t>& lengths) {
  const auto memory = allocate_tensor_memory((lengths.size() + 1) * sizeof(std::int32_t));
  auto* at = reinterpret_cast<std::int32_t*>(memory.get());
  at[0] = 0;
  for (std::size_t n = 0; n < lengths.size(); ++n) at[n + 1] = at[n] + static_cast<std::int32_t>(lengths[n]);
  return {memory, at};
}

std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

TensorBuffer dense_f64(const TensorBuffer& t) {
  const TensorBuffer copy(DType::kF64, t.shape());
  copy.generate([&](auto b, auto h, auto row, auto col) { return t.at(b, h, row, col); });
  return copy;
}

std::uint64_t philox_seed_of(const AttentionCase& c) {
  return 0x9E3779B97F4A7C15u ^ c.seed;
}
std::uint64_t philox_offset_of(const AttentionCase& c) {
  return 0x100000003u * c.seed;
}

}  // namespace

Params Inputs::params(std::string_view compute) const {
  Params p;
  p.scale = options.scale;
  p.causal = options.causal;
  p.window_left = options.window_left;
  p.window_right = options.window_right;
  p.softcap = options.softcap;
  p.dropout_p = options.dropout_p;
  if (philox_state != nullptr) {
    p.philox_state = philox_state.get();
  } else {
    p.seed = philox_seed_of(options);
    p.offset = philox_offset_of(options);
  }
  p.deterministic = options.deterministic;
  p.compute = compute;
  if (slopes) p.alibi_slopes = slopes->view();
  if (bias) p.bias = bias->view();
  if (mask) p.mask = mask->view();
  if (sinks) p.sinks = sinks->view();
  if (options.packed()) {
    p.varlen =
        Varlen{cu_q.get(), cu_k.get(), options.num_sequences(), longest(options.varlen_q), longest(options.varlen_k)};
  }
  return p;
}

Inputs make_inputs(const AttentionCase& c) {
  Random random(c.seed);
  std::vector<TensorBuffer> qkv = make_qkv(c, c.dtype);
  Inputs in;
  in.options = c;
  in.q = qkv[0];
  in.k = qkv[1];
  in.v = qkv[2];
  fill_inputs(in, random);
  in.dout = make_dout(c, random);
  if (c.bias) {
    in.bias = TensorBuffer(c.dtype, broadcast_shape(c, *c.bias), placement_of(c));
    random.normal(*in.bias, 1);
  }
  if (c.mask) {
    in.mask = TensorBuffer(DType::kBool, broadcast_shape(c, *c.mask), placement_of(c));
    in.mask->generate([&](auto...) { return random.chance(kMaskDensity) ? 1.0 : 0.0; });
  }
  if (c.alibi) {
    in.slopes = TensorBuffer(DType::kF32, {c.alibi_per_sequence ? c.num_sequences() : 1, c.heads_q, 1, 1});
    in.slopes->generate([&](auto b, auto h, auto, auto) { return std::exp2(-0.5 * double(h + 1) - double(b)); });
  }
  if (c.dlse) {
    in.dlse = TensorBuffer(DType::kF32, shapes_of(c).lse, placement_of(c));
    random.normal(*in.dlse, 1);
  }
  if (c.packed()) {
    in.cu_q = offsets(c.varlen_q);
    in.cu_k = offsets(c.varlen_k);
  }
  if (c.dropout_p > 0 && c.seed % 2 == 1) {
    const auto memory = allocate_tensor_memory(2 * sizeof(std::uint64_t));
    in.philox_state = {memory, reinterpret_cast<std::uint64_t*>(memory.get())};
    in.philox_state.get()[0] = philox_seed_of(c);
    in.philox_state.get()[1] = philox_offset_of(c);
  }
  if (c.sinks) {
    in.sinks = TensorBuffer(c.dtype, {c.sinks_per_sequence ? c.num_sequences() : 1, c.heads_q, 1, 1}, placement_of(c));
    in.sinks->generate(
        [&](auto...) { return random.chance(kNoSinkDensity) ? -INFINITY : 1 + kSinkDeviation * random.normal(); });
  }
  return in;
}

Inputs as_f64(const Inputs& in) {
  Inputs wide = in;
  wide.options.dtype = DType::kF64;
  wide.options.layout = CaseLayout::kBHSD;
  wide.options.base_offset = 0;
  for (TensorBuffer* t : {&wide.q, &wide.k, &wide.v, &wide.dout}) *t = dense_f64(*t);
  if (in.bias) wide.bias = dense_f64(*in.bias);
  if (in.dlse) wide.dlse = dense_f64(*in.dlse);
  if (in.sinks) wide.sinks = dense_f64(*in.sinks);
  return wide;
}

Outputs make_outputs(const Inputs& in) {
  const AttentionCase& c = in.options;
  const Shapes s = shapes_of(c);
  const Placement at = placement_of(c);
  const DType lse_dtype = c.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  std::vector<TensorBuffer> gradients = make_qkv(c, c.dtype);
  Outputs out = {{c.dtype, s.o, at}, {lse_dtype, s.lse, at}, gradients[0], gradients[1], gradients[2]};
  if (in.bias && c.dbias) out.dbias = TensorBuffer(c.dtype, in.bias->shape(), at);
  if (in.sinks && c.dsinks) out.dsinks = TensorBuffer(c.dtype, in.sinks->shape(), at);
  return out;
}

namespace {

/// Returns the device on which the backend named `compute` needs its tensors. That device must be able to access the
/// memory that set_tensor_memory() provides.
Device device_of(std::string_view compute) {
  const core::Backend* backend = dispatch::find_backend(compute);
  return {backend == nullptr ? DeviceType::kCPU : backend->device, 0};
}

Tensor on(Device device, const TensorBuffer& buffer) {
  Tensor view = buffer.view();
  view.device = device;
  return view;
}

std::optional<Tensor> on(Device device, const std::optional<TensorBuffer>& buffer) {
  return buffer ? std::optional(on(device, *buffer)) : std::nullopt;
}

Params params_on(Device device, const Inputs& in, std::string_view compute) {
  Params params = in.params(compute);
  for (std::optional<ConstTensor>* t : {&params.bias, &params.mask, &params.alibi_slopes, &params.sinks}) {
    if (*t) (*t)->device = device;
  }
  return params;
}

}  // namespace

void wait_for(std::string_view compute) {
  const Device device = device_of(compute);
  if (device.type != DeviceType::kCUDA) return;
  const cuda::ContextGuard guard(device.index);
  cuda::synchronize(nullptr);
}

bool has_backward(std::string_view compute) {
  const core::Backend* backend = dispatch::find_backend(compute);
  return backend == nullptr || backend->backward;
}

void run_forward(const Inputs& in, const Outputs& out, std::string_view compute, bool with_lse) {
  ForwardCall call = forward_of(in, out, compute);
  if (!with_lse) call.lse.reset();
  forward(call);
  wait_for(compute);
}

void run_backward(const Inputs& in, const Outputs& out, std::string_view compute) {
  backward(backward_of(in, out, compute));
  wait_for(compute);
}

Outputs run(const Inputs& in, std::string_view compute) {
  Outputs out = make_outputs(in);
  run_forward(in, out, compute);
  if (has_backward(compute)) run_backward(in, out, compute);
  return out;
}

std::string describe(const AttentionCase& c) {
  static constexpr const char* kFills[] = {"normal", "small", "large", "one-hot", "outlier", "near-uniform"};
  static constexpr const char* kLayouts[] = {"bhsd", "bshd", "padded", "fused", "sliced"};
  std::ostringstream text;
  text << dtype_name(c.dtype) << " B" << c.batch << " H" << c.heads_q << ":" << c.heads_k << " L" << c.seqlen_q << "x"
       << c.seqlen_k << " D" << c.head_dim << ":" << c.head_dim_v;
  const auto list = [&](const char* name, const std::vector<std::int64_t>& lengths) {
    text << " " << name << "[";
    for (const std::int64_t length : lengths) text << length << " ";
    text << "]";
  };
  const auto dims = [&](const char* name, const std::optional<Broadcast>& full) {
    if (full) text << " " << name << "(" << full->batch << full->heads << full->rows << ")";
  };
  if (c.packed()) {
    list("varlen_q", c.varlen_q);
    list("varlen_k", c.varlen_k);
  }
  if (c.scale) text << " scale=" << *c.scale;
  if (c.causal) text << " causal";
  text << " window(" << c.window_left << "," << c.window_right << ")";
  if (c.softcap > 0) text << " softcap=" << c.softcap;
  if (c.alibi) text << (c.alibi_per_sequence ? " alibi/sequence" : " alibi");
  dims(c.dbias ? "bias" : "bias-alone", c.bias);
  dims("mask", c.mask);
  if (c.sinks) {
    text << (c.dsinks ? " sinks" : " sinks-alone") << (c.sinks_per_sequence ? "/sequence" : "");
  }
  if (c.dropout_p > 0) text << " dropout=" << c.dropout_p;
  if (c.dlse) text << " dlse";
  if (c.broadcast_dout) text << " dout-stride-0";
  if (c.deterministic) text << " deterministic";
  text << " " << kLayouts[static_cast<int>(c.layout)] << "+" << c.base_offset << " " << kFills[static_cast<int>(c.fill)]
       << " seed=" << c.seed;
  return text.str();
}

ForwardCall forward_of(const Inputs& in, const Outputs& out, std::string_view compute) {
  const Device d = device_of(compute);
  const core::Backend* backend = dispatch::find_backend(compute);
  if (backend != nullptr && !backend->forward) compute = "auto";
  return {.q = on(d, in.q),
          .k = on(d, in.k),
          .v = on(d, in.v),
          .o = on(d, out.o),
          .lse = on(d, out.lse),
          .params = params_on(d, in, compute)};
}

BackwardCall backward_of(const Inputs& in, const Outputs& out, std::string_view compute) {
  const Device d = device_of(compute);
  return {.q = on(d, in.q),
          .k = on(d, in.k),
          .v = on(d, in.v),
          .o = on(d, out.o),
          .lse = on(d, out.lse),
          .dout = on(d, in.dout),
          .dlse = on(d, in.dlse),
          .dq = on(d, out.dq),
          .dk = on(d, out.dk),
          .dv = on(d, out.dv),
          .dbias = on(d, out.dbias),
          .dsinks = on(d, out.dsinks),
          .params = params_on(d, in, compute)};
}

}  // namespace attend::test
