// Converts the named tuples of the Python front ends (attend/_serving.py) to the arguments of attend::decode,
// attend::append and attend::merge.
#include "serving.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "array.hpp"
#include "attend/serving.hpp"
#include "core/append_checks.hpp"
#include "core/append_problem.hpp"
#include "core/decode_problem.hpp"
#include "core/dtype_traits.hpp"
#include "core/merge_problem.hpp"
#include "serving_fields.hpp"
#include "values.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;
using MaybeArray = std::optional<Array>;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

QueryPositions query_positions_of(const std::string& name) {
  if (name == "last") return QueryPositions::kLast;
  if (name == "first") return QueryPositions::kFirst;
  if (name == "one") return QueryPositions::kOne;
  refuse(fmt::format("query_positions: '{}', allowed 'last', 'first', 'one'", name));
}

/// Reads the fields of the tuples Tensors and Numbers. The results are valid as long as the tuples exist.
class Fields {
 public:
  Fields(nb::handle tensors, nb::handle numbers) : tensors_(tensors), numbers_(numbers) {}

  [[nodiscard]] bool has(TensorField field) const { return !item(tensors_, field.position).is_none(); }
  [[nodiscard]] MaybeArray maybe(TensorField field) const {
    return has(field) ? MaybeArray(Array::view(item(tensors_, field.position))) : MaybeArray();
  }
  [[nodiscard]] Array array(TensorField field) const {
    if (!has(field)) refuse(fmt::format("{}: None, allowed an array", field.name));
    return Array::view(item(tensors_, field.position));
  }
  template <class T>
  [[nodiscard]] T number(NumberField field) const {
    return value_of<T>(field.name, item(numbers_, field.position));
  }
  [[nodiscard]] std::optional<double> scale() const {
    constexpr NumberField kScale = "scale";
    if (item(numbers_, kScale.position).is_none()) return std::nullopt;
    return number<double>(kScale);
  }
  [[nodiscard]] Layout layout() const { return dense_layout_of(number<std::string>("layout")); }
  /// Returns the layout of q or k. If the array with the name `offsets` is given, the rows are packed.
  [[nodiscard]] Layout layout_with(TensorField offsets) const { return has(offsets) ? Layout::kThd : layout(); }

 private:
  nb::handle tensors_;
  nb::handle numbers_;
};

/// The rows of q, or the new rows of k. If `offsets` is not null, the rows of all sequences are packed.
struct Rows {
  Tensor tensor;
  const std::int32_t* offsets = nullptr;
  std::int64_t num_sequences = 0;
  std::int64_t most = 0;  ///< upper bound of the number of rows per sequence, used if rows are packed

  [[nodiscard]] std::int64_t count() const { return tensor.shape[0] * tensor.shape[2]; }
  /// Returns the value of `Entries::batch` for an array with one entry per row.
  [[nodiscard]] std::int64_t batch() const { return offsets != nullptr ? -1 : num_sequences; }
};

Rows rows_of(const Fields& fields, TensorField field, TensorField offsets_field, NumberField most_field) {
  const Array array = fields.array(field);
  Rows rows;
  rows.tensor = heads_view(field.name, array, fields.layout_with(offsets_field));
  rows.most = fields.number<std::int64_t>(most_field);
  rows.num_sequences = rows.tensor.shape[0];
  if (const MaybeArray offsets = fields.maybe(offsets_field)) {
    rows.offsets = offsets_view(offsets_field.name, *offsets, rows.tensor.device);
    rows.num_sequences = offsets->shape[0] - 1;
  }
  return rows;
}

/// Returns the address of an array with one int32 for each sequence, or null if it is not given.
const std::int32_t* per_sequence(const Fields& fields, TensorField field, const char* name, const Rows& rows) {
  const MaybeArray array = fields.maybe(field);
  if (!array) return nullptr;
  const Entries allowed = {.dtype = "i32", .device = rows.tensor.device, .count = rows.num_sequences};
  return static_cast<const std::int32_t*>(entries_view(name, *array, allowed));
}

/// Returns the address of an array with one entry for each row, or null if it is not given.
const void* per_row(const Fields& fields, TensorField field, const Rows& rows, const char* dtype,
                    const char* or_dtype = nullptr) {
  const MaybeArray array = fields.maybe(field);
  if (!array) return nullptr;
  const Entries allowed = {
      .dtype = dtype, .device = rows.tensor.device, .count = rows.count(), .batch = rows.batch(), .or_dtype = or_dtype};
  return entries_view(field.name, *array, allowed);
}

