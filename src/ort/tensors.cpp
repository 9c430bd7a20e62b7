// Writes the outputs of a node other than Y: the joined keys and values, and the matrix of scores.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/elements.hpp"
#include "cpu/parallel.hpp"
#include "ort/node.hpp"

namespace attend::ort {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

void copy_rows(const ConstTensor& from, const Tensor& to, std::int64_t first_row) {
  const std::int64_t element = dtype_bytes(from.dtype);
  const bool is_dense = from.stride[2] == from.shape[3];
  const std::int64_t pieces = is_dense ? 1 : from.shape[2];
  const auto bytes = static_cast<std::size_t>((is_dense ? from.shape[2] : 1) * from.shape[3] * element);
  if (bytes == 0) return;
  cpu::parallel_for(from.shape[0] * from.shape[1], cpu::max_threads(), [&](std::int64_t task) {
    const std::int64_t b = task / from.shape[1];
    const std::int64_t h = task % from.shape[1];
    for (std::int64_t i = 0; i < pieces; ++i) {
      const std::int64_t source = b * from.stride[0] + h * from.stride[1] + i * from.stride[2];
      const std::int64_t target = b * to.stride[0] + h * to.stride[1] + (first_row + i) * to.stride[2];
      std::memcpy(static_cast<char*>(to.data) + target * element,
                  static_cast<const char*>(from.data) + source * element, bytes);
    }
  });
}

/// Computes one row of scores: those of sequence b, head h and row i.
class ScoreRow {
 public:
  ScoreRow(const Node& node, const ConstTensor& keys) : node_(node), keys_(keys) {
    scale_ = node.params.scale.value_or(1 / std::sqrt(static_cast<double>(node.q.shape[3])));
    values_.resize(static_cast<std::size_t>(node.total));
  }

  const std::vector<double>& compute(std::int64_t b, std::int64_t h, std::int64_t i) {
    multiply(b, h, i);
    if (node_.qk_mode == 0) return values_;
    const double softcap = node_.params.softcap;
    if (softcap > 0) {
      for (double& s : values_) s = softcap * std::tanh(s / softcap);
    }
    if (node_.qk_mode == 1) return values_;
    hide(b, h, i);
    if (node_.qk_mode == 3) normalise();
    return values_;
  }

 private:
  void multiply(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t group = node_.q.shape[1] / keys_.shape[1];
    const ConstTensor& q = node_.q;
    const std::int64_t row = b * q.stride[0] + h * q.stride[1] + i * q.stride[2];
    for (std::int64_t j = 0; j < node_.total; ++j) {
      const std::int64_t key = b * keys_.stride[0] + h / group * keys_.stride[1] + j * keys_.stride[2];
      double sum = 0;
      for (std::int64_t d = 0; d < q.shape[3]; ++d) {
        sum += core::load(q.data, q.dtype, row + d) * core::load(keys_.data, keys_.dtype, key + d);
      }
      values_[static_cast<std::size_t>(j)] = scale_ * sum;
    }
  }

  void hide(std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto sequence = static_cast<std::size_t>(b);
    const std::int64_t at = i + node_.offsets[sequence];
    for (std::int64_t j = 0; j < node_.total; ++j) {
      bool is_seen = j < node_.lengths[sequence];
      is_seen = is_seen && (node_.left < 0 || j >= at - node_.left) && (node_.right < 0 || j <= at + node_.right);
      double& s = values_[static_cast<std::size_t>(j)];
      if (node_.mask) {
        const double bias = mask_at(b, h, i, j);
        s += bias;
        is_seen = is_seen && bias != kHidden;
      }
      if (!is_seen) s = kHidden;
    }
  }

  [[nodiscard]] double mask_at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const ConstTensor& mask = *node_.mask;
    if (j >= mask.shape[3]) return kHidden;
    const std::int64_t at = (mask.shape[0] > 1 ? b * mask.stride[0] : 0) +
                            (mask.shape[1] > 1 ? h * mask.stride[1] : 0) +
                            (mask.shape[2] > 1 ? i * mask.stride[2] : 0) + j;
    const double value = core::load(mask.data, mask.dtype, at);
    if (mask.dtype != DType::kBool) return value;
    return value != 0 ? 0 : kHidden;
  }

  void normalise() {
    const double top = values_.empty() ? kHidden : *std::max_element(values_.begin(), values_.end());
    double sum = 0;
    for (double& s : values_) sum += s = top == kHidden ? 0 : std::exp(s - top);
    if (sum == 0) return;
    for (double& s : values_) s /= sum;
  }

  const Node& node_;
  const ConstTensor& keys_;
  double scale_;
  std::vector<double> values_;
};

}  // namespace

void join(const std::optional<ConstTensor>& past, const ConstTensor& added, const Tensor& present) {
  if (past) copy_rows(*past, present, 0);
  copy_rows(added, present, past ? past->shape[2] : 0);
}

void write_scores(const Node& node, const ConstTensor& keys, void* scores) {
  ScoreRow row(node, keys);
  std::int64_t at = 0;
  for (std::int64_t b = 0; b < node.q.shape[0]; ++b) {
    for (std::int64_t h = 0; h < node.q.shape[1]; ++h) {
      for (std::int64_t i = 0; i < node.q.shape[2]; ++i) {
        for (const double s : row.compute(b, h, i)) core::store(scores, node.q.dtype, at++, s);
      }
    }
  }
}

}  // namespace attend::ort
