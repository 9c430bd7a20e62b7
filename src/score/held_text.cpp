#include "score/held_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "expr/far_loads.hpp"
#include "expr/print.hpp"

namespace attend::score {
namespace {

constexpr const char* kMembers = R"(  static constexpr bool kHolds = true, kHoldsAll = {};
  static constexpr int kHeldFrom = {}, kHeldUntil = {};
  struct Held {{
{}  }};
  struct HeldTensors : Tensors {{
    Held held;
    template <int kNumber, int kLoad, class... Subscripts>
    __device__ __forceinline__ auto load(Subscripts... subscripts) const {{
{}      return Tensors::template load<kNumber, kLoad>(subscripts...);
    }}
  }};
  static __device__ __forceinline__ Held hold(const ScorePoint<float>& at, const CapturedTensor* captured) {{
    Held held;
    ScoreHeldCode::evaluate(at, Tensors{{captured}}{});
    return held;
  }}
  static __device__ __forceinline__ float held_value(const ScorePoint<float>& at, const CapturedTensor* captured,
                                                     const Held& held) {{
    float value;
    ScoreValueCode::evaluate(at, HeldTensors{{{{captured}}, held}}, value);
    return value;
  }}
)";

constexpr const char* kNoMembers = R"(  static constexpr bool kHolds = false, kHoldsAll = false;
  static constexpr int kHeldFrom = 0, kHeldUntil = 0;
  struct Held {};
  static __device__ __forceinline__ Held hold(const ScorePoint<float>&, const CapturedTensor*) { return {}; }
  static __device__ __forceinline__ float held_value(const ScorePoint<float>& at, const CapturedTensor* captured,
                                                     const Held&) {
    return value(at, captured);
  }
)";

const char* type_of(expr::Type type) {
  return type == expr::Type::kBool ? "bool" : type == expr::Type::kInt ? "int" : "float";
}

}  // namespace

std::int64_t as_int(std::int64_t distance) {
  return std::clamp<std::int64_t>(distance, -std::numeric_limits<std::int32_t>::max(),
                                  std::numeric_limits<std::int32_t>::max());
}

HeldText HeldText::of(const expr::Graph& graph, expr::Id result) {
  const expr::FarLoads far = expr::far_loads_of(graph, result);
  // If there are loads that cannot be held, no element is held, because those loads need the registers.
  if (far.loads.empty() || !far.are_all) return {"", kNoMembers};
  std::string fields, cases, results;
  for (std::size_t n = 0; n < far.loads.size(); ++n) {
    fields += fmt::format("    {} h{};\n", type_of(graph.type(far.loads[n])), n);
    cases += fmt::format("      if constexpr (kLoad == {}) return held.h{};\n      else\n", far.loads[n], n);
    results += fmt::format(", held.h{}", n);
  }
  return {expr::print_struct(graph, "ScoreHeldCode", far.loads),
          fmt::format(kMembers, far.are_all, as_int(far.ends.from), as_int(far.ends.until), fields, cases, results)};
}

}  // namespace attend::score