/// Returns the scaling factors of a cache, or nothing if they are not given. The array has one factor, one per head,
/// one per sequence and head, or one per cache row.
std::optional<ConstTensor> maybe_descale(const Fields& fields, TensorField field) {
  const MaybeArray array = fields.maybe(field);
  if (!array) return std::nullopt;
  return descale_view(field.name, *array, fields.layout());
}

CacheIndex cache_of(const Fields& fields, const Rows& rows) {
  CacheIndex cache;
  cache.seqlens_k = per_sequence(fields, "seqlens_k", "seqlens_k", rows);
  cache.cache_batch_idx = per_sequence(fields, "cache_batch_idx", "cache_batch_idx", rows);
  cache.cache_leftpad = per_sequence(fields, "cache_leftpad", "cache_leftpad", rows);
  if (const MaybeArray table = fields.maybe("page_table")) {
    cache.page_table = page_table_view("page_table", *table, rows.tensor.device);
  }
  cache.k_descale = maybe_descale(fields, "k_descale");
  cache.v_descale = maybe_descale(fields, "v_descale");
  return cache;
}

std::optional<Tensor> maybe_heads(const Fields& fields, TensorField field, Layout layout) {
  const MaybeArray array = fields.maybe(field);
  if (!array) return std::nullopt;
  return heads_view(field.name, *array, layout);
}

std::optional<ConstTensor> maybe_table(const Fields& fields, TensorField field, int num_dims, const char* meaning) {
  const MaybeArray array = fields.maybe(field);
  if (!array) return std::nullopt;
  return table_view(field.name, *array, num_dims, meaning);
}

std::optional<ConstTensor> maybe_per_head(const Fields& fields, TensorField field) {
  const MaybeArray array = fields.maybe(field);
  if (!array) return std::nullopt;
  return per_head_view(field.name, *array);
}

/// Returns the view of a cache, or nothing if it is not given. The dtype name of 8-bit floats is torch's, so it is
/// replaced by the name in this library.
std::optional<Tensor> maybe_cache(const Fields& fields, TensorField field) {
  MaybeArray array = fields.maybe(field);
  if (!array) return std::nullopt;
  if (array->dtype == "float8_e4m3fn") array->dtype = dtype_name(DType::kF8E4M3);
  if (!core::find_dtype(array->dtype)) {
    refuse(fmt::format("{}: dtype {}, allowed f32, f16, bf16, float8_e4m3fn, i8", field.name, array->dtype));
  }
  return heads_view(field.name, *array, fields.layout());
}

Tensor k_cache_of(const Fields& fields) {
  if (const auto k_cache = maybe_cache(fields, "k_cache")) return *k_cache;
  refuse("k_cache: None, allowed an array");
}

DecodeParams decode_params_of(const Fields& fields, const Rows& q) {
  DecodeParams params;
  params.scale = fields.scale();
  params.causal = fields.number<bool>("causal");
  params.window_left = fields.number<std::int64_t>("window_left");
  params.window_right = fields.number<std::int64_t>("window_right");
  params.softcap = fields.number<double>("softcap");
  params.alibi_slopes = maybe_per_head(fields, "alibi_slopes");
  params.sinks = maybe_per_head(fields, "sinks");
  params.cu_seqlens_q = q.offsets;
  if (q.offsets != nullptr) params.num_sequences = q.num_sequences;
  params.max_seqlen_q = q.most;
  params.tree_mask = static_cast<const std::uint64_t*>(per_row(fields, "tree_mask", q, "u64", "i64"));
  params.lse_base2 = fields.number<bool>("lse_base2");
  return params;
}

/// Returns the decode call. The caller sets `params.compute`, because the caller owns that string.
DecodeCall decode_call_of(const Fields& fields, const Rows& q) {
  const Layout of_q = fields.layout_with("cu_seqlens_q");
  DecodeCall call;
  call.q = q.tensor;
  call.k_cache = k_cache_of(fields);
  if (const auto v_cache = maybe_cache(fields, "v_cache")) call.v_cache = *v_cache;
  call.o = heads_view("out", fields.array("out"), of_q);
  if (const MaybeArray lse = fields.maybe("lse")) call.lse = rows_view("lse", *lse, of_q);
  call.cache = cache_of(fields, q);
  call.params = decode_params_of(fields, q);
  return call;
}

