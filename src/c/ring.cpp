// Implements the C interface for rings.
#include "attend/ring.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "attend/error.hpp"
#include "c/arguments.hpp"
#include "c/json.hpp"
#include "c/ring_callbacks.hpp"
#include "c/struct_sizes.hpp"
#include "ring/transport/agreement.hpp"

using attend::c::guarded;

struct attend_ring {
  attend::RingContext context;
};

namespace attend::c {
namespace {

Sharding sharding_of(std::int32_t value) {
  return enumerator("sharding", value, Sharding::kStriped);
}

RingParams ring_params_of(const attend_ring_params* given) {
  if (given == nullptr) return {};
  const attend_ring_params p = read_struct("ring_params", given);
  check_reserved("ring_params", p.reserved);
  RingParams params(sharding_of(p.sharding), enumerator("algorithm", p.algorithm, RingAlgorithm::kTwoLevel));
  params.seed_of_rank_0 = flag("seed_of_rank_0", p.seed_of_rank_0);
  return params;
}

const RingContext& context_of(const attend_ring* given) {
  if (given == nullptr) refuse("ring: null, allowed a rank of a ring");
  return given->context;
}

/// Calls read(), which reads the structs of a call. If the structs are invalid, reports this to the other ranks.
/// Otherwise those ranks would wait for the arguments of this rank.
template <class Read>
auto read_on_all_ranks(const RingContext& context, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    ring::refuse(context.transport(), error);
  } catch (const std::bad_alloc&) {
    ring::refuse(context.transport(), Error(ErrorCode::kInternal, "out of memory"));
  }
}

void forward_on_ring(const attend_ring* ring, const attend_forward_call* given,
                     const attend_ring_params* given_params) {
  const RingContext& context = context_of(ring);
  const auto [call, params] =
      read_on_all_ranks(context, [&] { return std::pair(forward_call_of(given), ring_params_of(given_params)); });
  ring_forward(context, call.q, call.k, call.v, call.o, call.lse ? &*call.lse : nullptr, call.params, params,
               call.stream);
}

void backward_on_ring(const attend_ring* ring, const attend_backward_call* given,
                      const attend_ring_params* given_params) {
  const RingContext& context = context_of(ring);
  const auto [call, params] =
      read_on_all_ranks(context, [&] { return std::pair(backward_call_of(given), ring_params_of(given_params)); });
  ring_backward(context, call.dout, call.q, call.k, call.v, call.o, call.lse, call.dq, call.dk, call.dv, call.params,
                params, call.stream, {.dlse = call.dlse, .dbias = call.dbias, .dsinks = call.dsinks});
}

void make_threads(std::int32_t num_ranks, std::int64_t timeout_ms, attend_ring** ranks) {
  // Upper limit in milliseconds, about 24 days.
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  if (timeout_ms < 0 || timeout_ms > kLongest) refuse("timeout_ms: {}, allowed 0 to {}", timeout_ms, kLongest);
  result("ranks", ranks);
  std::vector<std::unique_ptr<attend_ring>> made;
  for (const RingContext& context : make_thread_ring(num_ranks, {std::chrono::milliseconds(timeout_ms)})) {
    made.push_back(std::make_unique<attend_ring>(attend_ring{context}));
  }
  for (std::unique_ptr<attend_ring>& rank : made) *ranks++ = rank.release();
}

/// An attend_shard_part, converted to the types of the C++ functions.
struct Part {
  Sharding sharding;
  int rank, num_ranks;
  std::span<const std::int32_t> cu_seqlens;

