#include "support/covering_array.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

namespace attend::test {
namespace {

struct Pair {
  int first_factor, first_value, second_factor, second_value;  // always first_factor < second_factor
};

/// The compatible pairs of values that no case contains yet.
class Pairs {
 public:
  Pairs(const std::vector<int>& num_values, const Compatible& compatible) : compatible_(compatible) {
    for (const int count : num_values) {
      first_.push_back(total_);
      total_ += count;
    }
    open_.assign(static_cast<std::size_t>(total_) * static_cast<std::size_t>(total_), false);
    for (int f = 0; f < static_cast<int>(num_values.size()); ++f) {
      for (int g = f + 1; g < static_cast<int>(num_values.size()); ++g) {
        for (int a = 0; a < num_values[f]; ++a) {
          for (int b = 0; b < num_values[g]; ++b) {
            if (!compatible(f, a, g, b)) continue;
            open_[index(f, a, g, b)] = true;
            order_.push_back({f, a, g, b});
          }
        }
      }
    }
  }

  [[nodiscard]] bool open(int f, int a, int g, int b) const {
    return f < g ? open_[index(f, a, g, b)] : open_[index(g, b, f, a)];
  }
  [[nodiscard]] bool fits(int f, int a, int g, int b) const {
    return f < g ? compatible_(f, a, g, b) : compatible_(g, b, f, a);
  }
  void close(const Pair& p) { open_[index(p.first_factor, p.first_value, p.second_factor, p.second_value)] = false; }

  void close(const Choice& c) {
    for (int f = 0; f < static_cast<int>(c.size()); ++f) {
      for (int g = f + 1; g < static_cast<int>(c.size()); ++g) close(Pair{f, c[f], g, c[g]});
    }
  }

  [[nodiscard]] std::vector<Pair> remaining() const {
    std::vector<Pair> rest;
    for (const Pair& p : order_) {
      if (open(p.first_factor, p.first_value, p.second_factor, p.second_value)) rest.push_back(p);
    }
    return rest;
  }

 private:
  [[nodiscard]] std::size_t index(int f, int a, int g, int b) const {
    return static_cast<std::size_t>(first_[f] + a) * static_cast<std::size_t>(total_) +
           static_cast<std::size_t>(first_[g] + b);
  }

  const Compatible& compatible_;
  std::vector<int> first_;
  int total_ = 0;
  std::vector<bool> open_;
  std::vector<Pair> order_;
};

constexpr int kUnset = -1;

/// Completes a partial choice. Visits the remaining factors in random order. Gives each factor the compatible value
/// that covers the most uncovered pairs. Returns nothing if some factor has no compatible value.
std::optional<Choice> complete(const std::vector<int>& num_values, const Pairs& pairs, Choice c,
                               std::mt19937_64& random) {
  std::vector<int> order(num_values.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const int f : order) {
    if (c[f] != kUnset) continue;
    int best_gain = -1;
    // Random start, so that ties are broken evenly.
    const int shift = static_cast<int>(random() % static_cast<std::uint64_t>(num_values[f]));
    for (int n = 0; n < num_values[f]; ++n) {
      const int value = (n + shift) % num_values[f];
      int gain = 0;
      for (int g = 0; g < static_cast<int>(c.size()) && gain >= 0; ++g) {
        if (c[g] == kUnset || g == f) continue;
        gain = pairs.fits(f, value, g, c[g]) ? gain + (pairs.open(f, value, g, c[g]) ? 1 : 0) : -1;
      }
      if (gain > best_gain) {
        best_gain = gain;
        c[f] = value;
      }
    }
    if (best_gain < 0) return std::nullopt;
  }
  return c;
}

}  // namespace

std::vector<Choice> covering_array(const std::vector<int>& num_values, const Compatible& compatible,
                                   std::uint64_t seed) {
  constexpr int kAttempts = 20;  // completions tried per case; the completion that covers the most pairs is kept
  std::mt19937_64 random(seed);
  Pairs pairs(num_values, compatible);
  std::vector<Choice> cases;
  for (std::vector<Pair> rest = pairs.remaining(); !rest.empty(); rest = pairs.remaining()) {
    std::optional<Choice> best;
    std::size_t best_gain = 0;
    const Pair start = rest[random() % rest.size()];
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      Choice c(num_values.size(), kUnset);
      c[start.first_factor] = start.first_value;
      c[start.second_factor] = start.second_value;
      const std::optional<Choice> candidate = complete(num_values, pairs, c, random);
      if (!candidate) continue;
      std::size_t gain = 0;
      for (int f = 0; f < static_cast<int>(c.size()); ++f) {
        for (int g = f + 1; g < static_cast<int>(c.size()); ++g) {
          gain += pairs.open(f, (*candidate)[f], g, (*candidate)[g]) ? 1 : 0;
        }
      }
      if (!best || gain > best_gain) {
        best = candidate;
        best_gain = gain;
      }
    }
    // Marks the pair as done even if no case can contain it. uncovered_pairs() reports such a pair.
    pairs.close(start);
    if (best) {
      pairs.close(*best);
      cases.push_back(*best);
    }
  }
  return cases;
}

int uncovered_pairs(const std::vector<int>& num_values, const Compatible& compatible,
                    const std::vector<Choice>& cases) {
  Pairs pairs(num_values, compatible);
  for (const Choice& c : cases) pairs.close(c);
  return static_cast<int>(pairs.remaining().size());
}

}  // namespace attend::test
