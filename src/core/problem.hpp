// A checked attention problem: all defaults are resolved and all sizes are verified. Holds no memory of its own and
// does not depend on hardware.
//
// Only make_problem reads the user's arguments. The backends rely on the fields of a Problem.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "attend/attention.hpp"
#include "core/block_tiles.hpp"
#include "core/custom_score.hpp"
#include "core/part.hpp"
#include "kernels/attention/key_range.cuh"
#include "kernels/attention/key_source.cuh"
#include "kernels/attention/philox.cuh"

namespace attend::core {

constexpr std::int64_t kMaxHeadDim = 512;
constexpr std::int64_t kDescaleKeys = 128;  // number of keys that share a descale, if descales differ between keys
constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;  // limit of each dimension of a tensor

/// One sequence of the batch. In dense tensors, it is batch entry `batch`, and its rows start at 0. In packed tensors,
/// its rows start at q_begin and k_begin.
struct Sequence {
  std::int64_t index;    ///< from 0 to num_sequences - 1
  std::int64_t batch;    ///< index into the tensors' batch dimension
  std::int64_t q_begin;  ///< first row in q, o, lse, dq, dout
  std::int64_t k_begin;  ///< first row in k, v, dk, dv
  std::int64_t seqlen_q;
  std::int64_t seqlen_k;

  [[nodiscard]] KeySource keys() const { return {static_cast<std::uint32_t>(batch), k_begin, seqlen_k}; }
};

/// The rows of one head of one sequence, as a matrix of (rows, cols) elements. Rows are `row_stride` elements apart,
/// and columns are contiguous.
struct Matrix {
  void* data;
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t row_stride;
};

/// Returns an input as a Tensor. A Problem stores inputs as Tensors too, so that backends handle a single type.
/// Backends only read inputs.
[[nodiscard]] inline Tensor input_view(const ConstTensor& t) {
  return {const_cast<void*>(t.data), t.dtype, t.device, t.shape, t.stride};
}

/// Destination of the gradient of a captured tensor.
struct CapturedGradient {
  std::size_t capture;  ///< index into CustomScore::captured
  Tensor gradient;      ///< f32 or f64, with the extents of the capture
};

struct Problem {
  // Tensors as the caller passed them. But broadcast dimensions of alibi_slopes, bias, mask and sinks are expanded to
  // their full size, with stride 0.
  Tensor q, k, v, o;
  std::optional<Tensor> lse;           ///< (batch, num_heads_q, seqlen_q, 1); always present in backward
  std::optional<Tensor> alibi_slopes;  ///< (num_sequences, num_heads_q, 1, 1)
  std::optional<Tensor> bias;          ///< (batch, num_heads_q, seqlen_q, seqlen_k)
  std::optional<Tensor> mask;          ///< (batch, num_heads_q, seqlen_q, seqlen_k)
  std::optional<Tensor> sinks;         ///< (num_sequences, num_heads_q, 1, 1)
  /// Factors of 8-bit q, k and v, each f32 (num_sequences, num_heads_k, blocks, 1). The factors of q are those of the
  /// query heads that read a key head, and q has one block. k and v have blocks of kDescaleKeys keys.
  std::optional<Tensor> q_descale, k_descale, v_descale;
  std::optional<Varlen> varlen;

  // The fields below are used only by backward.
  bool is_backward = false;
  Tensor dout, dq, dk, dv;
  std::optional<Tensor> dlse;
  /// Gradient of the bias, not expanded; in a dimension of size 1, the gradient is a sum over that dimension.
  std::optional<Tensor> dbias;
  std::optional<Tensor> dsinks;  ///< not expanded
  std::vector<CapturedGradient> captured_gradients;

  std::int64_t num_sequences = 0;
  std::int64_t num_heads_q = 0;
  std::int64_t num_heads_k = 0;
  std::int64_t max_seqlen_q = 0;
  std::int64_t max_seqlen_k = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;

  double scale = 1.0;
  /// Cap of the score transform (kernels/attention/score_transform.cuh); 0 means no transform.
  double transform_cap = 0.0;
  std::int64_t window_left = kOpenWindow;
  std::int64_t window_right = kOpenWindow;  ///< 0 if causal
  double dropout_p = 0.0;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  /// If set, the address on the GPU of {seed, offset}, which override the fields above.
  const std::uint64_t* philox_state = nullptr;
  bool deterministic = false;
  const CustomScore* custom_score = nullptr;  ///< owned by the caller; must outlive the problem
  const BlockTiles* block_mask = nullptr;     ///< owned by the caller; must outlive the problem
  /// Memory passed by the caller; if it is empty, the backend allocates memory.
  WorkspaceView workspace;
  /// Set if the problem is a part of a larger one. Some backends do not support parts.
  std::optional<Part> part;

