#include "check/input_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "cpu/reference.hpp"

namespace attend::cli {
namespace {

std::string counted(std::int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

void add_note(std::string& note, const char* name, const io::HostTensor& tensor, bool minus_infinity_masks) {
  const Tensor& t = tensor.view();
  std::int64_t nans = 0;
  std::int64_t infinities = 0;
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double x = core::load(t.data, t.dtype, i);
    if (std::isnan(x)) ++nans;
    if (std::isinf(x) && !(minus_infinity_masks && x < 0)) ++infinities;
  }
  if (nans + infinities == 0) return;
  note += (note.empty() ? "" : "; ") + std::string(name) + " has ";
  if (nans > 0) note += fmt::format("{} NaN", nans);
  if (infinities > 0) note += (nans > 0 ? " and " : "") + counted(infinities, "infinity", "infinities");
}

/// One row of O and its logsumexp.
struct Row {
  std::vector<double> o;
  double lse = 0;
};

/// Computes one row with the reference.
Row computed_row(core::Problem p, const core::Sequence& s, std::int64_t head, std::int64_t row) {
  Row result = {.o = std::vector<double>(static_cast<std::size_t>(p.head_dim_v))};
  const Shape same_for_all = {0, 0, 0, 1};  // because of zero strides, all rows are in the same memory
  p.o = {result.o.data(), DType::kF64, {}, p.o.shape, same_for_all};
  p.lse = Tensor{&result.lse, DType::kF64, {}, p.lse->shape, same_for_all};
  cpu::reference_forward_rows(p, s, head, row, row + 1);
  return result;
}

/// Returns whether the two rows are equal except for rounding errors that any backend can have.
bool near(const Row& computed, const Row& read, bool half) {
  double largest = 1e-6;
  double error = 0;
  for (std::size_t c = 0; c < computed.o.size(); ++c) {
    if (!std::isfinite(computed.o[c])) return true;  // a row with NaN or infinity cannot be compared
    largest = std::max(largest, std::abs(computed.o[c]));
    const double off = std::abs(computed.o[c] - read.o[c]);
    error = std::isfinite(off) ? std::max(error, off) : largest * 1e9;
  }
  const bool lse_near =
      computed.lse == read.lse || std::abs(computed.lse - read.lse) <= 2e-3 * (1 + std::abs(computed.lse));
  return lse_near && error <= (half ? 0.05 : 2e-3) * largest;
}

/// Returns the names of the flags of all given score modifications, for example ", --bias".
std::string score_flags() {
  std::string flags;
  for (const core::ScoreNumber& row : core::kScoreNumbers) flags += fmt::format(", --{}", row.name);
  for (const core::ScoreTensor& row : core::kScoreTensors) flags += fmt::format(", --{}", row.name);
  return flags;
}

}  // namespace

std::string nonfinite_note(const Workload& w) {
  std::string note;
  add_note(note, "Q", w.q, false);
  add_note(note, "K", w.k, false);
  add_note(note, "V", w.v, false);
  if (w.dout) add_note(note, "dO", *w.dout, false);
  for (std::size_t i = 0; i < w.score_tensors.size(); ++i) {
    const auto& tensor = w.score_tensors[i];
    if (tensor && tensor->dtype() != DType::kBool) add_note(note, core::kScoreTensors[i].name, *tensor, true);
  }
  return note;
}

void check_earlier_results(const Workload& w, const std::string& o_name) {
  const core::Problem p = w.forward_problem();
  const std::int64_t heads = p.num_sequences * p.num_heads_q;
  if (heads == 0 || p.max_seqlen_q == 0) return;
  const bool half = core::is_narrow(p.q.dtype) || core::is_narrow(p.o.dtype);
  // Checks three rows of the first, the middle and the last head. The rows are the first, the middle and the last one.
  // Under most masks the first row sees the fewest keys.
  for (const std::int64_t index : {std::int64_t{0}, heads / 2, heads - 1}) {
    const core::Sequence s = p.sequence(index / p.num_heads_q);
    const std::int64_t head = index % p.num_heads_q;
    for (const std::int64_t row : {std::int64_t{0}, s.seqlen_q / 2, s.seqlen_q - 1}) {
      Row read = {.o = {}, .lse = core::load(*p.lse, s.batch, head, row, 0)};
      for (std::int64_t c = 0; c < p.head_dim_v; ++c) read.o.push_back(core::load(p.o, s.batch, head, row, c));
      if (near(computed_row(p, s, head, row), read, half)) continue;
      throw Error(ErrorCode::kIo,
                  fmt::format("{}: row {} of batch {}, head {} does not match these options, allowed the O and "
                              "logsumexp of --mode forward with the same options (--causal, --window_left, --scale, "
                              "--seed{})",
                              o_name, row, s.batch, head, score_flags()));
    }
  }
}

}  // namespace attend::cli
