#include "read_settings.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch_api.hpp"

namespace attend::python {
namespace {

/// The values of an option with which its settings are kept. They are immutable, and identity or equal bits tell them
/// apart.
enum class Kept : std::uint8_t {
  kFlag,          ///< True or False
  kNumberOrNone,  ///< a float or None
  kText,          ///< a str
  kDefault,       ///< its default alone
};

struct Option {
  const char* name;
  Kept kept;
};

// The keyword arguments of attend.attention but return_lse, in their order.
constexpr Option kOptions[] = {
    {"layout", Kept::kText},        {"causal", Kept::kFlag},          {"window", Kept::kDefault},
    {"scale", Kept::kNumberOrNone}, {"softcap", Kept::kDefault},      {"bias", Kept::kDefault},
    {"mask", Kept::kDefault},       {"alibi_slopes", Kept::kDefault}, {"dropout_p", Kept::kDefault},
    {"seed", Kept::kDefault},       {"offset", Kept::kDefault},       {"deterministic", Kept::kFlag},
    {"compute", Kept::kText}};
constexpr std::size_t kNumOptions = std::size(kOptions);

using Values = std::array<nb::handle, kNumOptions>;

const std::array<nb::object, kNumOptions>* known_defaults = nullptr;  // outlives the interpreter

struct Known {
  nb::object options;  ///< holds the values
  Values values;
  std::shared_ptr<const ReadSettings> settings;
};

/// The GIL guards it.
std::vector<std::unique_ptr<const Known>>& all_known() {
  static auto* all = new std::vector<std::unique_ptr<const Known>>();  // outlives the interpreter
  return *all;
}

/// Replaces the oldest if there are many. A program that computes another scale for each call reads each anew.
void remember(std::unique_ptr<const Known> known) {
  constexpr std::size_t kMost = 32;
  static std::size_t oldest = 0;
  if (all_known().size() < kMost) {
    all_known().push_back(std::move(known));
  } else {
    all_known()[oldest].swap(known);  // the former is destroyed after this, since that may run Python
    oldest = (oldest + 1) % kMost;
  }
}

bool is_float(nb::handle x) {
  return Py_TYPE(x.ptr()) == &PyFloat_Type;
}

/// Two objects of one float are the same: a caller's float is often another object at each call.
bool is_same(nb::handle a, nb::handle b) {
  if (a.is(b)) return true;
  if (!is_float(a) || !is_float(b)) return false;
  return std::bit_cast<std::int64_t>(PyFloat_AsDouble(a.ptr())) ==
         std::bit_cast<std::int64_t>(PyFloat_AsDouble(b.ptr()));
}

bool are_same(const Values& a, const Values& b) {
  for (std::size_t i = 0; i < kNumOptions; ++i) {
    if (!is_same(a[i], b[i])) return false;
  }
  return true;
}

bool can_be_kept(std::size_t i, nb::handle value) {
  switch (kOptions[i].kept) {
    case Kept::kFlag:
      return value.ptr() == Py_True || value.ptr() == Py_False;
    case Kept::kNumberOrNone:
      return value.is_none() || is_float(value);
    case Kept::kText:
      return Py_TYPE(value.ptr()) == &PyUnicode_Type;
    case Kept::kDefault:
      return is_same(value, (*known_defaults)[i]);
  }
  return false;
}

ReadSettings read(nb::handle tuple) {
  return {nb::borrow(tuple), options_without_extras(tuple), layout_of_call(tuple)};
}

/// A Settings of the options; not valid if Python has to resolve them, or refuses the layout.
nb::object tuple_of(const Values& values) {
  for (std::size_t i = 0; i < kNumOptions; ++i) {
    if (!can_be_kept(i, values[i])) return {};
  }
  nb::dict given;
  for (std::size_t i = 0; i < kNumOptions; ++i) {
    if (kOptions[i].kept != Kept::kDefault) given[kOptions[i].name] = values[i];
  }
  const auto layout = nb::cast<std::string>(given["layout"]);
  if (layout != "bhsd" && layout != "bshd") return {};
  return torch->settings_type(**given);
}

}  // namespace

void learn_defaults(const nb::dict& defaults) {
  auto* learned = new std::array<nb::object, kNumOptions>();
  for (std::size_t i = 0; i < kNumOptions; ++i) (*learned)[i] = defaults[kOptions[i].name];
  known_defaults = learned;
}

std::shared_ptr<const ReadSettings> settings_of_options(const nb::tuple& options) {
  Values values;
  for (std::size_t i = 0; i < kNumOptions; ++i) {
    values[i] = NB_TUPLE_GET_ITEM(options.ptr(), static_cast<Py_ssize_t>(i));
  }
  for (const auto& known : all_known()) {
    if (are_same(known->values, values)) return known->settings;
  }
  const nb::object tuple = tuple_of(values);
  if (!tuple.is_valid()) return nullptr;
  auto settings = std::make_shared<const ReadSettings>(read(tuple));
  remember(std::make_unique<const Known>(Known{options, values, settings}));
  return settings;
}

std::shared_ptr<const ReadSettings> settings_of_tuple(nb::handle tuple) {
  for (const auto& known : all_known()) {
    if (known->settings->tuple.is(tuple)) return known->settings;
  }
  return std::make_shared<const ReadSettings>(read(tuple));
}

void add_options(nb::module_& m) {
  m.def("learn_defaults", &learn_defaults);
  nb::list list;
  for (const Option& option : kOptions) list.append(option.name);
  m.attr("OPTIONS") = nb::tuple(list);
}

}  // namespace attend::python
