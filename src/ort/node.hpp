// Handles a node Attention of ONNX, opset 23 to 25. Checks its attributes and inputs, and turns them into calls of
// attend.
//
// ONNX counts positions from the first row. If there are `offset` keys before row 0, row i has position i + offset.
// attend instead aligns masks to the bottom right corner. To align the mask without storing it in memory, the library
// leaves out keys that no row sees and rows that see no key. python/attend/onnx/_operator.py does the same for NumPy.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attend/attention.hpp"
#include "attend/serving.hpp"

namespace attend::ort {

using Dimensions = std::vector<std::int64_t>;

/// Attributes of the node. An optional member without a value means that the attribute is not set.
struct Attributes {
  std::int64_t is_causal = 0;
  std::int64_t left_window_size = -1;   ///< -1 means no limit
  std::int64_t right_window_size = -1;  ///< -1 means no limit
  std::int64_t qk_matmul_output_mode = 0;
  float softcap = 0;
  std::optional<float> scale = {};
  std::optional<std::int64_t> q_num_heads = {};
  std::optional<std::int64_t> kv_num_heads = {};
  std::optional<std::int64_t> softmax_precision = {};
};

/// A dense tensor in CPU memory, as ONNX Runtime passes it.
struct Input {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Dimensions shape = {};
};

struct Inputs {
  Input q, k, v;
  std::optional<Input> mask, past_key, past_value, nonpad_kv_seqlen;
};

/// The checked node. All views have the dimensions (batch, heads, seqlen, head_dim).
struct Node {
  ConstTensor q, k, v;
  std::optional<ConstTensor> past_key, past_value;
  /// The mask, of bools or floats, with the shape (1 or batch, 1 or heads_q, 1 or seqlen_q, n). n is at most `total`.
  std::optional<ConstTensor> mask;
  std::vector<std::int64_t> lengths;   ///< for each sequence, the number of valid keys
  std::vector<std::int64_t> offsets;   ///< for each sequence, the position of row 0
  std::int64_t total = 0;              ///< number of keys, including those of the past
  std::int64_t left = -1, right = -1;  ///< sizes of the window; -1 means no limit
  std::int64_t qk_mode = 0;
  bool has_three_dimensions = false;
  Params params = {};  ///< only scale and softcap are set
};

/// Checks a node. @throws Error naming ONNX's argument, the value found and the allowed values.
[[nodiscard]] Node read(const Attributes& attributes, const Inputs& inputs);

[[nodiscard]] Dimensions y_shape(const Node& node);
[[nodiscard]] Dimensions qk_shape(const Node& node);
/// Returns the shape of present_key if `of` is k, and of present_value if it is v.
[[nodiscard]] Dimensions present_shape(const Node& node, const ConstTensor& of);

/// Returns a view (batch, heads, seqlen, head_dim) of the memory of output Y.
[[nodiscard]] Tensor y_view(const Node& node, void* data);

/// The rows and keys that attend computes. left and right are the window of these rows and keys, aligned to their
/// bottom right corner. -1 means no limit.
struct Band {
  std::int64_t rows;  ///< number of rows to compute, counted from row 0; the other rows see no key
  std::int64_t keys;
  std::int64_t left;
  std::int64_t right;
};
[[nodiscard]] Band band(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t offset, std::int64_t left,
                        std::int64_t right);

/// The computation for a range of consecutive sequences that have the same lengths.
struct Step {
  std::int64_t first, last;          ///< first and last sequence of the range
  std::int64_t rows;                 ///< number of rows to compute; the other rows of Y are 0
  std::optional<Plan> plan;          ///< unset if there is nothing to compute
  std::optional<DecodeCall> decode;  ///< set instead of the plan if there are few rows and many keys
};

/// Checks the calls and chooses their kernels. `keys` and `values` include those of the past. Reads no tensor data.
/// @throws Error naming the argument, as attend::plan does.
[[nodiscard]] std::vector<Step> steps(const Node& node, const ConstTensor& keys, const ConstTensor& values,
                                      const Tensor& y);

/// Runs the steps, and sets the rows that see no key to 0.
void run(const std::vector<Step>& steps, const Tensor& y);

/// Copies the past (if there is one) and then the new keys or values to dense memory of present_shape().
void join(const std::optional<ConstTensor>& past, const ConstTensor& added, const Tensor& present);

/// Writes the output qk_matmul_output, the matrix of scores in the dtype of q. The node's mode selects the stage of the
/// computation at which the scores are written. Uses one thread and float64. It may be slow, because this output is
/// meant for the inspection of a model.
void write_scores(const Node& node, const ConstTensor& keys, void* scores);

}  // namespace attend::ort
