#include "serving_arguments.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "attend/error.hpp"
#include "exchange.hpp"
#include "tensor_views.hpp"
#include "torch_api.hpp"

namespace attend::python {
namespace {

using nb::dlpack::dltensor;

/// Describes where the value of a keyword argument is stored. The place is a member, a tensor field or a number field,
/// whichever of these three is set first.
struct Place {
  nb::handle ServingArguments::*member = nullptr;
  std::optional<std::size_t> tensor = {}, number = {};
};

constexpr std::pair<std::string_view, nb::handle ServingArguments::*> kMembers[] = {
    {"window", &ServingArguments::window},
    {"rotary", &ServingArguments::rotary},
    {"head_dim_v", &ServingArguments::head_dim_v},
    {"return_lse", &ServingArguments::return_lse}};

/// Returns the places in which the values of a call's keyword arguments are stored, in the order of the arguments. The
/// list is never destroyed.
std::vector<Place>& places_of(ServingCall call) {
  static auto* places = new std::array<std::vector<Place>, 2>();
  return (*places)[static_cast<std::size_t>(call)];
}

Place place_of(std::string_view name) {
  for (const auto& [member_name, member] : kMembers) {
    if (name == member_name) return {.member = member};
  }
  const Place place = {.tensor = find_word(name == "q_out" ? "out" : name, kTensorFields),
                       .number = find_word(name, kNumberFields)};
  if (place.tensor || place.number) return place;
  throw Error(ErrorCode::kInternal, std::string(name) + ": a keyword argument without a field");
}

void put(ServingArguments& x, const Place& place, nb::handle value) {
  if (place.member != nullptr) {
    x.*place.member = value;
  } else if (place.tensor) {
    x.tensors[*place.tensor] = value;
  } else {
    x.numbers[*place.number] = value;
  }
}

nb::handle item_of(nb::handle tuple, std::size_t at) {
  return NB_TUPLE_GET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(at));
}

bool is_whole(nb::handle x) {
  return Py_TYPE(x.ptr()) == &PyLong_Type;
}

bool is_number(nb::handle x) {
  return PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr());
}

bool is_text(nb::handle x, const char* text) {
  return Py_TYPE(x.ptr()) == &PyUnicode_Type && PyUnicode_CompareWithASCIIString(x.ptr(), text) == 0;
}

/// If `x` is a Python int from `least` to `most`, returns its value. Otherwise returns nothing.
std::optional<std::int64_t> whole_between(nb::handle x, std::int64_t least, std::int64_t most) {
  if (!is_whole(x)) return std::nullopt;
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
  if (overflow != 0 || value < least || value > most) return std::nullopt;
  return value;
}

bool place_rotary(ServingArguments& x) {
  if (x.rotary.is_none()) return true;
  if (!x.rotary.type().is(torch->rotary_type)) return false;
  // Positions of the fields of attend._serving.Rotary.
  enum : std::uint8_t { kCos, kSin, kInterleaved, kFirstColumn, kSeqlens };
  x.tensor("rotary_cos") = item_of(x.rotary, kCos);
  x.tensor("rotary_sin") = item_of(x.rotary, kSin);
  x.tensor("rotary_seqlens") = item_of(x.rotary, kSeqlens);
  x.number("rotary_interleaved") = item_of(x.rotary, kInterleaved);
  x.number("rotary_first_column") = item_of(x.rotary, kFirstColumn);
  return x.has("rotary_cos") && x.has("rotary_sin");
}

