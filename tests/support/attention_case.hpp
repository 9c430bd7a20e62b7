// One attention problem as data: shapes, options and inputs that a test can print, run on any backend and repeat.
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

/// What the random inputs look like.
enum class Fill : std::uint8_t {
  kNormal,       // N(0, 1)
  kSmall,        // 0.01 N(0, 1)
  kLarge,        // 5 N(0, 1)
  kOneHot,       // each query is close to a multiple of one key: attention of one entry near 1
  kOutlier,      // N(0, 1), with one channel at 448 in q and 1880 in k (seen in real models)
  kNearUniform,  // k nearly equal for all keys
};

/// Which dimensions of a bias or mask are full; the others have size 1.
struct Broadcast {
  bool batch = true;
  bool heads = true;
  bool rows = true;
};

/// For covering arrays: 0 is none, 1 to 8 are all that there are.
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
      {};  // lengths; not empty: packed sequences, and seqlen_q, seqlen_k, batch unused
  std::vector<std::int64_t> varlen_k = {};

  std::optional<double> scale = {};
  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softcap = 0;
  bool alibi = false;
  bool alibi_per_sequence = false;
  std::optional<Broadcast> bias = {};
  bool dbias = true;  // its gradient is asked for
  std::optional<Broadcast> mask = {};
  bool sinks = false;
  bool sinks_per_sequence = false;
  bool dsinks = true;  // their gradient is asked for
  double dropout_p = 0;
  bool dlse = false;
  bool broadcast_dout = false;  // dout with stride 0 in batch, heads and rows
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

/// One line that is enough to build the case again.
[[nodiscard]] std::string describe(const AttentionCase& c);

/// What GoogleTest prints for a parameter.
inline void PrintTo(const AttentionCase& c, std::ostream* out) {
  *out << describe(c);
}

/// The tensors that go in.
struct Inputs {
  AttentionCase options;
  TensorBuffer q, k, v, dout;
  std::optional<TensorBuffer> bias, mask, slopes, dlse, sinks;
  std::shared_ptr<std::int32_t> cu_q, cu_k;     // num_sequences + 1 entries each, where packed
  std::shared_ptr<std::uint64_t> philox_state;  // in half of the cases with dropout: in the place of numbers

  /// Parameters that point into this object, which must stay where it is while they are used.
  [[nodiscard]] Params params(std::string_view compute) const;
};

/// The tensors that come out. Backward reads o and lse of the same object.
struct Outputs {
  TensorBuffer o, lse, dq, dk, dv;
  std::optional<TensorBuffer> dbias = {}, dsinks = {};
};

[[nodiscard]] Inputs make_inputs(const AttentionCase& c);

/// The same numbers in dense float64 tensors: what the truth is computed from.
[[nodiscard]] Inputs as_f64(const Inputs& in);

/// Poisoned outputs of the right shapes, laid out as the case says.
[[nodiscard]] Outputs make_outputs(const Inputs& in);

/// The backend decides where: a GPU's calls are waited for, and need memory that it sees (set_tensor_memory). Where it
/// has no forward, auto's choice gives o and lse.
void run_forward(const Inputs& in, const Outputs& out, std::string_view compute, bool with_lse = true);
void run_backward(const Inputs& in, const Outputs& out, std::string_view compute);

/// Until the calls of a GPU's backend are done.
void wait_for(std::string_view compute);

/// Has the backend a backward?
[[nodiscard]] bool has_backward(std::string_view compute);

/// The calls of a problem, whose memory `in` and `out` own: run_forward's and run_backward's.
[[nodiscard]] ForwardCall forward_of(const Inputs& in, const Outputs& out, std::string_view compute = "auto");
[[nodiscard]] BackwardCall backward_of(const Inputs& in, const Outputs& out, std::string_view compute = "auto");

/// make_outputs, run_forward, and run_backward where there is one.
[[nodiscard]] Outputs run(const Inputs& in, std::string_view compute);

}  // namespace attend::test
