#include "arguments.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/dtype_traits.hpp"
#include "values.hpp"

namespace attend::python {
namespace {

using MaybeArray = std::optional<Array>;

// The fields of the named tuples. attend/_settings.py imports the names of the fields. The C++ code reads the fields by
// position, which is faster than by name. The fields for score modifications come from the tables in core.
constexpr std::size_t kNumbers = core::kScoreNumbers.size(), kTensors = core::kScoreTensors.size();

/// Positions of the fields in the tuple Extras. The tensors that modify scores precede these fields.
struct Extra {
  static constexpr std::size_t kCuSeqlensQ = kTensors, kCuSeqlensK = kTensors + 1, kPhiloxState = kTensors + 2;
};

std::vector<const char*> extras_fields() {
  std::vector<const char*> fields;
  for (const core::ScoreTensor& row : core::kScoreTensors) fields.push_back(row.name);
  fields.insert(fields.end(), {"cu_seqlens_q", "cu_seqlens_k", "philox_state"});
  return fields;
}

/// Positions of the fields in the tuple Settings.
struct Setting {
  static constexpr std::size_t kMaxSeqlenQ = 0, kMaxSeqlenK = 1, kLayout = 2, kScale = 3, kCausal = 4, kWindowLeft = 5,
                               kWindowRight = 6, kFirstNumber = 7;
  static constexpr std::size_t kSeed = kFirstNumber + kNumbers, kOffset = kSeed + 1, kDeterministic = kSeed + 2,
                               kCompute = kSeed + 3;
};

const std::vector<const char*>& settings_fields() {
  static const auto* const kFields = [] {
    auto* fields = new std::vector<const char*>{"max_seqlen_q", "max_seqlen_k", "layout",      "scale",
                                                "causal",       "window_left",  "window_right"};
    for (const core::ScoreNumber& row : core::kScoreNumbers) fields->push_back(row.name);
    fields->insert(fields->end(), {"seed", "offset", "deterministic", "compute"});
    return fields;
  }();
  return *kFields;
}

/// Positions of the fields in the tuple Gradients. The gradients of the options follow these fields.
struct Gradient {
  static constexpr std::size_t kDout = 0, kDlse = 1, kDq = 2, kDk = 3, kDv = 4, kFirstOfOptions = 5;
};

std::vector<const char*> gradients_fields() {
  std::vector<const char*> fields = {"dout", "dlse", "dq", "dk", "dv"};
  for (const std::size_t i : kOptionsWithGradient) fields.push_back(core::kScoreTensors[i].gradient);
  return fields;
}

/// Returns the properties of a tensor option for the Python code.
nb::dict description_of(const core::ScoreTensor& row) {
  nb::dict entry;
  entry["name"] = row.name;
  entry["shape"] = row.is_of_scores() ? "scores" : "heads";
  entry["dtype"] = row.dtype ? nb::cast(dtype_name(*row.dtype)) : nb::none();
  entry["gradient"] = row.gradient != nullptr ? nb::cast(row.gradient) : nb::none();
  entry["flag"] = row.flag;
  entry["of_single_scores"] = has_only(row.mod, core::kTraitsOfSingleScores);
  return entry;
}

/// Returns the value of a field of the tuple Settings.
template <class T>
T setting(nb::handle settings, std::size_t field) {
  return value_of<T>(settings_fields()[field], item(settings, field));
}

MaybeArray maybe_array(nb::handle named_tuple, std::size_t field) {
  const nb::handle found = item(named_tuple, field);
  return found.is_none() ? MaybeArray() : MaybeArray(Array::view(found));
}

Varlen varlen_of(const Array& q, const Array& cu_seqlens_q, const MaybeArray& cu_seqlens_k, nb::handle settings) {
  if (!cu_seqlens_k) throw Error(ErrorCode::kInvalidArgument, "cu_seqlens_k: None, allowed an array like cu_seqlens_q");
  check_as_many(cu_seqlens_q, *cu_seqlens_k);
  return {.cu_seqlens_q = offsets_view("cu_seqlens_q", cu_seqlens_q, q.device),
          .cu_seqlens_k = offsets_view("cu_seqlens_k", *cu_seqlens_k, q.device),
          .num_sequences = cu_seqlens_q.shape[0] - 1,
          .max_seqlen_q = setting<std::int64_t>(settings, Setting::kMaxSeqlenQ),
          .max_seqlen_k = setting<std::int64_t>(settings, Setting::kMaxSeqlenK)};
}

/// Returns the view of the tensor of an option, or of its gradient. Error messages contain `name`.
Tensor view_of(const core::ScoreTensor& row, const char* name, const Array& array) {
  return row.is_of_scores() ? scores_view(name, array) : per_head_view(name, array);
}

/// Refuses tensors with different dtypes. Without this check, "auto" would choose the `reference` backend, which
/// supports all combinations of dtypes but is much slower.
void check_dtypes(const Array& q, const Array& k, const Array& v, nb::handle extras, const std::string& compute) {
  if (compute == "reference") return;
  const auto refuse = [&](const char* name, const Array& a, const std::string& allowed) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + ": dtype " + a.dtype + ", allowed " + allowed + " (any with compute='reference')");
  };
  if (k.dtype != q.dtype) refuse("k", k, q.dtype + " as q");
  if (v.dtype != q.dtype) refuse("v", v, q.dtype + " as q");
  if (q.dtype == "f64") return;
  for (std::size_t i = 0; i < kTensors; ++i) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    if (row.dtype) continue;  // the library itself checks tensors for which it requires one dtype
    const MaybeArray array = maybe_array(extras, i);
    const std::optional<DType> dtype = array ? core::find_dtype(array->dtype) : std::nullopt;
    if (dtype && core::is_float(*dtype) && !core::has_simd_loops(*dtype)) refuse(row.name, *array, "f32, f16, bf16");
  }
}

