// Numbers the tasks of a problem. A task is a block of rows (or keys) of one head of one sequence. Each sequence has
// only as many tasks as its real length requires.
#pragma once

#include <algorithm>
#include <vector>

#include "core/problem.hpp"
#include "cpu/tiles.hpp"

namespace attend::cpu {

enum class BlocksOf { kRows, kKeys };

class WorkList {
 public:
  /// Divides each query head into blocks of `block` rows, or each key head into blocks of `block` keys.
  WorkList(const core::Problem& p, BlocksOf of, std::int64_t block)
      : p_(p), of_(of), block_(block), heads_(of == BlocksOf::kRows ? p.num_heads_q : p.num_heads_k) {
    if (!p.varlen) {
      size_ = p.num_sequences * heads_ * blocks_of(0);
      return;
    }
    begin_.reserve(static_cast<std::size_t>(p.num_sequences));
    for (std::int64_t index = 0; index < p.num_sequences; ++index) {
      begin_.push_back(size_);
      size_ += heads_ * blocks_of(index);
    }
  }

  [[nodiscard]] std::int64_t size() const { return size_; }

  struct Task {
    core::Sequence sequence;
    std::int64_t head;   ///< a query head or key head
    std::int64_t begin;  ///< rows or keys [begin, end)
    std::int64_t end;
  };

  /// Returns the task with this number, which must be less than size(). Tasks are ordered by sequence and head, so that
  /// K and V of a head stay in the second-level cache from one task to the next. Within a head, the blocks with the
  /// most work under a causal mask are first. If a long task were last, the other threads would be idle while it runs.
  [[nodiscard]] Task at(std::int64_t number) const {
    std::int64_t index = 0;
    if (begin_.empty()) {
      const std::int64_t of_sequence = heads_ * blocks_of(0);
      index = number / of_sequence;
      number %= of_sequence;
    } else {
      index = std::upper_bound(begin_.begin(), begin_.end(), number) - begin_.begin() - 1;
      number -= begin_[static_cast<std::size_t>(index)];
    }
    const std::int64_t blocks = blocks_of(index);
    const std::int64_t block = of_ == BlocksOf::kRows ? blocks - 1 - number % blocks : number % blocks;
    const std::int64_t begin = block * block_;
    const core::Sequence sequence = p_.sequence(index);
    return {sequence, number / blocks, begin, std::min(begin + block_, length_of(sequence))};
  }

 private:
  [[nodiscard]] std::int64_t length_of(const core::Sequence& s) const {
    return of_ == BlocksOf::kRows ? s.seqlen_q : s.seqlen_k;
  }
  [[nodiscard]] std::int64_t blocks_of(std::int64_t index) const {
    if (p_.num_sequences == 0) return 0;
    return ceil_div(length_of(p_.sequence(index)), block_);
  }

  const core::Problem& p_;
  BlocksOf of_;
  std::int64_t block_;
  std::int64_t heads_;
  std::int64_t size_ = 0;
  // Number of the first task of each sequence; empty if all sequences have the same number of tasks.
  std::vector<std::int64_t> begin_;
};

}  // namespace attend::cpu
