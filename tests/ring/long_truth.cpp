#include "ring/long_truth.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

namespace attend::test {
namespace {

constexpr std::int64_t kRows = 64, kKeys = 64;  // rows and keys of one tile of the score matrix
constexpr std::int64_t kPatch = 4;              // rows and columns of the product whose sums stay in registers

/// Computes c += a b for row-major dense matrices. a is (kRows x depth), b is (depth x columns), and c is (kRows x
/// columns).
void multiply(const double* a, std::int64_t depth, const double* b, std::int64_t columns, double* c) {
  for (std::int64_t row = 0; row < kRows; row += kPatch) {
    for (std::int64_t col = 0; col < columns; col += kPatch) {
      double sums[kPatch][kPatch] = {};
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t i = 0; i < kPatch; ++i) {
          for (std::int64_t j = 0; j < kPatch; ++j) sums[i][j] += a[(row + i) * depth + k] * b[k * columns + col + j];
        }
      }
      for (std::int64_t i = 0; i < kPatch; ++i) {
        for (std::int64_t j = 0; j < kPatch; ++j) c[(row + i) * columns + col + j] += sums[i][j];
      }
    }
  }
}

double dot(const double* a, const double* b, std::int64_t length) {
  double sums[kPatch] = {};
  for (std::int64_t i = 0; i < length; i += kPatch) {
    for (std::int64_t j = 0; j < kPatch; ++j) sums[j] += a[i + j] * b[i + j];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

/// Calls task(n) for n = 0 ... count - 1 on all cores.
void on_all_cores(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  std::atomic<std::int64_t> next = 0;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (std::int64_t n = next++; n < count; n = next++) task(n);
    });
  }
}

}  // namespace

LongTruth::LongTruth(const Inputs& in)
    : heads_(in.options.heads_q),
      group_(in.options.heads_q / in.options.heads_k),
      seqlen_(in.options.seqlen_q),
      head_dim_(in.options.head_dim),
      scale_(1 / std::sqrt(static_cast<double>(head_dim_))),
      q_(in.q.values()),
      k_(in.k.values()),
      v_(in.v.values()),
      dout_(in.dout.values()),
      keys_by_column_(k_.size()),
      o_(q_.size()),
      sum_(static_cast<std::size_t>(heads_ * seqlen_)),
      delta_(sum_.size()) {
  const std::int64_t blocks = seqlen_ / kRows;  // kKeys equals kRows, so this is also the number of key tiles
  on_all_cores(heads_ / group_ * blocks, [&](std::int64_t n) {
    const double* from = k_.data() + n * kKeys * head_dim_;
    double* to = keys_by_column_.data() + n * kKeys * head_dim_;
    for (std::int64_t key = 0; key < kKeys; ++key) {
      for (std::int64_t col = 0; col < head_dim_; ++col) to[col * kKeys + key] = from[key * head_dim_ + col];
    }
  });
  on_all_cores(heads_ * blocks, [&](std::int64_t n) {  // starts with the rows that see the most keys
    compute_rows(n % heads_, (blocks - 1 - n / heads_) * kRows);
  });
}

void LongTruth::compute_rows(std::int64_t head, std::int64_t begin) {
  std::vector<double> s(kRows * kKeys), sums(kRows);
  const auto first = static_cast<std::size_t>((head * seqlen_ + begin) * head_dim_);
  for (std::int64_t key = 0; key <= begin; key += kKeys) {
    std::fill(s.begin(), s.end(), 0);
    multiply(q_.data() + first, head_dim_, row(keys_by_column_, head / group_, key), kKeys, s.data());
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kKeys; ++j) {
        double& p = s[static_cast<std::size_t>(i * kKeys + j)];
        p = key + j <= begin + i ? std::exp(p * scale_) : 0;
        sums[static_cast<std::size_t>(i)] += p;
      }
    }
    multiply(s.data(), kKeys, row(v_, head / group_, key), head_dim_, o_.data() + first);
  }
  for (std::int64_t i = 0; i < kRows; ++i) {
    const double sum = sums[static_cast<std::size_t>(i)];
    double* const o = o_.data() + first + i * head_dim_;
    for (std::int64_t col = 0; col < head_dim_; ++col) o[col] /= sum;
    const auto at = static_cast<std::size_t>(head * seqlen_ + begin + i);
    sum_[at] = sum;
    delta_[at] = dot(o, row(dout_, head, begin + i), head_dim_);
  }
}

double LongTruth::weight(std::int64_t head, std::int64_t query, std::int64_t key) const {
  const double score = dot(row(q_, head, query), row(k_, head / group_, key), head_dim_) * scale_;
  return std::exp(score) / sum_[static_cast<std::size_t>(head * seqlen_ + query)];
}

HeadRows LongTruth::dq(std::int64_t head, const std::vector<std::int64_t>& rows) const {
  HeadRows result = {head, rows, std::vector<double>(rows.size() * static_cast<std::size_t>(head_dim_)), {}};
  on_all_cores(static_cast<std::int64_t>(rows.size()), [&](std::int64_t n) {
    const std::int64_t query = rows[static_cast<std::size_t>(n)];
    double* const dq = result.first.data() + n * head_dim_;
    const double delta = delta_[static_cast<std::size_t>(head * seqlen_ + query)];
    for (std::int64_t key = 0; key <= query; ++key) {
      const double dp = dot(row(dout_, head, query), row(v_, head / group_, key), head_dim_);
      const double ds = weight(head, query, key) * (dp - delta) * scale_;
      const double* const k = row(k_, head / group_, key);
      for (std::int64_t col = 0; col < head_dim_; ++col) dq[col] += ds * k[col];
    }
  });
  return result;
}

HeadRows LongTruth::dk_dv(std::int64_t head, const std::vector<std::int64_t>& keys) const {
  const std::size_t count = keys.size() * static_cast<std::size_t>(head_dim_);
  HeadRows result = {head, keys, std::vector<double>(count), std::vector<double>(count)};
  on_all_cores(static_cast<std::int64_t>(keys.size()), [&](std::int64_t n) {
    const std::int64_t key = keys[static_cast<std::size_t>(n)];
    double* const dk = result.first.data() + n * head_dim_;
    double* const dv = result.second.data() + n * head_dim_;
    for (std::int64_t its_head = head * group_; its_head < (head + 1) * group_; ++its_head) {
      for (std::int64_t query = key; query < seqlen_; ++query) {
        const double p = weight(its_head, query, key);
        const double* const q = row(q_, its_head, query);
        const double* const dout = row(dout_, its_head, query);
        const double dp = dot(dout, row(v_, head, key), head_dim_);
        const double ds = p * (dp - delta_[static_cast<std::size_t>(its_head * seqlen_ + query)]) * scale_;
        for (std::int64_t col = 0; col < head_dim_; ++col) {
          dk[col] += ds * q[col];
          dv[col] += p * dout[col];
        }
      }
    }
  });
  return result;
}

}  // namespace attend::test
