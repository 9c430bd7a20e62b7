// The Attention operators that this library registers with ONNX Runtime, one for each dtype, for opset 23 and later. If
// a session has registered the library, these operators replace those of ONNX Runtime in the session's model.
#include "ort/operators.hpp"

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "attend/error.hpp"
#include "core/problem_checks.hpp"
#include "ort/api.hpp"
#include "ort/node.hpp"
#include "ort/shapes.hpp"
#include "ort/status.hpp"

namespace attend::ort {
namespace {

constexpr std::size_t kNumInputs = 7;  // inputs: Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen
constexpr std::size_t kMask = 3, kNonpad = 6;
constexpr std::size_t kNumOutputs = 4;  // outputs: Y, present_key, present_value, qk_matmul_output
constexpr int kFirstOpset = 23;

DType dtype_of(const char* name, ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return DType::kF32;
    case ElementType::kF16:
      return DType::kF16;
    case ElementType::kBF16:
      return DType::kBF16;
    case ElementType::kF64:
      return DType::kF64;
    case ElementType::kBool:
      return DType::kBool;
    case ElementType::kI64:
      return DType::kI64;
    default:
      core::refuse("{}: ONNX's element type {}, allowed bool, f32, f16, bf16, f64", name, static_cast<int>(type));
  }
}

/// A node of a session. ONNX Runtime may run the node on several threads at the same time.
struct Kernel {
  Table table;
  Attributes attributes;
};

/// Memory that ONNX Runtime allocates on the device of the tensor `beside`.
class Scratch {
 public:
  Scratch(Table table, const KernelContext* context, const Value* beside, std::size_t bytes) : table_(table) {
    const MemoryInfo* place = nullptr;
    call<GetTensorMemoryInfo>(table, beside, &place);
    call<KernelContext_GetAllocator>(table, context, place, &allocator_);
    if (Status* status = AllocatorAlloc::of(table)(allocator_, bytes, &data_)) {
      ReleaseAllocator::of(table)(allocator_);
      throw Failure{status};
    }
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (Status* status = AllocatorFree::of(table_)(allocator_, data_)) ReleaseStatus::of(table_)(status);
    ReleaseAllocator::of(table_)(allocator_);
  }
  [[nodiscard]] void* data() const noexcept { return data_; }

 private:
  Table table_;
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

/// The inputs and outputs of one run of a node.
class Run {
 public:
  Run(Table table, KernelContext* context) : table_(table), context_(context) {
    call<KernelContext_GetInputCount>(table, context, &num_inputs_);
    call<KernelContext_GetOutputCount>(table, context, &num_outputs_);
  }

  [[nodiscard]] const Value* value(std::size_t index) const {
    const Value* value = nullptr;
    if (index < num_inputs_) call<KernelContext_GetInput>(table_, context_, index, &value);
    return value;
  }

  /// Returns an input, or nothing if the node does not have it.
  [[nodiscard]] std::optional<Input> input(const char* name, std::size_t index) const {
    const Value* found = value(index);
    if (found == nullptr) return {};
    ShapeInfo* raw = nullptr;
    call<GetTensorTypeAndShape>(table_, found, &raw);
    const std::unique_ptr<ShapeInfo, void (*)(ShapeInfo*)> info(raw, ReleaseTensorTypeAndShapeInfo::of(table_));
    ElementType type = ElementType::kAny;
    std::size_t rank = 0;
    call<GetTensorElementType>(table_, raw, &type);
    call<GetDimensionsCount>(table_, raw, &rank);
    Input input = {.dtype = dtype_of(name, type), .shape = Dimensions(rank)};
    call<GetDimensions>(table_, raw, input.shape.data(), rank);
    void* data = nullptr;
    call<GetTensorMutableData>(table_, const_cast<Value*>(found), &data);  // the tensor is only read
    input.data = data;
    return input;
  }

  [[nodiscard]] Input required(const char* name, std::size_t index) const {
    std::optional<Input> found = input(name, index);
    if (!found) core::refuse("{}: missing, allowed a tensor", name);
    return *std::move(found);
  }

