// Describes an attention problem as data: shapes, options and inputs. A test can print the problem, run it on any
// backend and repeat it.
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "attend/attention.hpp"
#include "support/tensor_buffer.hpp"

namespace attend::test {

/// Distribution of the random inputs.
enum class Fill : std::uint8_t {
  kNormal,       // N(0, 1)
  kSmall,        // 0.01 N(0, 1)
  kLarge,        // 5 N(0, 1)
  kOneHot,       // each query is nearly a multiple of one key, so one attention probability is near 1
  kOutlier,      // N(0, 1), except one channel at 448 in q and 1880 in k, as seen in real models
  kNearUniform,  // all keys are nearly equal
};

/// States which dimensions of a bias or mask have full size. The other dimensions have size 1.
struct Broadcast {
  bool batch = true;
  bool heads = true;
  bool rows = true;
};

/// Maps a number to a broadcast, so that a covering array can list broadcasts. 0 means no tensor. 1 to 8 are the
/// combinations of full dimensions.
[[nodiscard]] constexpr std::optional<Broadcast> numbered_broadcast(int number) {
  if (number == 0) return std::nullopt;
  const int bits = number - 1;
  return Broadcast{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

enum class CaseLayout : std::uint8_t { kBHSD, kBSHD, kPadded, kFused, kSliced };

struct AttentionCase {
  DType dtype = DType::kF32;
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_k = 1;
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_k = 1;
  std::int64_t head_dim = 8;
  std::int64_t head_dim_v = 8;
  std::vector<std::int64_t> varlen_q =
      {};  // Lengths of the packed sequences. If not empty, seqlen_q, seqlen_k and batch are unused.
  std::vector<std::int64_t> varlen_k = {};

  std::optional<double> scale = {};
  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softcap = 0;
  bool alibi = false;
  bool alibi_per_sequence = false;
  std::optional<Broadcast> bias = {};
  bool dbias = true;  // whether backward computes the bias gradient
  std::optional<Broadcast> mask = {};
  bool sinks = false;
  bool sinks_per_sequence = false;
  bool dsinks = true;  // whether backward computes the gradient of the sinks
  double dropout_p = 0;
  bool dlse = false;
  bool broadcast_dout = false;  // if set, dout has stride 0 in batch, heads and rows
  bool deterministic = false;

  CaseLayout layout = CaseLayout::kBHSD;
  std::int64_t base_offset = 0;
  Fill fill = Fill::kNormal;
  std::uint64_t seed = 1;

  [[nodiscard]] bool packed() const { return !varlen_q.empty(); }
  [[nodiscard]] std::int64_t num_sequences() const {
    return packed() ? static_cast<std::int64_t>(varlen_q.size()) : batch;
  }
};

/// Describes the case in one line from which it can be rebuilt.
[[nodiscard]] std::string describe(const AttentionCase& c);

/// Prints a parameter for GoogleTest.
inline void PrintTo(const AttentionCase& c, std::ostream* out) {
  *out << describe(c);
}

/// The input tensors of one case.
struct Inputs {
  AttentionCase options;
  TensorBuffer q, k, v, dout;
  std::optional<TensorBuffer> bias, mask, slopes, dlse, sinks;
  std::shared_ptr<std::int32_t> cu_q, cu_k;     // num_sequences + 1 entries each, if the sequences are packed
  std::shared_ptr<std::uint64_t> philox_state;  // {seed, offset} in memory, set in half of the dropout cases

  /// Returns parameters that point into this object. Do not move the object while they are in use.
  [[nodiscard]] Params params(std::string_view compute) const;
};

/// The output tensors. Backward reads o and lse from the same object.
struct Outputs {
  TensorBuffer o, lse, dq, dk, dv;
  std::optional<TensorBuffer> dbias = {}, dsinks = {};
};

[[nodiscard]] Inputs make_inputs(const AttentionCase& c);

/// Returns the same inputs as dense float64 tensors, from which the reference result is computed.
[[nodiscard]] Inputs as_f64(const Inputs& in);

/// Returns outputs with the right shapes and the case's layout. Every byte is 0xFF, which is NaN.
[[nodiscard]] Outputs make_outputs(const Inputs& in);

/// Run the backend on its device and wait until the results are complete. A GPU needs tensors in memory that it can
/// access (see set_tensor_memory()). If the named backend has only a backward, run_forward lets `auto` choose a forward
/// that computes the o and lse that backward needs.
void run_forward(const Inputs& in, const Outputs& out, std::string_view compute, bool with_lse = true);
void run_backward(const Inputs& in, const Outputs& out, std::string_view compute);

/// Waits until all calls of the named backend have finished on its device.
void wait_for(std::string_view compute);

/// Returns whether the backend has a backward.
[[nodiscard]] bool has_backward(std::string_view compute);

/// Build the calls that run_forward and run_backward make. `in` and `out` own the tensors of these calls.
[[nodiscard]] ForwardCall forward_of(const Inputs& in, const Outputs& out, std::string_view compute = "auto");
[[nodiscard]] BackwardCall backward_of(const Inputs& in, const Outputs& out, std::string_view compute = "auto");

/// Calls make_outputs, run_forward and, if the backend has a backward, run_backward.
[[nodiscard]] Outputs run(const Inputs& in, std::string_view compute);

}  // namespace attend::test