  [[nodiscard]] bool transforms_scores() const { return transform_cap != 0; }
  [[nodiscard]] std::int64_t heads_per_group() const { return num_heads_q / num_heads_k; }

  /// Returns the description of the part so that the caller can fill it in. Creates it if the problem was complete.
  [[nodiscard]] Part& as_part() { return part ? *part : part.emplace(); }

  // Return fields of the part. For a complete problem they return null or false.
  [[nodiscard]] const Placement* placement() const { return part && part->placement ? &*part->placement : nullptr; }
  [[nodiscard]] bool adds_to_outputs() const { return part && part->adds_to_outputs; }
  [[nodiscard]] const Tensor* delta() const { return part && part->delta ? &*part->delta : nullptr; }
  /// Returns the dtype to which o is rounded at the end: Part::result_dtype or the dtype of o.
  [[nodiscard]] DType result_dtype() const { return part ? part->result_dtype.value_or(o.dtype) : o.dtype; }

  [[nodiscard]] Sequence sequence(std::int64_t index) const {
    if (!varlen) return {index, index, 0, 0, max_seqlen_q, max_seqlen_k};
    const std::int32_t* q_at = varlen->cu_seqlens_q + index;
    const std::int32_t* k_at = varlen->cu_seqlens_k + index;
    return {index, 0, q_at[0], k_at[0], q_at[1] - q_at[0], k_at[1] - k_at[0]};
  }

  [[nodiscard]] WindowMask window(const Sequence& s) const {
    if (const Placement* at = placement()) return at->window(s.seqlen_k, window_left, window_right);
    return {s.seqlen_q, s.seqlen_k, window_left, window_right};
  }

  /// The window relative to the part's bottom right corner. A side that hides no key is open (kOpenWindow). The problem
  /// must have one sequence, every row must see a key, and every key must be seen.
  struct Window {
    std::int64_t left, right;
  };
  [[nodiscard]] Window own_window() const {
    const Placement* at = placement();
    if (at == nullptr) return {window_left, window_right};
    const WindowMask band = at->window(max_seqlen_k, window_left, window_right);
    // Distance between the diagonal of the placement and that of the part's bottom right corner.
    const std::int64_t moved = band.seqlen_k - band.seqlen_q - (max_seqlen_k - max_seqlen_q);
    Window own = {band.window_left < 0 ? kOpenWindow : band.window_left - moved,
                  band.window_right < 0 ? kOpenWindow : band.window_right + moved};
    if (own.left >= max_seqlen_k - 1) own.left = kOpenWindow;
    if (own.right >= max_seqlen_q - 1) own.right = kOpenWindow;
    return own;
  }

  /// Returns the signed distance between row i and key j along the sequence. ALiBi multiplies its magnitude by the
  /// slope.
  [[nodiscard]] std::int64_t distance(const Sequence& s, std::int64_t i, std::int64_t j) const {
    const Placement* at = placement();
    return at != nullptr ? at->distance(i, j) : i + s.seqlen_k - s.seqlen_q - j;
  }

  /// Returns how much distance() increases from one row to the next.
  [[nodiscard]] std::int64_t position_step() const {
    const Placement* at = placement();
    return at != nullptr ? at->step : 1;
  }

  /// Returns the tiles that the rows of a query head see.
  [[nodiscard]] HeadTiles seen_tiles(const Sequence& s, std::int64_t head) const { return {block_mask, s.index, head}; }

  /// Return the positions of a row and a key in the larger problem. The dropout pattern depends on them.
  [[nodiscard]] std::int64_t row_position(std::int64_t i) const {
    const Placement* at = placement();
    return at != nullptr ? at->row_begin + at->step * i : i;
  }
  [[nodiscard]] std::int64_t key_position(std::int64_t j) const {
    const Placement* at = placement();
    return at != nullptr ? at->key_begin + at->step * j : j;
  }