/// Returns whether all required arguments are given. Also returns false if an argument is given without another
/// argument that it requires.
bool is_complete(ServingCall call, ServingArguments& x) {
  const auto none_of = [&](std::initializer_list<TensorField> fields) {
    return std::ranges::none_of(fields, [&](TensorField field) { return x.has(field); });
  };
  const bool is_decode = call == ServingCall::kDecode;
  if (!(is_decode ? x.has("q") : x.has("k")) || !x.has("k_cache")) return false;
  if (!x.has("k")) {
    return x.rotary.is_none() && x.number("max_seqlen_new").is_none() && is_text(x.number("query_positions"), "last") &&
           none_of({"v", "cu_seqlens_new", "slot_mapping", "positions", "q_norm", "k_norm"});
  }
  if (is_decode || x.has("q")) return true;
  return x.number("max_seqlen_q").is_none() && is_text(x.number("query_positions"), "last") &&
         none_of({"out", "cu_seqlens_q", "q_norm"});
}

/// Reads a window that consists of two numbers. If a number is None, that side of the window is unlimited. Both sides
/// are unlimited by default.
bool resolve_window(ServingArguments& x) {
  if (!x.window.is_valid()) return true;
  // Copied to a tuple, because another thread may remove items from the list.
  if (Py_TYPE(x.window.ptr()) == &PyList_Type) {
    x.window_tuple = nb::steal(PyList_AsTuple(x.window.ptr()));
    if (!x.window_tuple.is_valid()) nb::raise_python_error();
    x.window = x.window_tuple;
  }
  if (Py_TYPE(x.window.ptr()) != &PyTuple_Type || nb::len(x.window) != 2) return false;
  const nb::handle left = item_of(x.window, 0), right = item_of(x.window, 1);
  if (!left.is_none()) x.number("window_left") = left;
  if (!right.is_none()) x.number("window_right") = right;
  return true;
}

/// The names of the fields that describe the rows of q or the new rows of k.
struct RowFields {
  TensorField rows, offsets;
  NumberField most;
};

constexpr RowFields kQueryRows = {"q", "cu_seqlens_q", "max_seqlen_q"};
constexpr RowFields kNewRows = {"k", "cu_seqlens_new", "max_seqlen_new"};

/// If the upper bound of rows per sequence is None, sets it. For packed rows it is the number of all rows, otherwise
/// the default.
bool resolve_most(ServingArguments& x, const RowFields& fields, nb::object& owner) {
  nb::handle& most = x.number(fields.most);
  if (!most.is_none()) return true;
  if (!x.has(fields.offsets)) {
    most = item_of(torch->default_numbers, fields.most.position);
    return true;
  }
  const dltensor rows = exchanged_tensor(x.tensor(fields.rows));
  if (rows.ndim != 3) return false;
  owner = nb::int_(rows.shape[0]);
  most = owner;
  return true;
}

/// Returns an int32 array with `count` entries in host memory. All entries are equal to `length`.
Array equal_lengths(std::int64_t count, std::int32_t length) {
  const auto bytes = static_cast<Py_ssize_t>(count * static_cast<std::int64_t>(sizeof(length)));
  Array array;
  array.owner = nb::steal(PyBytes_FromStringAndSize(nullptr, bytes));
  if (!array.owner.is_valid()) nb::raise_python_error();
  array.data = PyBytes_AsString(array.owner.ptr());
  std::fill_n(static_cast<std::int32_t*>(array.data), count, length);
  array.dtype = "i32";
  array.num_dims = 1;
  array.shape[0] = count;
  array.stride[0] = 1;
  return array;
}

/// If seqlens_k is a number, replaces it by an array in which every sequence has this length.
bool resolve_lengths(ServingArguments& x, const RowFields& fields) {
  nb::handle& given = x.tensor("seqlens_k");
  if (!is_whole(given)) return true;
  using Limits = std::numeric_limits<std::int32_t>;
  const std::optional<std::int64_t> length = whole_between(given, Limits::min(), Limits::max());
  const dltensor rows = exchanged_tensor(x.tensor(fields.rows));
  const bool is_packed = x.has(fields.offsets);
  const dltensor counted = is_packed ? exchanged_tensor(x.tensor(fields.offsets)) : rows;
  if (!length || counted.ndim < 1) return false;
  const std::int64_t count = is_packed ? std::max<std::int64_t>(counted.shape[0] - 1, 0) : counted.shape[0];
  if (is_on_gpu(rows)) {
    using namespace nb::literals;
    x.lengths_array = torch->new_full(x.tensor(fields.rows), nb::make_tuple(count), *length, "dtype"_a = torch->int32);
  } else {
    x.lengths_array = nb::cast(equal_lengths(count, static_cast<std::int32_t>(*length)));
  }
  given = x.lengths_array;
  return true;
}

