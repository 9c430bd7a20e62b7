#include "core/lack.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "core/dtype_traits.hpp"
#include "core/problem.hpp"

namespace attend::core {
namespace {

struct TextOf {
  const Problem& problem;

  std::string operator()(const char* text) const { return text; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(DTypes dtypes) const {
    std::vector<const char*> names;
    for (const DType dtype : kDTypes) {
      if (dtypes.has(dtype)) names.push_back(dtype_name(dtype));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }
  std::string operator()(Range range) const { return fmt::format("{} to {}", range.first, range.last); }
  std::string operator()(std::span<const int> values) const { return fmt::format("{}", fmt::join(values, ", ")); }
  std::string operator()(const Tensor* t) const {
    return fmt::format("{} and strides ({}) elements", t->data, fmt::join(t->stride, ", "));
  }
  std::string operator()(std::string (*make)(const Problem&)) const { return make(problem); }
};

}  // namespace

std::string lack_text(const Lack& lack, const char* compute, const Problem& problem) {
  const TextOf text = {problem};
  const std::string value = std::visit(text, lack.value);
  const std::string found = lack.tensor == nullptr ? fmt::format("{}: {}", lack.argument, value)
                                                   : fmt::format("{}: {} {}", lack.tensor, lack.argument, value);
  return fmt::format("{}, compute '{}' allows {}", found, compute, std::visit(text, lack.allowed));
}

}  // namespace attend::core