Views views_of(const Array& q, const Array& k, const Array& v, nb::handle o, nb::handle lse, Layout layout) {
  Views x = {heads_view("q", q, layout), heads_view("k", k, layout), heads_view("v", v, layout),
             heads_view("o", Array::view(o), layout), std::nullopt};
  if (!lse.is_none()) x.lse = rows_view("lse", Array::view(lse), layout);
  return x;
}

Options options_of(const Array& q, const Array& k, const Array& v, nb::handle extras, nb::handle settings) {
  Options options = options_without_extras(settings);
  Params& params = options.without_compute;
  if (const MaybeArray state = maybe_array(extras, Extra::kPhiloxState)) {
    params.philox_state = philox_state_view("philox_state", *state, q.device);
  }
  check_dtypes(q, k, v, extras, options.compute);
  for (std::size_t i = 0; i < kTensors; ++i) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    if (const MaybeArray array = maybe_array(extras, i)) params.*row.param = view_of(row, row.name, *array);
  }
  if (const MaybeArray cu_seqlens_q = maybe_array(extras, Extra::kCuSeqlensQ)) {
    params.varlen = varlen_of(q, *cu_seqlens_q, maybe_array(extras, Extra::kCuSeqlensK), settings);
  }
  return options;
}

Gradients gradients_of(nb::handle tuple, Layout layout) {
  Gradients g;
  g.dout = heads_view("dout", Array::view(item(tuple, Gradient::kDout)), layout);
  g.dq = heads_view("dq", Array::view(item(tuple, Gradient::kDq)), layout);
  g.dk = heads_view("dk", Array::view(item(tuple, Gradient::kDk)), layout);
  g.dv = heads_view("dv", Array::view(item(tuple, Gradient::kDv)), layout);
  if (const MaybeArray dlse = maybe_array(tuple, Gradient::kDlse)) g.dlse = rows_view("dlse", *dlse, layout);
  std::size_t field = Gradient::kFirstOfOptions;
  for (const std::size_t i : kOptionsWithGradient) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    if (const MaybeArray array = maybe_array(tuple, field++)) g.of_options[i] = view_of(row, row.gradient, *array);
  }
  return g;
}

nb::tuple names(const std::vector<const char*>& fields) {
  nb::list list;
  for (const char* name : fields) list.append(name);
  return nb::tuple(list);
}

}  // namespace

Call::Call(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle tuple,
           nb::handle extras, nb::handle settings) {
  const Array q = Array::view(q_in), k = Array::view(k_in), v = Array::view(v_in);
  const Layout layout = layout_of_call(settings);
  x = views_of(q, k, v, o_in, lse_in, layout);
  if (!tuple.is_none()) gradients = gradients_of(tuple, layout);
  options = options_of(q, k, v, extras, settings);
}

