// A node Attention of ONNX, opset 23 to 25: checks its attributes and inputs and turns them into calls of attend.
//
// ONNX counts positions from the first row: row i has position i + offset, where offset is the number of keys before
// it. attend aligns masks to the bottom right. Keys that no row sees and rows that see no key are cut off, so no mask
// has to be materialised. python/attend/onnx/_operator.py does the same for NumPy.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attend/attention.hpp"
#include "attend/serving.hpp"

namespace attend::ort {

using Dimensions = std::vector<std::int64_t>;

/// Attributes of the node; empty: not set.
struct Attributes {
  std::int64_t is_causal = 0;
  std::int64_t left_window_size = -1;   ///< -1: open
  std::int64_t right_window_size = -1;  ///< -1: open
  std::int64_t qk_matmul_output_mode = 0;
  float softcap = 0;
  std::optional<float> scale = {};
  std::optional<std::int64_t> q_num_heads = {};
  std::optional<std::int64_t> kv_num_heads = {};
  std::optional<std::int64_t> softmax_precision = {};
};

/// A dense tensor in CPU memory, as passed by ONNX Runtime.
struct Input {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Dimensions shape = {};
};

struct Inputs {
  Input q, k, v;
  std::optional<Input> mask, past_key, past_value, nonpad_kv_seqlen;
};

/// The checked node. Views are (batch, heads, seqlen, head_dim).
struct Node {
  ConstTensor q, k, v;
  std::optional<ConstTensor> past_key, past_value;
  std::optional<ConstTensor> mask;     ///< (1 or batch, 1 or heads_q, 1 or seqlen_q, at most total); bool or float
  std::vector<std::int64_t> lengths;   ///< for each sequence, the number of valid keys
  std::vector<std::int64_t> offsets;   ///< for each sequence, the position of row 0
  std::int64_t total = 0;              ///< number of keys, including the past
  std::int64_t left = -1, right = -1;  ///< window; -1: open
  std::int64_t qk_mode = 0;
  bool has_three_dimensions = false;
  Params params = {};  ///< scale and softcap
};

/// Checks a node. @throws Error naming ONNX's argument, the value found and the allowed values
[[nodiscard]] Node read(const Attributes& attributes, const Inputs& inputs);

[[nodiscard]] Dimensions y_shape(const Node& node);
[[nodiscard]] Dimensions qk_shape(const Node& node);
/// Returns the shape of present_key (of k) or present_value (of v).
[[nodiscard]] Dimensions present_shape(const Node& node, const ConstTensor& of);

/// Returns Y as a view (batch, heads, seqlen, head_dim) of the output's memory.
[[nodiscard]] Tensor y_view(const Node& node, void* data);

/// The part of a call that attend computes, and its window, aligned to the bottom right; -1: open.
struct Band {
  std::int64_t rows;  ///< first rows; the others see no key
  std::int64_t keys;
  std::int64_t left;
  std::int64_t right;
};
[[nodiscard]] Band band(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t offset, std::int64_t left,
                        std::int64_t right);

/// One call for each run of neighbouring sequences of equal length.
struct Step {
  std::int64_t first, last;          ///< range of sequences
  std::int64_t rows;                 ///< rows to compute; the others are 0
  std::optional<Plan> plan;          ///< none if there is nothing to compute
  std::optional<DecodeCall> decode;  ///< replaces the plan for few rows and many keys
};

/// Checks the calls and chooses their kernels. `keys` and `values` include the past. Reads no tensor.
/// @throws Error as attend::plan does
[[nodiscard]] std::vector<Step> steps(const Node& node, const ConstTensor& keys, const ConstTensor& values,
                                      const Tensor& y);

/// Runs the steps, and sets rows that see no key to 0.
void run(const std::vector<Step>& steps, const Tensor& y);

/// Copies the past, if there is any, followed by the new keys or values, to dense memory of present_shape().
void join(const std::optional<ConstTensor>& past, const ConstTensor& added, const Tensor& present);

/// Writes the output qk_matmul_output: the matrix of scores at the stage of the node's mode, in the dtype of q. Uses
/// one thread and double precision, because the output is meant for inspection of a model.
void write_scores(const Node& node, const ConstTensor& keys, void* scores);

}  // namespace attend::ort
