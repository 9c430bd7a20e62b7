#include "xla_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attend::python::xla {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw attend::Error(attend::ErrorCode::kInternal, "custom call of attend: " + message);
}

/// Returns the name of the dtype in this library. For an unsupported type, the name is its number, which then occurs in
/// the library's error message.
std::string dtype_text(DataType dtype) {
  switch (dtype) {
    case DataType::kPred:
      return "bool";
    case DataType::kS32:
      return "i32";
    case DataType::kS64:
      return "i64";
    case DataType::kU32:
      return "u32";
    case DataType::kU64:
      return "u64";
    case DataType::kF16:
      return "f16";
    case DataType::kF32:
      return "f32";
    case DataType::kF64:
      return "f64";
    case DataType::kBF16:
      return "bf16";
  }
  return "of XLA's type " + std::to_string(static_cast<int>(dtype));
}

template <class T>
double read(const void* value) {
  T x;
  std::memcpy(&x, value, sizeof x);
  return static_cast<double>(x);
}

/// Returns the position of `name` in a list of words that are separated by one space. Returns -1 if the list does not
/// contain it.
std::int64_t position(std::string_view words, std::string_view name) {
  for (std::int64_t i = 0; !words.empty(); ++i) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == name) return i;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return -1;
}

std::int64_t count(std::string_view words) {
  return words.empty() ? 0 : 1 + std::count(words.begin(), words.end(), ' ');
}

Tensor view_of(const core::ScoreTensor& row, const char* name, const Array& array) {
  return row.is_of_scores() ? scores_view(name, array) : per_head_view(name, array);
}

}  // namespace

NamedFrame::NamedFrame(const CallFrame& frame, Device device) : frame_(frame), device_(device) {
  if (count(text("operands")) != frame.arguments.size) fail("as many operands as names are allowed");
  if (count(text("results")) != frame.results.size) fail("as many results as names are allowed");
}

const void* NamedFrame::attribute(std::string_view name, int type) const {
  const Attributes& all = frame_.attributes;
  for (std::int64_t i = 0; i < all.size; ++i) {
    if (std::string_view(all.names[i]->data, all.names[i]->size) != name) continue;
    if (all.types[i] != type) fail("attribute '" + std::string(name) + "' is of another type");
    return all.entries[i];
  }
  return nullptr;
}

std::string_view NamedFrame::text(std::string_view name) const {
  const auto* const found = static_cast<const ByteSpan*>(attribute(name, Attributes::kString));
  return found == nullptr ? std::string_view() : std::string_view(found->data, found->size);
}

double NamedFrame::number(std::string_view name, double otherwise) const {
  const auto* const found = static_cast<const Scalar*>(attribute(name, Attributes::kScalar));
  if (found == nullptr) return otherwise;
  if (found->dtype == DataType::kF64) return read<double>(found->value);
  if (found->dtype == DataType::kF32) return read<float>(found->value);
  return static_cast<double>(integer(name, 0));
}

std::int64_t NamedFrame::integer(std::string_view name, std::int64_t otherwise) const {
  const auto* const found = static_cast<const Scalar*>(attribute(name, Attributes::kScalar));
  if (found == nullptr) return otherwise;
  if (found->dtype == DataType::kPred) return static_cast<std::int64_t>(read<std::uint8_t>(found->value));
  if (found->dtype == DataType::kS32) return static_cast<std::int64_t>(read<std::int32_t>(found->value));
  if (found->dtype != DataType::kS64) fail("attribute '" + std::string(name) + "' is no whole number");
  std::int64_t value = 0;
  std::memcpy(&value, found->value, sizeof value);
  return value;
}

const Buffer* NamedFrame::buffer(std::string_view name) const {
  for (const auto& [words, buffers] :
       {std::pair{text("operands"), &frame_.arguments}, std::pair{text("results"), &frame_.results}}) {
    const std::int64_t i = position(words, name);
    if (i < 0) continue;
    if (buffers->types[i] != Buffers::kBuffer) fail("'" + std::string(name) + "' is no buffer");
    return static_cast<const Buffer*>(buffers->entries[i]);
  }
  return nullptr;
}

