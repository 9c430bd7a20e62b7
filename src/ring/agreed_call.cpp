#include "ring/agreed_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/elements.hpp"
#include "core/problem_checks.hpp"
#include "core/score_options.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "dispatch/dispatch.hpp"
#include "ring/algorithms/device_pass.hpp"
#include "ring/plan/choice.hpp"
#include "ring/plan/groups.hpp"
#include "ring/plan/head_share.hpp"
#include "ring/transport/agreement.hpp"

namespace attend::ring {
namespace {

/// Adds the properties of a tensor that must be equal on all ranks.
void add_tensor(Fields& fields, const char* name, const Tensor& t) {
  fields.push_back({name, fmt::format("{} (batch {}, heads {}, head_dim {}) on {}", dtype_name(t.dtype), t.shape[0],
                                      t.shape[1], t.shape[3], t.device.type == DeviceType::kCPU ? "cpu" : "cuda")});
}

void add_params(Fields& fields, const Params& params, bool shares_seed) {
  const auto add = [&](const char* name, const auto& value) { fields.push_back({name, fmt::format("{}", value)}); };
  add("scale", params.scale ? fmt::format("{}", *params.scale) : "1/sqrt(head_dim)");
  add("causal", params.causal);
  add("window_left", params.window_left);
  add("window_right", params.window_right);
  for (const core::ScoreNumber& row : core::kScoreNumbers) add(row.name, params.*row.param);
  // Only the presence of a bias or mask is compared. Its shape may differ between ranks, because it has the rank's
  // rows.
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    const auto& t = params.*row.param;
    add(row.name, !t ? "none" : row.is_of_scores() ? "given" : core::shape_text(t->shape));
  }
  if (!shares_seed) add("seed", params.seed);
  add("offset", params.offset);
  add("philox_state", params.philox_state != nullptr ? "given" : "none");
  add("varlen.num_sequences", params.varlen ? fmt::to_string(params.varlen->num_sequences) : "none");
  add("compute", params.compute);
}

/// Returns the fields that do not depend on any check of the arguments. Reads no tensor data.
Fields shapes_and_options(const Arguments& a) {
  Fields fields = {{"call", a.function},
                   {"sharding", sharding_name(a.ring.sharding)},
                   {"algorithm", algorithm_name(a.ring.algorithm)}};
  add_tensor(fields, "q", a.q);
  add_tensor(fields, "k", a.k);
  add_tensor(fields, "v", a.v);
  add_tensor(fields, "o", a.o);
  fields.push_back({"seed_of_rank_0", fmt::to_string(a.ring.seed_of_rank_0)});
  add_params(fields, a.params, a.ring.seed_of_rank_0);
  if (a.backward) fields.push_back({"dlse", a.backward->extras.dlse ? "given" : "none"});
  return fields;
}

/// Returns the fields that must be equal on all ranks but can be computed only after the checks. They are the name of
/// the backend, and values to which arguments point. ALiBi slopes and dropout seeds in GPU memory are not compared.
Fields values(const core::Problem& p, const core::Backend* backend) {
  Fields fields = {{"compute", backend != nullptr ? backend->name : "on GPUs"}};
  if (p.varlen) {
    for (const auto& [name, cu_seqlens] : {std::pair{"q", p.varlen->cu_seqlens_q}, {"k", p.varlen->cu_seqlens_k}}) {
      for (std::int64_t s = 0; s <= p.num_sequences; ++s) {
        fields.push_back({fmt::format("varlen.cu_seqlens_{}[{}]", name, s), fmt::to_string(cu_seqlens[s])});
      }
    }
  }
  if (p.q.device.type == DeviceType::kCPU) {
    fields.push_back({"seed", fmt::to_string(p.seed)});  // the caller may have passed the seed as an address
    fields.push_back({"offset", fmt::to_string(p.offset)});
  }
  if (p.alibi_slopes && p.q.device.type == DeviceType::kCPU) {
    const std::int64_t batches = p.alibi_slopes->stride[0] == 0 ? 1 : p.alibi_slopes->shape[0];
    for (std::int64_t b = 0; b < batches; ++b) {
      for (std::int64_t h = 0; h < p.num_heads_q; ++h) {
        fields.push_back(
            {fmt::format("alibi_slopes[{}, {}]", b, h), fmt::to_string(core::load(*p.alibi_slopes, b, h, 0, 0))});
      }
    }
  }
  return fields;
}

std::string device_text(Device device) {
  return device.type == DeviceType::kCPU ? "cpu" : fmt::format("cuda {}", device.index);
}

core::Problem checked_problem(const Arguments& a, const core::WholeLengths& whole, const Transport& transport) {
  if (const auto allowed = transport.allowed_instead(a.q.device)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("q: on {}, allowed {} with {}", device_text(a.q.device), *allowed, a.function));
  }
  // A ring merges partial results of a row by their lse. Some options that are tensors do not allow such a merge, and
  // are refused.
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (!(a.params.*row.param) || has_only(row.mod, core::kTraitsOfSingleScores)) continue;
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: given, allowed none with {}", row.name, a.function));
  }
  const bool reads_scores = a.params.bias || a.params.mask;
  if (a.q.device.type != DeviceType::kCPU && reads_scores && a.ring.sharding == Sharding::kStriped) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: given with striped sharding on a GPU, allowed none", a.params.bias ? "bias" : "mask"));
  }
  if (a.ring.seed_of_rank_0 && a.params.philox_state != nullptr) {
    throw Error(ErrorCode::kUnsupported, "philox_state: given with seed_of_rank_0, allowed none");
  }
  if (a.params.compute == "cpu_naive") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("compute: 'cpu_naive', allowed auto, cpu, reference with {}", a.function));
  }
  const Tensor* lse = a.lse ? &*a.lse : nullptr;
  if (!a.backward) return core::make_forward_problem(a.q, a.k, a.v, a.o, lse, a.params, &whole);
  if (a.backward->extras.dbias) {
    throw Error(ErrorCode::kUnsupported, fmt::format("dbias: given, allowed none with {}", a.function));
  }
  const Arguments::Backward& b = *a.backward;
  return core::make_backward_problem(b.dout, a.q, a.k, a.v, a.o, *lse, b.dq, b.dk, b.dv, a.params, b.extras, &whole);
}