std::optional<Rotary> rotary_of(const Fields& fields, const Rows& k) {
  constexpr const char* kMeaning = "(max_positions, rotary_dim / 2)";
  const MaybeArray cos = fields.maybe("rotary_cos");
  if (!cos) return std::nullopt;
  Rotary rotary;
  rotary.cos = table_view("rotary.cos", *cos, 2, kMeaning);
  rotary.sin = table_view("rotary.sin", fields.array("rotary_sin"), 2, kMeaning);
  rotary.interleaved = fields.number<bool>({"rotary_interleaved", "rotary.interleaved"});
  rotary.first_column = fields.number<std::int64_t>({"rotary_first_column", "rotary.first_column"});
  rotary.seqlens = per_sequence(fields, "rotary_seqlens", "rotary.seqlens", k);
  return rotary;
}

/// Returns an append call. The call is used by append, and by decode with new keys.
AppendCall append_call_of(const Fields& fields, const Rows& k) {
  AppendCall call;
  call.k = k.tensor;
  if (const auto v = maybe_heads(fields, "v", fields.layout_with("cu_seqlens_new"))) call.v = *v;
  call.k_cache = k_cache_of(fields);
  call.v_cache = maybe_cache(fields, "v_cache");
  call.cache = cache_of(fields, k);
  call.cu_seqlens_new = k.offsets;
  if (k.offsets != nullptr) call.num_sequences = k.num_sequences;
  call.max_seqlen_new = k.most;
  call.slot_mapping = static_cast<const std::int64_t*>(per_row(fields, "slot_mapping", k, "i64"));
  call.positions = static_cast<const std::int32_t*>(per_row(fields, "positions", k, "i32"));
  call.rotary = rotary_of(fields, k);
  call.query_positions = query_positions_of(fields.number<std::string>("query_positions"));
  call.q_norm = maybe_table(fields, "q_norm", 1, "(head_dim)");
  call.k_norm = maybe_table(fields, "k_norm", 1, "(head_dim)");
  call.norm_eps = fields.number<double>("norm_eps");
  return call;
}

void check_same_sequences(const Rows& k, const Rows& q) {
  if (k.num_sequences == q.num_sequences) return;
  refuse(fmt::format("{}: {} sequences, allowed as many as q has, {}", k.offsets != nullptr ? "cu_seqlens_new" : "k",
                     k.num_sequences, q.num_sequences));
}

Rows new_rows_of(const Fields& fields) {
  return rows_of(fields, "k", "cu_seqlens_new", "max_seqlen_new");
}

Rows query_rows_of(const Fields& fields) {
  return rows_of(fields, "q", "cu_seqlens_q", "max_seqlen_q");
}

/// Returns the append call that runs before decode, or nothing if the decode call gets no new keys.
std::optional<AppendCall> append_before(const Fields& fields, const Rows& q) {
  if (!fields.has("k")) return std::nullopt;
  const Rows k = new_rows_of(fields);
  check_same_sequences(k, q);
  return append_call_of(fields, k);
}

/// Checks shapes, strides, dtypes and numbers in the same way as decode. Reads no tensor memory. The device of
/// the arrays must be a GPU. The library reads the offsets of packed rows only if they are in CPU memory.
void check_decode(nb::handle tensors, nb::handle numbers) {
  const Fields fields(tensors, numbers);
  const Rows q = query_rows_of(fields);
  std::ignore = fields.number<std::string>("compute");
  const DecodeCall call = decode_call_of(fields, q);
  const core::DecodeProblem reads = core::make_decode_problem(call);
  const std::optional<AppendCall> append = append_before(fields, q);
  if (append) core::check_outputs_apart(reads, core::make_append_problem(*append, &call));
}

AppendCall whole_append_call_of(const Fields& fields) {
  const Rows k = new_rows_of(fields);
  AppendCall call = append_call_of(fields, k);
  if (!fields.has("q")) return call;
  const Rows q = query_rows_of(fields);
  check_same_sequences(k, q);
  call.q = q.tensor;
  call.q_out = heads_view("q_out", fields.array("out"), fields.layout_with("cu_seqlens_q"));
  call.cu_seqlens_q = q.offsets;
  call.max_seqlen_q = q.most;
  return call;
}

