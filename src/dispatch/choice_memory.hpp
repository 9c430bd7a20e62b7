// Remembers the choices of "auto". A model repeats the same calls in every step, and for a repeated call "auto" need
// not query every backend. In a small model these queries would take a noticeable time: between two calls, other work
// evicts their code from the processor's caches.
#pragma once

#include <array>
#include <cstdint>

#include "core/backend.hpp"
#include "core/score_options.hpp"

namespace attend::dispatch {

/// All properties of a complete problem that determine the choice among GPU backends, as a list of numbers. For each
/// address, the key contains only the alignment. If a problem is a part of a larger one (Problem::part), its choice is
/// not remembered.
class ProblemKey {
 public:
  ProblemKey() = default;  // makes an empty key
  explicit ProblemKey(const core::Problem& p);
  [[nodiscard]] bool operator==(const ProblemKey& other) const;
  [[nodiscard]] std::uint64_t hash() const;

 private:
  static constexpr std::size_t kNumbersOfTensor = 9, kMostOthers = 28 + core::CustomScore::kMostCaptured;
  static constexpr std::size_t kMostTensors =
      13 + 2 * core::kScoreTensors.size() + 2 * core::CustomScore::kMostCaptured;

  void add(std::int64_t number) { numbers_.at(count_++) = number; }
  void add(const Tensor& t);
  void add(const std::optional<Tensor>& t);

  std::size_t count_ = 0;
  // Only the first count_ numbers are set.
  std::array<std::int64_t, kNumbersOfTensor * kMostTensors + kMostOthers> numbers_;
};

/// Returns the backend that the calling thread has chosen for problems with this key. Returns null if it has not chosen
/// one, or if another key has replaced this one.
[[nodiscard]] const core::Backend* remembered_choice(const ProblemKey& key);
void remember_choice(const ProblemKey& key, const core::Backend& backend);

}  // namespace attend::dispatch