std::optional<Array> NamedFrame::find(std::string_view name) const {
  const Buffer* const found = buffer(name);
  if (found == nullptr) return std::nullopt;
  if (found->rank > Array::kMaxDims) fail("'" + std::string(name) + "' has too many dimensions");
  Array a;
  a.data = found->data;
  a.dtype = dtype_text(found->dtype);
  a.device = device_;
  a.num_dims = static_cast<int>(found->rank);
  std::int64_t step = 1;
  for (int d = a.num_dims - 1; d >= 0; --d) {
    a.shape[d] = found->dims[d];
    a.stride[d] = step;
    step *= found->dims[d];
  }
  if (step == 0) a.stride.fill(1);  // the strides of an empty array are never used
  return a;
}

Array NamedFrame::array(std::string_view name) const {
  std::optional<Array> found = find(name);
  if (!found) fail("there is no '" + std::string(name) + "'");
  return *found;
}

FrameCall::FrameCall(const CallFrame& call_frame, Device device)
    : frame(call_frame, device), compute(frame.text("compute")) {
  if (compute.empty()) compute = "auto";
  const std::optional<Array> given = frame.find("workspace");
  if (!given) return;
  // XLA aligns buffers to fewer bytes than the library requires. Therefore the front end requests kAlignment bytes more
  // than the library needs.
  constexpr std::uintptr_t kAlignment = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(given->data);
  const std::uintptr_t skipped = (kAlignment - address % kAlignment) % kAlignment;
  const auto bytes = static_cast<std::size_t>(given->shape[0]) * sizeof(std::uint32_t);
  if (bytes > skipped) workspace = {static_cast<std::byte*>(given->data) + skipped, bytes - skipped};
}

Params FrameCall::params() const {
  Params params;
  const double scale = frame.number("scale", std::numeric_limits<double>::quiet_NaN());
  if (!std::isnan(scale)) params.scale = scale;
  params.causal = frame.integer("causal", 0) != 0;
  params.window_left = frame.integer("window_left", -1);
  params.window_right = frame.integer("window_right", -1);
  for (const core::ScoreNumber& row : core::kScoreNumbers) params.*row.param = frame.number(row.name, 0.0);
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (const std::optional<Array> given = frame.find(row.name)) params.*row.param = view_of(row, row.name, *given);
  }
  // The seed and the offset are four 32-bit words, because JAX has no 64-bit integers by default.
  if (const std::optional<Array> state = frame.find("philox_state")) {
    if (state->num_dims != 1 || state->shape[0] != 4 || state->dtype != "u32") fail("philox_state is not u32 (4)");
    params.philox_state = static_cast<const std::uint64_t*>(state->data);
  }
  if (const std::optional<Array> cu_seqlens_q = frame.find("cu_seqlens_q")) {
    const Device device = cu_seqlens_q->device;
    const Array cu_seqlens_k = frame.array("cu_seqlens_k");
    check_as_many(*cu_seqlens_q, cu_seqlens_k);
    params.varlen = {.cu_seqlens_q = offsets_view("cu_seqlens_q", *cu_seqlens_q, device),
                     .cu_seqlens_k = offsets_view("cu_seqlens_k", cu_seqlens_k, device),
                     .num_sequences = cu_seqlens_q->shape[0] - 1,
                     .max_seqlen_q = frame.integer("max_seqlen_q", 0),
                     .max_seqlen_k = frame.integer("max_seqlen_k", 0)};
  }
  params.deterministic = frame.integer("deterministic", 0) != 0;
  params.compute = compute;
  return params;
}

ForwardCall FrameCall::forward(Stream stream) const {
  ForwardCall call = {.q = heads("q"), .k = heads("k"), .v = heads("v"), .o = heads("o"), .params = params()};
  if (frame.find("lse")) call.lse = rows("lse");
  call.stream = stream;
  return call;
}

BackwardCall FrameCall::backward(Stream stream) const {
  BackwardCall call = {.q = heads("q"),
                       .k = heads("k"),
                       .v = heads("v"),
                       .o = heads("o"),
                       .lse = rows("lse"),
                       .dout = heads("dout"),
                       .dq = heads("dq"),
                       .dk = heads("dk"),
                       .dv = heads("dv"),
                       .params = params(),
                       .stream = stream};
  if (frame.find("dlse")) call.dlse = rows("dlse");
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (row.gradient == nullptr) continue;
    if (const std::optional<Array> array = frame.find(row.gradient)) {
      call.*row.passed_gradient = view_of(row, row.gradient, *array);
    }
  }
  return call;
}

}  // namespace attend::python::xla
