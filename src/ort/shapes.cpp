#include "ort/shapes.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ort/status.hpp"

namespace attend::ort {
namespace {

std::atomic<Table> remembered = nullptr;

/// A dimension of a tensor. Either its value is known, or `value` is -1 and `name` is its name in the model, which may
/// be empty.
struct Dimension {
  std::int64_t value;
  std::string name;
  [[nodiscard]] bool is_known() const { return value >= 0 || !name.empty(); }
};

using Info = std::unique_ptr<ShapeInfo, void (*)(ShapeInfo*)>;

/// Returns the dimensions of an input, or an empty list if the model does not specify the rank. The context owns
/// `info`.
std::vector<Dimension> dimensions_of(Table table, const InferContext* context, std::size_t input) {
  ShapeInfo* info = nullptr;
  call<ShapeInferContext_GetInputTypeShape>(table, context, input, &info);
  std::size_t rank = 0;
  call<GetDimensionsCount>(table, info, &rank);
  std::vector<std::int64_t> values(rank);
  std::vector<const char*> names(rank);
  call<GetDimensions>(table, info, values.data(), rank);
  call<GetSymbolicDimensions>(table, info, names.data(), rank);
  std::vector<Dimension> result(rank);
  for (std::size_t d = 0; d < rank; ++d) result[d] = {values[d], names[d] == nullptr ? "" : names[d]};
  return result;
}

std::optional<std::int64_t> attribute_of(Table table, const InferContext* context, const char* name) {
  const Attribute* attribute = nullptr;
  std::int64_t value = 0;
  std::size_t written = 0;
  Status* status = ShapeInferContext_GetAttribute::of(table)(context, name, &attribute);
  if (status == nullptr) status = ReadOpAttr::of(table)(attribute, kAttributeInt, &value, sizeof value, &written);
  if (status == nullptr) return value;
  ReleaseStatus::of(table)(status);
  return {};
}

/// Returns the dimensions of Y, or an empty list if they are unknown.
std::vector<Dimension> y_dimensions(Table table, const InferContext* context) {
  const std::vector<Dimension> q = dimensions_of(table, context, 0);
  const std::vector<Dimension> v = dimensions_of(table, context, 2);
  std::vector<Dimension> y;
  if (q.size() == 4 && v.size() == 4) y = {q[0], q[1], q[2], v[3]};
  if (q.size() == 3 && v.size() == 3) {
    const auto heads = attribute_of(table, context, "q_num_heads");
    const auto heads_k = attribute_of(table, context, "kv_num_heads");
    if (!heads || !heads_k || *heads_k < 1 || v[2].value < 0) return {};
    y = {q[0], q[1], {v[2].value / *heads_k * *heads, ""}};
  }
  for (const Dimension& n : y) {
    if (!n.is_known()) return {};
  }
  return y;
}

void tell(Table table, const InferContext* context, const std::vector<Dimension>& shape) {
  ShapeInfo* input = nullptr;
  ShapeInfo* raw = nullptr;
  ElementType type = ElementType::kAny;
  std::vector<std::int64_t> values;
  std::vector<const char*> names;
  for (const Dimension& n : shape) {
    values.push_back(n.value);
    names.push_back(n.name.c_str());
  }
  call<ShapeInferContext_GetInputTypeShape>(table, context, std::size_t{0}, &input);
  call<GetTensorElementType>(table, input, &type);
  call<CreateTensorTypeAndShapeInfo>(table, &raw);
  const Info info(raw, ReleaseTensorTypeAndShapeInfo::of(table));
  call<SetTensorElementType>(table, raw, type);
  call<SetDimensions>(table, raw, values.data(), values.size());
  call<SetSymbolicDimensions>(table, raw, names.data(), names.size());
  call<ShapeInferContext_SetOutputTypeShape>(table, context, std::size_t{0}, raw);
}

}  // namespace

void remember(Table table) noexcept {
  remembered = table;
}

Status* infer_y(const CustomOp* /*op*/, InferContext* context) {
  Table table = remembered;
  Status* status = guarded(table, [&] {
    const std::vector<Dimension> shape = y_dimensions(table, context);
    if (!shape.empty()) tell(table, context, shape);
  });
  if (status != nullptr) ReleaseStatus::of(table)(status);  // a model without shapes can also run
  return nullptr;
}

}  // namespace attend::ort