  explicit Part(const attend_shard_part* given) {
    const attend_shard_part part = read_struct("part", given);
    check_reserved("part", part.reserved);
    sharding = sharding_of(part.sharding);
    rank = part.rank;
    num_ranks = part.num_ranks;
    if (part.cu_seqlens == nullptr) {
      if (part.num_sequences != 0) {
        refuse("num_sequences: {} without cu_seqlens, allowed with it only", part.num_sequences);
      }
      return;
    }
    if (part.num_sequences < 0 || part.num_sequences > core::kMaxLength) {
      refuse("num_sequences: {}, allowed 0 to {}", part.num_sequences, core::kMaxLength);
    }
    cu_seqlens = {part.cu_seqlens, static_cast<std::size_t>(part.num_sequences) + 1};
  }
};

void give_positions(const Part& part, std::int64_t seqlen, std::int64_t* place, std::int64_t count) {
  const std::vector<std::int64_t> positions =
      shard_positions(part.sharding, seqlen, part.rank, part.num_ranks, part.cu_seqlens);
  if (count != static_cast<std::int64_t>(positions.size())) {
    refuse("num_positions: {}, allowed {}", count, positions.size());
  }
  if (positions.empty()) return;
  std::copy(positions.begin(), positions.end(), &result("positions", place));
}

RingProblem ring_problem_of(const attend_ring_problem* given) {
  const attend_ring_problem p = read_struct("problem", given);
  return {.num_ranks = p.num_ranks,
          .device = enumerator("device_type", p.device_type, DeviceType::kCUDA),
          .dtype = enumerator("dtype", p.dtype, DType::kI8),
          .batch = p.batch,
          .num_heads_q = p.num_heads_q,
          .num_heads_k = p.num_heads_k,
          .seqlen_q = p.seqlen_q,
          .seqlen_k = p.seqlen_k,
          .head_dim = p.head_dim,
          .head_dim_v = p.head_dim_v,
          .is_backward = flag("is_backward", p.is_backward)};
}

JsonObject json_of(const RingStep& step) {
  JsonObject object;
  object.add("what", step.what).add("sent_bytes", step.sent_bytes).add("compute_us", step.compute_us);
  return object.add("exchange_us", step.exchange_us).add("exposed_us", step.exposed_us);
}

JsonObject json_of(const RingCandidate& c) {
  std::vector<JsonObject> steps;
  for (const RingStep& step : c.steps) steps.push_back(json_of(step));
  JsonObject object;
  object.add("algorithm", algorithm_name(c.algorithm)).add("chosen", c.chosen).add("lack", c.lack);
  object.add("ranks_of_group", c.ranks_of_group).add("why", c.why).add("steps", steps);
  object.add("sent_bytes", c.sent_bytes).add("memory_bytes", c.memory_bytes);
  return object.add("estimated_us", c.estimated_us);
}

static_assert(ATTEND_SHARDING_CONTIGUOUS == static_cast<int>(Sharding::kContiguous) &&
              ATTEND_SHARDING_ZIGZAG == static_cast<int>(Sharding::kZigzag) &&
              ATTEND_SHARDING_STRIPED == static_cast<int>(Sharding::kStriped));
static_assert(ATTEND_RING_AUTOMATIC == static_cast<int>(RingAlgorithm::kAutomatic) &&
              ATTEND_RING_EXCHANGE == static_cast<int>(RingAlgorithm::kExchange) &&
              ATTEND_RING_ALL_GATHER == static_cast<int>(RingAlgorithm::kAllGather) &&
              ATTEND_RING_ALL_TO_ALL == static_cast<int>(RingAlgorithm::kAllToAll) &&
              ATTEND_RING_TWO_LEVEL == static_cast<int>(RingAlgorithm::kTwoLevel));

}  // namespace
}  // namespace attend::c

const char* attend_sharding_name(std::int32_t sharding) {
  if (sharding < 0 || sharding > ATTEND_SHARDING_STRIPED) return "?";
  return attend::sharding_name(static_cast<attend::Sharding>(sharding));
}

const char* attend_ring_algorithm_name(std::int32_t algorithm) {
  if (algorithm < 0 || algorithm > ATTEND_RING_TWO_LEVEL) return "?";
  return attend::algorithm_name(static_cast<attend::RingAlgorithm>(algorithm));
}

void attend_ring_params_init(attend_ring_params* params, std::size_t struct_size) {
  attend_ring_params defaults = {};
  defaults.sharding = ATTEND_SHARDING_ZIGZAG;
  attend::c::fill_struct(params, struct_size, defaults);
}

std::int32_t attend_make_thread_ring(std::int32_t num_ranks, std::int64_t timeout_ms, attend_ring** ranks,
                                     attend_error* error) {
  return guarded(error, [&] { attend::c::make_threads(num_ranks, timeout_ms, ranks); });
}

void attend_ring_callbacks_init(attend_ring_callbacks* callbacks, std::size_t struct_size) {
  attend::c::fill_struct(callbacks, struct_size, {});
}