/// Checks the arguments of append in the same way as check_decode.
void check_append(nb::handle tensors, nb::handle numbers) {
  std::ignore = core::make_append_problem(whole_append_call_of({tensors, numbers}));
}

struct MergeCall {
  std::vector<PartialState> states;
  Tensor o;
  std::optional<Tensor> lse;
  MergeParams params;
};

/// Converts the arguments of merge. Each element of `states` is a tuple (o, lse). `layout_name` is "thd" if the rows
/// are packed.
MergeCall merge_call_of(nb::handle states, nb::handle o, nb::handle lse, nb::handle sinks,
                        const std::string& layout_name, nb::handle lse_base2) {
  const Layout layout = layout_of(layout_name);
  MergeCall call;
  for (const nb::handle state : states) {
    const std::string name = fmt::format("states[{}]", call.states.size());
    call.states.push_back({.o = heads_view((name + ".o").c_str(), Array::view(state[0]), layout),
                           .lse = rows_view((name + ".lse").c_str(), Array::view(state[1]), layout)});
  }
  call.o = heads_view("out", Array::view(o), layout);
  if (!lse.is_none()) call.lse = rows_view("lse", Array::view(lse), layout);
  if (!sinks.is_none()) call.params.sinks = per_head_view("sinks", Array::view(sinks));
  call.params.lse_base2 = value_of<bool>("lse_base2", lse_base2);
  return call;
}

void merge(nb::handle states, nb::handle o, nb::handle lse, nb::handle sinks, const std::string& layout,
           nb::handle lse_base2, std::uintptr_t stream) {
  const MergeCall call = merge_call_of(states, o, lse, sinks, layout, lse_base2);
  const nb::gil_scoped_release release;
  attend::merge(call.states, call.o, call.lse ? &*call.lse : nullptr, call.params, reinterpret_cast<Stream>(stream));
}

/// Checks the arguments of merge in the same way as check_decode.
void check_merge(nb::handle states, nb::handle o, nb::handle lse, nb::handle sinks, const std::string& layout,
                 nb::handle lse_base2) {
  const MergeCall call = merge_call_of(states, o, lse, sinks, layout, lse_base2);
  std::ignore = core::make_merge_problem(call.states, call.o, call.lse ? &*call.lse : nullptr, call.params);
}

nb::tuple words_of(std::string_view words) {
  return nb::tuple(nb::str(words.data(), words.size()).attr("split")());
}

}  // namespace

void decode(nb::handle tensors, nb::handle numbers, std::uintptr_t stream) {
  const Fields fields(tensors, numbers);
  const Rows q = query_rows_of(fields);
  const std::string compute = fields.number<std::string>("compute");
  DecodeCall call = decode_call_of(fields, q);
  call.params.compute = compute;
  call.stream = reinterpret_cast<Stream>(stream);
  std::optional<AppendCall> append = append_before(fields, q);
  if (append) append->stream = call.stream;
  const nb::gil_scoped_release release;
  append ? attend::decode(*append, call) : attend::decode(call);
}

void append(nb::handle tensors, nb::handle numbers, std::uintptr_t stream) {
  AppendCall call = whole_append_call_of({tensors, numbers});
  call.stream = reinterpret_cast<Stream>(stream);
  const nb::gil_scoped_release release;
  attend::append(call);
}

void add_serving(nb::module_& m) {
  m.attr("SERVING_TENSORS") = words_of(kTensorFields);
  m.attr("SERVING_NUMBERS") = words_of(kNumberFields);
  m.def("decode", &decode, "tensors"_a, "numbers"_a, "stream"_a);
  m.def("append", &append, "tensors"_a, "numbers"_a, "stream"_a);
  m.def("merge", &merge, "states"_a, "o"_a, "lse"_a.none(), "sinks"_a.none(), "layout"_a, "lse_base2"_a.none(),
        "stream"_a);
  m.def("check_decode", &check_decode, "tensors"_a, "numbers"_a);
  m.def("check_append", &check_append, "tensors"_a, "numbers"_a);
  m.def("check_merge", &check_merge, "states"_a, "o"_a, "lse"_a.none(), "sinks"_a.none(), "layout"_a,
        "lse_base2"_a.none());
}

}  // namespace attend::python