void check_share(const char* name, std::int64_t seqlen, std::int64_t allowed, std::int64_t whole, const Arguments& a,
                 const Transport& transport) {
  if (seqlen == allowed) return;
  core::refuse("{}: seqlen {}, allowed {}: what rank {} of {} holds of {} tokens with {} sharding", name, seqlen,
               allowed, transport.rank(), transport.size(), whole, sharding_name(a.ring.sharding));
}

/// Copies the offsets of packed sequences from a GPU to `call`. Then checks them, as offsets in host memory are
/// checked.
void fetch_offsets(core::Problem& p, Call& call, const core::WholeLengths& whole, Stream stream) {
  const auto count = static_cast<std::size_t>(p.num_sequences) + 1;
  const cuda::ContextGuard guard(p.q.device.index);
  auto* const handle = static_cast<cuda::StreamHandle>(stream);
  const auto fetch = [&](std::vector<std::int32_t>& to, const std::int32_t* from) {
    to.resize(count);
    cuda::check_call(cuda::driver().copy_to_host(to.data(), reinterpret_cast<cuda::DevicePointer>(from),
                                                 count * sizeof(std::int32_t), handle),
                     "cuMemcpyDtoHAsync", "reading cu_seqlens");
  };
  fetch(call.cu_seqlens_q, p.varlen->cu_seqlens_q);
  fetch(call.cu_seqlens_k, p.varlen->cu_seqlens_k);
  cuda::synchronize(handle);
  core::check_varlen_offsets(p, call.cu_seqlens_q.data(), call.cu_seqlens_k.data(), whole);
  call.varlen_of_caller = p.varlen;
  p.varlen->cu_seqlens_q = call.cu_seqlens_q.data();
  p.varlen->cu_seqlens_k = call.cu_seqlens_k.data();
}