std::int32_t attend_make_callback_ring(std::int32_t rank, std::int32_t size, const attend_ring_callbacks* callbacks,
                                       attend_ring** ring, attend_error* error) {
  return guarded(error, [&] {
    attend_ring*& place = attend::c::result("ring", ring);
    const attend_ring_callbacks given = attend::c::read_struct("callbacks", callbacks);
    attend_ring made = {attend::make_callback_ring(rank, size, attend::c::callbacks_of(given))};
    place = std::make_unique<attend_ring>(std::move(made)).release();
  });
}

void attend_ring_free(attend_ring* ring) {
  const std::unique_ptr<attend_ring> owner(ring);
}

std::int32_t attend_ring_rank(const attend_ring* ring) {
  return ring == nullptr ? -1 : ring->context.rank();
}

std::int32_t attend_ring_size(const attend_ring* ring) {
  return ring == nullptr ? -1 : ring->context.size();
}

std::int32_t attend_ring_forward(const attend_ring* ring, const attend_forward_call* call,
                                 const attend_ring_params* params, attend_error* error) {
  return guarded(error, [&] { attend::c::forward_on_ring(ring, call, params); });
}

std::int32_t attend_ring_backward(const attend_ring* ring, const attend_backward_call* call,
                                  const attend_ring_params* params, attend_error* error) {
  return guarded(error, [&] { attend::c::backward_on_ring(ring, call, params); });
}

void attend_shard_part_init(attend_shard_part* part, std::size_t struct_size) {
  attend_shard_part defaults = {};
  defaults.sharding = ATTEND_SHARDING_ZIGZAG;
  defaults.num_ranks = 1;
  attend::c::fill_struct(part, struct_size, defaults);
}

std::int32_t attend_shard_seqlen(const attend_shard_part* part, std::int64_t seqlen, std::int64_t* rows,
                                 attend_error* error) {
  return guarded(error, [&] {
    std::int64_t& place = attend::c::result("rows", rows);
    const attend::c::Part p(part);
    place = attend::shard_seqlen(p.sharding, seqlen, p.rank, p.num_ranks, p.cu_seqlens);
  });
}

std::int32_t attend_shard_positions(const attend_shard_part* part, std::int64_t seqlen, std::int64_t* positions,
                                    std::int64_t num_positions, attend_error* error) {
  return guarded(error, [&] { attend::c::give_positions(attend::c::Part(part), seqlen, positions, num_positions); });
}

std::int32_t attend_shard(const attend_shard_part* part, const attend_tensor* whole, const attend_tensor* local,
                          attend_error* error) {
  return guarded(error, [&] {
    const attend::c::Part p(part);
    const attend::Tensor from = attend::c::tensor_of("whole", whole);
    attend::shard(p.sharding, from, attend::c::tensor_of("local", local), p.rank, p.num_ranks, p.cu_seqlens);
  });
}

std::int32_t attend_unshard(const attend_shard_part* part, const attend_tensor* local, const attend_tensor* whole,
                            attend_error* error) {
  return guarded(error, [&] {
    const attend::c::Part p(part);
    const attend::Tensor from = attend::c::tensor_of("local", local);
    attend::unshard(p.sharding, from, attend::c::tensor_of("whole", whole), p.rank, p.num_ranks, p.cu_seqlens);
  });
}

void attend_ring_problem_init(attend_ring_problem* problem, std::size_t struct_size) {
  attend_ring_problem defaults = {};
  defaults.num_ranks = 2;
  defaults.dtype = ATTEND_BF16;
  defaults.batch = 1;
  defaults.num_heads_q = 1;
  defaults.num_heads_k = 1;
  attend::c::fill_struct(problem, struct_size, defaults);
}

std::int32_t attend_explain_ring(const attend_ring_problem* problem, const attend_params* params,
                                 const attend_ring_params* ring_params, char* text, std::size_t text_bytes,
                                 std::size_t* needed_bytes, attend_error* error) {
  return guarded(error, [&] {
    const attend::RingProblem p = attend::c::ring_problem_of(problem);
    std::vector<attend::c::JsonObject> list;
    for (const attend::RingCandidate& c :
         attend::explain_ring(p, attend::c::params_of(params), attend::c::ring_params_of(ring_params))) {
      list.push_back(attend::c::json_of(c));
    }
    attend::c::give_text(attend::c::json(list), text, text_bytes, needed_bytes);
  });
}
