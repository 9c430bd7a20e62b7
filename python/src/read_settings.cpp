#include "read_settings.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_api.hpp"

namespace attend::python {
namespace {

/// Specifies which values of an option can be cached. All these values are immutable. Two values are equal if they are
/// the same object or floats with equal bits.
enum class Kept : std::uint8_t {
  kFlag,          ///< True or False
  kNumber,        ///< a float or an int
  kNumberOrNone,  ///< a float, an int or None
  kText,          ///< a str
  kDefault,       ///< only the default value of the option
};

constexpr std::pair<std::string_view, Kept> kKeptWithOthers[] = {{"layout", Kept::kText},
                                                                 {"causal", Kept::kFlag},
                                                                 {"scale", Kept::kNumberOrNone},
                                                                 {"deterministic", Kept::kFlag},
                                                                 {"compute", Kept::kText}};

/// Returns which values of an option can be cached. If the option is a number that modifies scores, every number can be
/// cached. The exception is dropout, because the Python code generates its seed.
Kept kept_of(std::string_view name) {
  for (const auto& [kept_name, kept] : kKeptWithOthers) {
    if (name == kept_name) return kept;
  }
  for (const core::ScoreNumber& row : core::kScoreNumbers) {
    if (name == row.name && !traits_of(row.mod).drops) return Kept::kNumber;
  }
  return Kept::kDefault;
}

struct Option {
  std::string name;
  Kept kept;
  nb::object default_value;
};

/// The keyword arguments of attend.attention in order, without return_lse. Never destroyed.
const std::vector<Option>* known_options = nullptr;

constexpr std::size_t kMostOptions = 24;
using Values = std::array<nb::handle, kMostOptions>;  // only the first known_options->size() elements are set

struct Known {
  nb::object options;  ///< the tuple that keeps the values alive
  Values values;
  std::shared_ptr<const ReadSettings> settings;
};

/// Returns the cache of settings. The GIL protects it.
std::vector<std::unique_ptr<const Known>>& all_known() {
  // Never destroyed, because calls may occur after the interpreter ends.
  static auto* all = new std::vector<std::unique_ptr<const Known>>();
  return *all;
}

/// Adds settings to the cache. If the cache is full, they replace the oldest settings. If a program computes a new
/// scale for each call, no call finds its settings in the cache.
void remember(std::unique_ptr<const Known> known) {
  constexpr std::size_t kMost = 32;
  static std::size_t oldest = 0;
  if (all_known().size() < kMost) {
    all_known().push_back(std::move(known));
  } else {
    all_known()[oldest].swap(known);  // the old entry is destroyed after the swap, because this may run Python code
    oldest = (oldest + 1) % kMost;
  }
}

bool is_float(nb::handle x) {
  return Py_TYPE(x.ptr()) == &PyFloat_Type;
}

bool is_number(nb::handle x) {
  return is_float(x) || Py_TYPE(x.ptr()) == &PyLong_Type;
}

/// Returns whether two values are equal. Floats are compared by their bits, because callers often create a new float
/// object for each call.
bool is_same(nb::handle a, nb::handle b) {
  if (a.is(b)) return true;
  if (!is_float(a) || !is_float(b)) return false;
  return std::bit_cast<std::int64_t>(PyFloat_AsDouble(a.ptr())) ==
         std::bit_cast<std::int64_t>(PyFloat_AsDouble(b.ptr()));
}

bool are_same(const Values& a, const Values& b) {
  for (std::size_t i = 0; i < known_options->size(); ++i) {
    if (!is_same(a[i], b[i])) return false;
  }
  return true;
}

bool can_be_kept(const Option& option, nb::handle value) {
  switch (option.kept) {
    case Kept::kFlag:
      return value.ptr() == Py_True || value.ptr() == Py_False;
    case Kept::kNumber:
      return is_number(value);
    case Kept::kNumberOrNone:
      return value.is_none() || is_number(value);
    case Kept::kText:
      return Py_TYPE(value.ptr()) == &PyUnicode_Type;
    case Kept::kDefault:
      return is_same(value, option.default_value);
  }
  return false;
}

ReadSettings read(nb::handle tuple) {
  return {nb::borrow(tuple), options_without_extras(tuple), layout_of_call(tuple)};
}

/// Converts the options to a Settings tuple. Returns an invalid object if the Python code must convert them, or if the
/// layout is unknown.
nb::object tuple_of(const Values& values) {
  const std::vector<Option>& options = *known_options;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (!can_be_kept(options[i], values[i])) return {};
  }
  nb::dict given;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (options[i].kept != Kept::kDefault) given[options[i].name.c_str()] = values[i];
  }
  const char* const layout = PyUnicode_AsUTF8AndSize(nb::object(given["layout"]).ptr(), nullptr);
  if (layout == nullptr) PyErr_Clear();  // the string is not valid text, so the Python code refuses it
  if (layout == nullptr || (layout != std::string_view("bhsd") && layout != std::string_view("bshd"))) return {};
  return torch->settings_type(**given);
}

}  // namespace

void learn_defaults(const nb::dict& defaults) {
  auto* options = new std::vector<Option>();
  for (const auto& [name, value] : defaults) {
    auto text = nb::cast<std::string>(name);
    const bool is_of_python = text == "return_lse" || text == "score" || text == "captures" || text == "block_mask";
    if (is_of_python) continue;  // the Python code handles these options
    const Kept kept = kept_of(text);
    options->push_back({std::move(text), kept, nb::borrow(value)});
  }
  if (options->size() > kMostOptions) throw Error(ErrorCode::kInternal, "attention: more options than kMostOptions");
  known_options = options;
}

std::shared_ptr<const ReadSettings> settings_of_options(const nb::tuple& options) {
  if (nb::len(options) != known_options->size()) {
    throw Error(ErrorCode::kInternal, "attention: options without one of its keyword arguments");
  }
  Values values;
  for (std::size_t i = 0; i < known_options->size(); ++i) {
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
}

}  // namespace attend::python