  [[nodiscard]] DropMask dropout(const Sequence& s, std::int64_t head) const {
    const Placement* at = placement();
    const std::int64_t index = s.index + (at != nullptr ? at->sequence_begin : 0);
    return DropMask::make(seed, offset, index * num_heads_q + head, dropout_p);
  }
};

/// A tensor of a problem with its name in the API.
struct NamedTensor {
  const char* name;
  const Tensor* tensor;
};

/// Lists q, k, v, o and, for a backward problem, dout, dq, dk and dv. Allocates no memory, because every call makes
/// such a list.
class NamedTensors {
 public:
  explicit NamedTensors(const Problem& p)
      : all_{{{"q", &p.q},
              {"k", &p.k},
              {"v", &p.v},
              {"o", &p.o},
              {"dout", &p.dout},
              {"dq", &p.dq},
              {"dk", &p.dk},
              {"dv", &p.dv}}},
        count_(p.is_backward ? all_.size() : 4) {}
  [[nodiscard]] const NamedTensor* begin() const { return all_.data(); }
  [[nodiscard]] const NamedTensor* end() const { return all_.data() + count_; }

 private:
  std::array<NamedTensor, 8> all_;
  std::size_t count_;
};

[[nodiscard]] inline TensorStrides strides_of(const Tensor& t) {
  return {t.stride[0], t.stride[1], t.stride[2]};
}

/// Returns the address of element (batch, head, row, 0).
[[nodiscard]] inline void* element(const Tensor& t, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return static_cast<char*>(t.data) + strides_of(t).offset(batch, head, row) * dtype_bytes(t.dtype);
}

/// Returns the address of element 0 of a key.
[[nodiscard]] inline void* element(const Tensor& t, const KeySource& keys, std::int64_t head, std::int64_t key) {
  return static_cast<char*>(t.data) +
         keys.offset(strides_of(t), static_cast<std::uint32_t>(head), key) * dtype_bytes(t.dtype);
}

/// Returns the rows of one sequence and query head in a tensor with query rows: q, o, dq, dout or lse.
[[nodiscard]] inline Matrix q_matrix(const Tensor& t, const Sequence& s, std::int64_t head) {
  return {element(t, s.batch, head, s.q_begin), t.dtype, s.seqlen_q, t.shape[3], t.stride[2]};
}

/// Returns the rows of one sequence and key head in k, v, dk or dv.
[[nodiscard]] inline Matrix k_matrix(const Tensor& t, const Sequence& s, std::int64_t head) {
  return {element(t, s.keys(), head, 0), t.dtype, s.seqlen_k, t.shape[3], t.stride[2]};
}

/// Lengths of the complete problem of a ring. A ring passes them, because q, k, v and the other tensors hold only one
/// rank's rows. bias and mask have the rank's rows and all keys, and cu_seqlens describe the complete problem.
struct WholeLengths {
  std::int64_t seqlen_q;  ///< number of rows; if sequences are packed, the number of all tokens
  std::int64_t seqlen_k;
};

/// Checks the arguments of attend::forward and resolves the defaults. Throws Error naming the first invalid argument.
/// If `whole` is given, the tensors hold one rank's rows, and the Problem is only a template from which the ring makes
/// the problems of its pieces. In the template, max_seqlen_q and max_seqlen_k are the lengths of the rank's tensors. If
/// sequences are packed, they are the lengths in varlen.
[[nodiscard]] Problem make_problem(const ForwardCall& call, const WholeLengths* whole = nullptr);

/// Checks the arguments of attend::backward and resolves the defaults.
[[nodiscard]] Problem make_problem(const BackwardCall& call, const WholeLengths* whole = nullptr);

/// For a problem on a CPU, reads cu_seqlens again from the caller's memory and checks the offsets. With dropout and a
/// non-null `philox_state`, also reads the seed and offset again.
void read_again(Problem& p, const std::uint64_t* philox_state);

// The next two functions call make_problem and have positional arguments.
[[nodiscard]] inline Problem make_forward_problem(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                                                  const Tensor& o, const Tensor* lse, const Params& params,
                                                  const WholeLengths* whole = nullptr) {
  return make_problem(forward_call(q, k, v, o, lse, params), whole);
}
[[nodiscard]] inline Problem make_backward_problem(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k,
                                                   const ConstTensor& v, const ConstTensor& o, const ConstTensor& lse,
                                                   const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                   const Params& params, const BackwardExtras& extras,
                                                   const WholeLengths* whole = nullptr) {
  return make_problem(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras), whole);
}

}  // namespace attend::core