  /// Returns the memory of an output, or null if the node does not have it.
  [[nodiscard]] void* output(std::size_t index, const Dimensions& shape) const {
    if (index >= num_outputs_) return nullptr;
    Value* value = nullptr;
    call<KernelContext_GetOutput>(table_, context_, index, shape.data(), shape.size(), &value);
    if (value == nullptr) return nullptr;
    void* data = nullptr;
    call<GetTensorMutableData>(table_, value, &data);
    return data;
  }

  [[nodiscard]] Table table() const noexcept { return table_; }
  [[nodiscard]] const KernelContext* context() const noexcept { return context_; }

 private:
  Table table_;
  KernelContext* context_;
  std::size_t num_inputs_ = 0;
  std::size_t num_outputs_ = 0;
};

/// All keys, or all values. They are either the input itself, or memory that contains the past followed by the input.
class Joined {
 public:
  Joined(const Run& run, const Node& node, const std::optional<ConstTensor>& past, const ConstTensor& added,
         std::size_t output)
      : past_(past), added_(added), all_(added) {
    const Dimensions shape = present_shape(node, added);
    void* data = run.output(output, shape);
    if (data == nullptr && !past) return;
    const Shape joined = {shape[0], shape[1], shape[2], shape[3]};
    present_ = Tensor::bhsd(data, added.dtype, joined);
    if (data == nullptr) {
      const auto bytes = static_cast<std::size_t>(present_->numel() * dtype_bytes(added.dtype));
      present_->data = scratch_.emplace(run.table(), run.context(), run.value(0), bytes).data();
    }
    all_ = *present_;
  }

  [[nodiscard]] const ConstTensor& all() const noexcept { return all_; }

  void write() const {
    if (present_) join(past_, added_, *present_);
  }

 private:
  std::optional<ConstTensor> past_;
  ConstTensor added_;
  ConstTensor all_;
  std::optional<Tensor> present_;
  std::optional<Scratch> scratch_;
};

/// Runs a node. Checks all arguments before it writes the first output.
void compute(const Kernel& kernel, KernelContext* context) {
  const Run run(kernel.table, context);
  const Inputs inputs = {.q = run.required("Q", 0),
                         .k = run.required("K", 1),
                         .v = run.required("V", 2),
                         .mask = run.input("attn_mask", kMask),
                         .past_key = run.input("past_key", 4),
                         .past_value = run.input("past_value", 5),
                         .nonpad_kv_seqlen = run.input("nonpad_kv_seqlen", kNonpad)};
  const Node node = read(kernel.attributes, inputs);
  const Tensor y = y_view(node, run.output(0, y_shape(node)));
  const Joined keys(run, node, node.past_key, node.k, 1);
  const Joined values(run, node, node.past_value, node.v, 2);
  const std::vector<Step> calls = steps(node, keys.all(), values.all(), y);
  keys.write();
  values.write();
  attend::ort::run(calls, y);
  if (void* scores = run.output(3, qk_shape(node))) write_scores(node, keys.all(), scores);
}

/// Returns an integer attribute, or nothing if the node does not have it.
std::optional<std::int64_t> whole_number(Table table, const KernelInfo* info, const char* name) {
  std::int64_t value = 0;
  Status* status = KernelInfoGetAttribute_int64::of(table)(info, name, &value);
  if (status == nullptr) return value;
  ReleaseStatus::of(table)(status);
  return {};
}

std::optional<float> number(Table table, const KernelInfo* info, const char* name) {
  float value = 0;
  Status* status = KernelInfoGetAttribute_float::of(table)(info, name, &value);
  if (status == nullptr) return value;
  ReleaseStatus::of(table)(status);
  return {};
}

Status* create_node(const CustomOp* /*op*/, Table table, const KernelInfo* info, void** kernel) {
  return guarded(table, [&] {
    const auto of = [&](const char* name) { return whole_number(table, info, name); };
    const Attributes attributes = {.is_causal = of("is_causal").value_or(0),
                                   .left_window_size = of("left_window_size").value_or(-1),
                                   .right_window_size = of("right_window_size").value_or(-1),
                                   .qk_matmul_output_mode = of("qk_matmul_output_mode").value_or(0),
                                   .softcap = number(table, info, "softcap").value_or(0),
                                   .scale = number(table, info, "scale"),
                                   .q_num_heads = of("q_num_heads"),
                                   .kv_num_heads = of("kv_num_heads"),
                                   .softmax_precision = of("softmax_precision")};
    *kernel = std::make_unique<Kernel>(Kernel{table, attributes}).release();
  });
}

thread_local bool runs_a_node = false;

Status* compute_node(void* kernel, KernelContext* context) {
  const auto& node = *static_cast<const Kernel*>(kernel);
  runs_a_node = true;
  Status* status = guarded(node.table, [&] { compute(node, context); });
  runs_a_node = false;
  return status;
}

/// The operator for one dtype and one provider.
struct Operator : CustomOp {
  Operator(ElementType element, const char* provider_name) : dtype(element), provider_text(provider_name) {
    name = [](const CustomOp*) { return "Attention"; };
    provider = [](const CustomOp* op) { return static_cast<const Operator*>(op)->provider_text; };
    num_inputs = [](const CustomOp*) { return kNumInputs; };
    num_outputs = [](const CustomOp*) { return kNumOutputs; };
    input_type = [](const CustomOp* op, std::size_t index) {
      if (index == kMask) return ElementType::kAny;  // the mask may be bool or a float
      return index == kNonpad ? ElementType::kI64 : static_cast<const Operator*>(op)->dtype;
    };
    output_type = [](const CustomOp* op, std::size_t) { return static_cast<const Operator*>(op)->dtype; };
    input_presence = [](const CustomOp*, std::size_t i) {
      return i < kMask ? Presence::kRequired : Presence::kOptional;
    };
    output_presence = [](const CustomOp*, std::size_t i) { return i == 0 ? Presence::kRequired : Presence::kOptional; };
    input_memory = [](const CustomOp*, std::size_t) { return 0; };
    for (auto& count : variadic) count = [](const CustomOp*) { return 0; };
    create_kernel_v2 = create_node;
    compute_v2 = compute_node;
    infer_shapes = infer_y;
    destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    first_version = [](const CustomOp*) { return kFirstOpset; };
    last_version = [](const CustomOp*) { return 0x7fffffff; };
  }