/// Reads the layout. The layout must be "bhsd" or "bshd", even if the rows are packed.
bool resolve_layout(ServingArguments& x) {
  const bool is_bshd = is_text(x.number("layout"), "bshd");
  if (!is_bshd && !is_text(x.number("layout"), "bhsd")) return false;
  x.layout_q = x.has("cu_seqlens_q") ? Layout::kThd : is_bshd ? Layout::kBshd : Layout::kBhsd;
  return true;
}

/// Reads head_dim_v of decode. It is required if v_cache is not given.
bool resolve_head_dim_v(ServingArguments& x) {
  const dltensor keys = exchanged_tensor(x.tensor("k_cache"));
  if (keys.ndim != 4) return false;
  std::int64_t least = 1, most = keys.shape[3];
  if (x.has("v_cache")) {
    const dltensor values = exchanged_tensor(x.tensor("v_cache"));
    if (values.ndim != 4) return false;
    least = most = x.head_dim_of_values = values.shape[3];
    if (x.head_dim_v.is_none()) return true;
  }
  const std::optional<std::int64_t> given = whole_between(x.head_dim_v, least, most);
  x.head_dim_of_values = given.value_or(0);
  return given.has_value();
}

/// Returns whether a number is given for every field whose default is a float.
bool has_numbers(ServingArguments& x) {
  for (std::size_t i = 0; i < x.numbers.size(); ++i) {
    if (PyFloat_Check(item_of(torch->default_numbers, i).ptr()) && !is_number(x.numbers[i])) return false;
  }
  return true;
}

}  // namespace

void learn_serving_options(ServingCall call, const nb::dict& defaults) {
  std::vector<Place> places;
  for (const auto& [name, value] : defaults) places.push_back(place_of(nb::cast<std::string>(name)));
  places_of(call) = std::move(places);
}

std::vector<nb::handle> ServingArguments::given_tensors() const {
  std::vector<nb::handle> given;
  given.reserve(tensors.size());
  constexpr TensorField kLengths = "seqlens_k";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_none() && !(i == kLengths.position && is_whole(tensors[i]))) given.push_back(tensors[i]);
  }
  return given;
}

std::optional<ServingArguments> placed_arguments(ServingCall call, const nb::tuple& options,
                                                 std::initializer_list<PositionalArgument> others) {
  const std::vector<Place>& places = places_of(call);
  if (nb::len(options) != places.size()) {
    throw Error(ErrorCode::kInternal, "options: without one of the call's keyword arguments");
  }
  ServingArguments x;
  x.tensors.fill(Py_None);
  for (std::size_t i = 0; i < x.numbers.size(); ++i) x.numbers[i] = item_of(torch->default_numbers, i);
  for (std::size_t i = 0; i < places.size(); ++i) put(x, places[i], item_of(options, i));
  for (const auto& [field, value] : others) x.tensor(field) = value;
  if (!is_complete(call, x) || !place_rotary(x)) return std::nullopt;
  return x;
}

bool resolve(ServingCall call, ServingArguments& x) {
  const nb::handle scale = x.number("scale");
  if (!(scale.is_none() || is_number(scale)) || !has_numbers(x)) return false;
  if (!resolve_layout(x) || !resolve_window(x)) return false;
  if (!resolve_most(x, kQueryRows, x.most_q) || !resolve_most(x, kNewRows, x.most_new)) return false;
  if (call == ServingCall::kAppend) return resolve_lengths(x, kNewRows);
  return resolve_head_dim_v(x) && resolve_lengths(x, kQueryRows);
}

}  // namespace attend::python
