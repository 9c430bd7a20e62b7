#include "plain_settings.hpp"

#include <bit>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace attend::python {
namespace {

struct Known {
  std::array<nb::object, std::tuple_size_v<PlainOptions>> options;
  std::shared_ptr<const PlainSettings> settings;
};

/// The GIL guards it.
std::vector<std::unique_ptr<const Known>>& all_known() {
  static auto* all = new std::vector<std::unique_ptr<const Known>>();  // outlives the interpreter
  return *all;
}

/// Takes the place of the oldest where there are many: who computes another scale for each call reads each anew.
void remember(std::unique_ptr<const Known> known) {
  constexpr std::size_t kMost = 32;
  static std::size_t oldest = 0;
  if (all_known().size() < kMost) {
    all_known().push_back(std::move(known));
  } else {
    all_known()[oldest].swap(known);  // the former goes when all is in order: Python may run then
    oldest = (oldest + 1) % kMost;
  }
}

/// A number's object is often another at each call.
bool is_same(nb::handle a, nb::handle b) {
  if (a.is(b)) return true;
  if (Py_TYPE(a.ptr()) != &PyFloat_Type || Py_TYPE(b.ptr()) != &PyFloat_Type) return false;
  return std::bit_cast<std::int64_t>(PyFloat_AsDouble(a.ptr())) ==
         std::bit_cast<std::int64_t>(PyFloat_AsDouble(b.ptr()));
}

bool has_options(const Known& known, const PlainOptions& options) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (!is_same(known.options[i], options[i])) return false;
  }
  return true;
}

}  // namespace

PlainSettings PlainSettings::read(nb::handle tuple) {
  return {nb::borrow(tuple), options_without_extras(tuple), layout_of_call(tuple)};
}

Params PlainSettings::params() const {
  Params params = options.params;
  params.compute = options.compute;
  return params;
}

std::shared_ptr<const PlainSettings> settings_of(const PlainOptions& options, nb::handle make) {
  for (const auto& known : all_known()) {
    if (has_options(*known, options)) return known->settings;
  }
  const auto& [layout, causal, scale, dropout_p, deterministic, compute] = options;
  const nb::object tuple = make(layout, causal, scale, dropout_p, deterministic, compute);
  if (tuple.is_none()) return nullptr;
  auto known = std::make_unique<Known>();
  for (std::size_t i = 0; i < options.size(); ++i) known->options[i] = nb::borrow(options[i]);
  known->settings = std::make_shared<const PlainSettings>(PlainSettings::read(tuple));
  const auto settings = known->settings;
  remember(std::move(known));
  return settings;
}

std::shared_ptr<const PlainSettings> known_or_read(nb::handle tuple) {
  for (const auto& known : all_known()) {
    if (known->settings->tuple.is(tuple)) return known->settings;
  }
  return std::make_shared<const PlainSettings>(PlainSettings::read(tuple));
}

}  // namespace attend::python
