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

constexpr std::uintptr_t kMostAlignment = 256;  // highest alignment in bytes that a kernel requires of an address

struct Choice {
  ProblemKey key;
  const Backend* backend = nullptr;
};

// The key determines the entry in the array. Another key with the same entry replaces it.
using Choices = std::array<Choice, 32>;
static_assert(std::is_trivially_destructible_v<Choices>, "calls may go on while the process ends");

Choice& place_of(const ProblemKey& key) {
  thread_local Choices choices;
  return choices[key.hash() % choices.size()];
}

}  // namespace

ProblemKey::ProblemKey(const Problem& p) {
  // The key leaves out seed and offset, because no choice depends on them. It also leaves out Problem::part, because
  // choices for parts are not remembered.
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.o}) add(*t);
  if (p.is_backward) {
    for (const Tensor* t : {&p.dout, &p.dq, &p.dk, &p.dv}) add(*t);
  }
  for (const std::optional<Tensor>* t : {&p.lse, &p.dlse, &p.q_descale, &p.k_descale, &p.v_descale}) add(*t);
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    add(p.*row.tensor);
    if (row.gradient != nullptr) add(p.*row.gradient_tensor);
  }
  add(p.is_backward ? 1 : 0);
  add(p.varlen ? p.varlen->num_sequences + 1 : 0);
  for (const std::int64_t number : {p.num_sequences, p.num_heads_q, p.num_heads_k, p.max_seqlen_q, p.max_seqlen_k,
                                    p.head_dim, p.head_dim_v, p.window_left, p.window_right}) {
    add(number);
  }
  add(std::bit_cast<std::int64_t>(p.scale));
  for (const core::ScoreNumber& row : core::kScoreNumbers) add(std::bit_cast<std::int64_t>(p.*row.value));
  add(p.philox_state != nullptr ? 1 : 0);
  add(p.deterministic ? 1 : 0);
  add(p.block_mask != nullptr ? 1 : 0);
  if (p.custom_score != nullptr) {
    if (p.custom_score->captured.size() > core::CustomScore::kMostCaptured) {
      core::refuse("score function: {} captured tensors, allowed at most {}", p.custom_score->captured.size(),
                   core::CustomScore::kMostCaptured);
    }
    for (const std::int32_t part_of_digest : p.custom_score->digest) add(part_of_digest);
    for (const Tensor& t : p.custom_score->captured) add(t);
  }
  for (const core::CapturedGradient& g : p.captured_gradients) {
    add(static_cast<std::int64_t>(g.capture));
    add(g.gradient);
  }
  add(p.workspace.data != nullptr ? static_cast<std::int64_t>(p.workspace.bytes) : -1);
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