Params Options::params() const {
  Params params = without_compute;
  params.compute = compute;
  return params;
}

ForwardCall Call::forward(Stream stream) const {
  return {.q = x.q, .k = x.k, .v = x.v, .o = x.o, .lse = x.lse, .params = params(), .stream = stream};
}

BackwardCall Call::backward(Stream stream) const {
  const Gradients& g = gradients.value();
  BackwardCall call = {.q = x.q,
                       .k = x.k,
                       .v = x.v,
                       .o = x.o,
                       .lse = x.lse.value(),
                       .dout = g.dout,
                       .dlse = g.dlse,
                       .dq = g.dq,
                       .dk = g.dk,
                       .dv = g.dv,
                       .params = params(),
                       .stream = stream};
  for (const std::size_t i : kOptionsWithGradient) call.*core::kScoreTensors[i].passed_gradient = g.of_options[i];
  return call;
}

void Call::check_dtypes_of_results() const {
  if (options.compute == "reference" || !gradients) return;
  for (const auto& [name, tensor] : {std::pair{"o", &x.o}, {"dout", &gradients->dout}}) {
    if (tensor->dtype == x.q.dtype) continue;
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": dtype " + dtype_name(tensor->dtype) + ", allowed " +
                                                 dtype_name(x.q.dtype) + " as q (any with compute='reference')");
  }
}

void run_forward(const Call& call, Stream stream) {
  const nb::gil_scoped_release release;
  attend::forward(call.forward(stream));
}

void run_backward(const Call& call, Stream stream) {
  call.check_dtypes_of_results();
  const nb::gil_scoped_release release;
  attend::backward(call.backward(stream));
}

Options options_without_extras(nb::handle settings) {
  Options options;
  options.compute = setting<std::string>(settings, Setting::kCompute);
  Params& params = options.without_compute;
  if (!item(settings, Setting::kScale).is_none()) params.scale = setting<double>(settings, Setting::kScale);
  params.causal = setting<bool>(settings, Setting::kCausal);
  params.window_left = setting<std::int64_t>(settings, Setting::kWindowLeft);
  params.window_right = setting<std::int64_t>(settings, Setting::kWindowRight);
  for (std::size_t i = 0; i < kNumbers; ++i) {
    params.*core::kScoreNumbers[i].param = setting<double>(settings, Setting::kFirstNumber + i);
  }
  // Frameworks have no unsigned 64-bit integers, so signed integers pass the bits.
  params.seed = static_cast<std::uint64_t>(setting<std::int64_t>(settings, Setting::kSeed));
  params.offset = static_cast<std::uint64_t>(setting<std::int64_t>(settings, Setting::kOffset));
  params.deterministic = setting<bool>(settings, Setting::kDeterministic);
  return options;
}

Layout layout_of_call(nb::handle settings) {
  return layout_of(setting<std::string>(settings, Setting::kLayout));
}

void check_lengths(nb::handle settings) {
  std::ignore = setting<std::int64_t>(settings, Setting::kMaxSeqlenQ);
  std::ignore = setting<std::int64_t>(settings, Setting::kMaxSeqlenK);
}

std::string in_pythons_words(std::string message) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"window_left: ", "window: left "},
                                                            {"window_right: ", "window: right "},
                                                            {"varlen.", ""},
                                                            {"params.", ""},
                                                            {"a CPU backend (--compute cpu)", "tensors on the CPU"}};
  for (const auto& [from, to] : kNames) {
    const std::size_t at = message.find(from);
    if (at != std::string::npos) message.replace(at, std::string_view(from).size(), to);
  }
  return message;
}

void add_names(nb::module_& m) {
  m.attr("EXTRAS_FIELDS") = names(extras_fields());
  m.attr("SETTINGS_FIELDS") = names(settings_fields());
  m.attr("GRADIENTS_FIELDS") = names(gradients_fields());
  nb::list rows;
  for (const core::ScoreTensor& row : core::kScoreTensors) rows.append(description_of(row));
  m.attr("TENSOR_OPTIONS") = nb::tuple(rows);
}

}  // namespace attend::python