  ElementType dtype;
  const char* provider_text;
};

/// Returns whether the version of ONNX Runtime is at least 1.24. Version 1.23, which supports only opset 23, crashes on
/// nodes with more inputs than its operator has.
bool is_new_enough(const char* version_text) {
  constexpr int kMajor = 1;
  constexpr int kMinor = 24;
  int major = 0;
  int minor = 0;
  return std::sscanf(version_text, "%d.%d", &major, &minor) == 2 &&
         (major > kMajor || (major == kMajor && minor >= kMinor));
}

/// Returns the domain of ONNX's operators, with the operators of this library. The object is never destroyed, because
/// sessions may exist until the process ends.
Domain* domain(Table table) {
  static const Operator operators[] = {{ElementType::kF32, "CPUExecutionProvider"},
                                       {ElementType::kF16, "CPUExecutionProvider"},
                                       {ElementType::kBF16, "CPUExecutionProvider"},
                                       {ElementType::kF64, "CPUExecutionProvider"}};
  static std::mutex mutex;
  static Domain* made = nullptr;
  const std::lock_guard lock(mutex);
  if (made == nullptr) {
    Domain* created = nullptr;
    call<CreateCustomOpDomain>(table, "", &created);
    for (const Operator& op : operators) call<CustomOpDomain_Add>(table, created, &op);
    made = created;
  }
  return made;
}

}  // namespace

bool is_running() {
  return runs_a_node;
}

}  // namespace attend::ort

/// Entry point that SessionOptions.register_custom_ops_library calls.
extern "C" __attribute__((visibility("default"))) attend::ort::Status* RegisterCustomOps(
    attend::ort::SessionOptions* options, const attend::ort::Base* base) {
  using namespace attend::ort;
  Table oldest = base->get_table(kOldest);
  Table table = base->get_table(kVersion);
  return guarded(oldest, [&] {
    const char* version = base->version_text();
    if (table == nullptr || !is_new_enough(version)) {
      throw attend::Error(attend::ErrorCode::kUnsupported,
                          fmt::format("ONNX Runtime: version {}, allowed 1.24 or later", version));
    }
    remember(table);
    call<AddCustomOpDomain>(table, options, domain(table));
  });
}
