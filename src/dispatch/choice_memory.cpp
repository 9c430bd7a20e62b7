#include "dispatch/choice_memory.hpp"

#include <bit>
#include <cstring>
#include <functional>
#include <string_view>
#include <type_traits>

#include "core/problem_checks.hpp"

namespace attend::dispatch {
namespace {

using core::Backend;
using core::Problem;

constexpr std::uintptr_t kMostAlignment = 256;  // no kernel wants more of an address

struct Choice {
  ProblemKey key;
  const Backend* backend = nullptr;
};

using Choices = std::array<Choice, 32>;  // a key has one place, which a later one takes from it
static_assert(std::is_trivially_destructible_v<Choices>, "calls may go on while the process ends");

Choice& place_of(const ProblemKey& key) {
  thread_local Choices choices;
  return choices[key.hash() % choices.size()];
}

}  // namespace

ProblemKey::ProblemKey(const Problem& p) {
  // All members of a Problem, in their order: this does not compile until the key knows a new one.
  const auto& [q, k, v, o, lse, alibi_slopes, bias, mask, varlen, is_backward, dout, dq, dk, dv, dlse, dbias,
               num_sequences, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim, head_dim_v, scale,
               transform_cap, window_left, window_right, dropout_p, seed, offset, philox_state, deterministic,
               custom_score, workspace, part] = p;
  // The key leaves out seed and offset, on which no choice depends, and the part: for parts no choice is remembered.
  for (const Tensor* t : {&q, &k, &v, &o}) add(*t);
  if (is_backward) {
    for (const Tensor* t : {&dout, &dq, &dk, &dv}) add(*t);
  }
  for (const std::optional<Tensor>* t : {&lse, &dlse}) add(*t);
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    add(p.*row.tensor);
    if (row.gradient != nullptr) add(p.*row.gradient_tensor);
  }
  add(is_backward ? 1 : 0);
  add(varlen ? varlen->num_sequences + 1 : 0);
  for (const std::int64_t number : {num_sequences, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim,
                                    head_dim_v, window_left, window_right}) {
    add(number);
  }
  add(std::bit_cast<std::int64_t>(scale));
  for (const core::ScoreNumber& row : core::kScoreNumbers) add(std::bit_cast<std::int64_t>(p.*row.value));
  add(philox_state != nullptr ? 1 : 0);
  add(deterministic ? 1 : 0);
  if (custom_score != nullptr) {
    if (custom_score->captured.size() > core::CustomScore::kMostCaptured) {
      core::refuse("score function: {} captured tensors, allowed at most {}", custom_score->captured.size(),
                   core::CustomScore::kMostCaptured);
    }
    for (const std::int32_t part_of_digest : custom_score->digest) add(part_of_digest);
    for (const Tensor& t : custom_score->captured) add(t);
  }
  add(workspace.data != nullptr ? static_cast<std::int64_t>(workspace.bytes) : -1);
}

void ProblemKey::add(const Tensor& t) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data) % kMostAlignment);
  const auto type = static_cast<std::int64_t>(t.dtype), device = static_cast<std::int64_t>(t.device.type);
  add((std::int64_t{t.device.index} << 32) + (device << 24) + (type << 16) + address + 1'000);
  for (const std::int64_t size : t.shape) add(size);
  for (const std::int64_t stride : t.stride) add(stride);
}

void ProblemKey::add(const std::optional<Tensor>& t) {
  if (t) {
    add(*t);
  } else {
    add(0);
  }
}

bool ProblemKey::operator==(const ProblemKey& other) const {
  return count_ == other.count_ &&
         std::memcmp(numbers_.data(), other.numbers_.data(), count_ * sizeof(numbers_[0])) == 0;
}

std::uint64_t ProblemKey::hash() const {
  const std::string_view bytes(reinterpret_cast<const char*>(numbers_.data()), count_ * sizeof(numbers_[0]));
  return std::hash<std::string_view>()(bytes);
}

const Backend* remembered_choice(const ProblemKey& key) {
  const Choice& choice = place_of(key);
  return choice.key == key ? choice.backend : nullptr;
}

void remember_choice(const ProblemKey& key, const Backend& backend) {
  place_of(key) = {key, &backend};
}

}  // namespace attend::dispatch