constexpr const char* kLengthQ = "#seqlen_q";
constexpr const char* kLengthK = "#seqlen_k";
constexpr const char* kSeed = "#seed";

template <class Number>
Number number_of(const Fields& fields, const char* name) {
  Number n = 0;
  const std::string& text = value_of(fields, name);
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

/// Exchanges the shapes and options of a call, which are the first fields that ranks compare. If requested, sets the
/// seed to that of rank 0.
core::WholeLengths exchange_shapes_and_options(Transport& transport, Arguments& a) {
  const auto length = [](std::int64_t n) { return fmt::to_string(std::clamp<std::int64_t>(n, 0, core::kMaxLength)); };
  const std::vector<Fields> by_rank = agree_on_next_call(transport, [&] {
    Fields mine = shapes_and_options(a);
    mine.push_back({kLengthQ, length(a.q.shape[2])});
    mine.push_back({kLengthK, length(a.k.shape[2])});
    mine.push_back({kSeed, fmt::to_string(a.params.seed)});
    return mine;
  });
  if (a.ring.seed_of_rank_0) a.params.seed = number_of<std::uint64_t>(by_rank.front(), kSeed);
  core::WholeLengths whole = {0, 0};
  for (const Fields& fields : by_rank) {
    whole.seqlen_q += number_of<std::int64_t>(fields, kLengthQ);
    whole.seqlen_k += number_of<std::int64_t>(fields, kLengthK);
  }
  return whole;
}

/// Returns the call with the requested algorithm. If none is requested, the cost model chooses one. All ranks choose
/// the same one, because the model's inputs are the same on every rank.
Call with_algorithm(const Call& call, RingAlgorithm asked) {
  const int num_ranks = call.plan.num_ranks();
  Call made = call;
  made.algorithm = asked == RingAlgorithm::kAutomatic ? RingAlgorithm::kExchange : asked;
  const std::optional<std::string> lack = asked == RingAlgorithm::kAllToAll   ? heads_lack(call.problem, num_ranks)
                                          : asked == RingAlgorithm::kTwoLevel ? two_level_lack(call.problem, num_ranks)
                                                                              : std::nullopt;
  if (lack) throw Error(ErrorCode::kUnsupported, *lack);
  if ((asked != RingAlgorithm::kAutomatic && asked != RingAlgorithm::kTwoLevel) || num_ranks == 1) return made;
  const RingCandidate choice = chosen_candidate(call, asked);
  if (choice.algorithm == RingAlgorithm::kTwoLevel) return in_groups(call, choice.ranks_of_group);
  made.algorithm = choice.algorithm;
  return made;
}

}  // namespace

Call agree_on(Transport& transport, Arguments a, Stream stream) {
  const core::WholeLengths whole = exchange_shapes_and_options(transport, a);
  std::optional<Call> call;
  (void)agree(transport, [&] {
    core::Problem p = checked_problem(a, whole, transport);
    const bool on_device = p.q.device.type != DeviceType::kCPU;
    const core::Backend* backend = on_device ? nullptr : &dispatch::choose(a.params.compute, p);
    const bool wide = backend != nullptr && std::string_view(backend->name) == "reference";
    Call made = {};
    made.compute = a.params.compute;
    made.partial_dtype = wide ? DType::kF64 : DType::kF32;
    if (on_device && p.varlen) fetch_offsets(p, made, whole, stream);
    made.plan = Plan(p, whole, a.ring.sharding, transport.rank(), transport.size());
    made.problem = p;
    made.backend = backend;
    made.heads_plan = Plan(p, whole, Sharding::kContiguous, 0, 1);
    call = with_algorithm(made, a.ring.algorithm);
    check_share("q", p.q.shape[2], call->plan.num_rows_q(), whole.seqlen_q, a, transport);
    check_share("k", p.k.shape[2], call->plan.num_keys(transport.rank()), whole.seqlen_k, a, transport);
    if (on_device) check_pieces(*call);
    return values(call->problem, backend);
  });
  return *std::move(call);
}

}  // namespace attend::ring
