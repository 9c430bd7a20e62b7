#include "ring/plan/head_share.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace attend::ring {
namespace {

using core::Problem;

Tensor batch_entry(const Tensor& t, std::int64_t batch) {
  Tensor view = t;
  view.shape[0] = 1;
  if (t.numel() > 0) view.data = core::element(t, batch, 0, 0);
  return view;
}

}  // namespace

std::optional<std::string> heads_lack(const Problem& p, int num_ranks) {
  for (const auto& [name, heads] : {std::pair{"q", p.num_heads_q}, {"k", p.num_heads_k}}) {
    if (heads % num_ranks != 0) {
      return fmt::format("{}: {} heads, allowed a multiple of the {} ranks with algorithm all_to_all", name, heads,
                         num_ranks);
    }
  }
  return scores_lack(p, RingAlgorithm::kAllToAll);
}

std::optional<std::string> scores_lack(const Problem& p, RingAlgorithm algorithm) {
  const bool on_host = p.q.device.type == DeviceType::kCPU;
  if (on_host || (!p.bias && !p.mask)) return std::nullopt;
  return fmt::format("{}: given with algorithm {} on a GPU, allowed none", p.bias ? "bias" : "mask",
                     algorithm_name(algorithm));
}

Tensor share_of_heads(const Tensor& t, int rank, int num_ranks) {
  Tensor view = t;
  view.shape[1] = t.shape[1] / num_ranks;
  if (t.numel() > 0) view.data = core::element(t, 0, rank * view.shape[1], 0);
  return view;
}

std::int64_t HeadLayout::length(bool are_keys) const {
  if (is_group_) return are_keys ? call_.group_plan.num_keys(call_.group_plan.rank()) : call_.group_plan.num_rows_q();
  return are_keys ? call_.plan.offsets_k().back() : call_.plan.offsets_q().back();
}

HeadLayout::Place HeadLayout::placed(bool are_keys, const Run& run) const {
  if (!is_group_) {
    const std::vector<std::int64_t>& offsets = are_keys ? call_.plan.offsets_k() : call_.plan.offsets_q();
    return {offsets[static_cast<std::size_t>(run.sequence)] + run.position, run.step};
  }
  const Plan& plan = call_.group_plan;
  const std::vector<Run>& groups = are_keys ? plan.keys(plan.rank()) : plan.rows(plan.rank());
  const Run& of_group = *std::find_if(groups.begin(), groups.end(), [&](const Run& g) {
    return g.sequence == run.sequence && run.position < g.position + g.step * g.length;
  });
  return {of_group.local_begin + (run.position - of_group.position) / of_group.step, run.step / of_group.step};
}

namespace {

class ShareMaker {
 public:
  ShareMaker(const Call& call, const MakeTensor& make) : call_(call), layout_(call), make_(make), p_(call.problem) {
    share_.problem = p_;
    share_.problem.num_heads_q /= layout_.size();
    share_.problem.num_heads_k /= layout_.size();
    // kAllToAll runs this problem, so its lengths must be set. kTwoLevel computes the problem in pieces, and sets the
    // lengths of each piece.
    if (call.algorithm == RingAlgorithm::kAllToAll) {
      if (!p_.varlen) {
        share_.problem.max_seqlen_q = layout_.length(false);
        share_.problem.max_seqlen_k = layout_.length(true);
      }
      if (call.varlen_of_caller) share_.problem.varlen = call.varlen_of_caller;
    }
    share_.problem.workspace = {};
    share_.problem.q = in(p_.q, false);
    share_.problem.k = in(p_.k, true);
    share_.problem.v = in(p_.v, true);
    if (p_.alibi_slopes) {
      share_.problem.alibi_slopes = share_of_heads(*p_.alibi_slopes, layout_.mine(), layout_.size());
    }
    if (p_.bias) share_.problem.bias = in(*p_.bias, false);
    if (p_.mask) share_.problem.mask = in(*p_.mask, false);
  }

  [[nodiscard]] Share forward(const Tensor& o, const Tensor* lse) && {
    const bool on_host = call_.backend != nullptr;
    if (on_host) share_.problem.as_part().result_dtype = o.dtype;
    share_.problem.o = out(o, false, on_host ? call_.partial_dtype : o.dtype);
    share_.problem.lse.reset();
    if (lse != nullptr) share_.problem.lse = out(*lse, false, on_host ? DType::kF64 : lse->dtype);
    return std::move(share_);
  }

  [[nodiscard]] Share backward(const Tensor* deltas) && {
    const auto dtype = [&](const Tensor& t) { return call_.backend != nullptr ? call_.partial_dtype : t.dtype; };
    Problem& p = share_.problem;
    p.dout = in(p_.dout, false);
    p.lse = in(*p_.lse, false);
    p.o = deltas != nullptr ? p.dout : in(p_.o, false);  // if there are deltas, o is not read, so it may be any tensor
    p.dlse.reset();
    if (deltas != nullptr) {
      p.as_part().delta = in(*deltas, false);
    } else if (p_.dlse) {
      p.dlse = in(*p_.dlse, false);
    }
    p.dq = out(p_.dq, false, dtype(p_.dq));
    p.dk = out(p_.dk, true, dtype(p_.dk));
    p.dv = out(p_.dv, true, dtype(p_.dv));
    return std::move(share_);
  }

 private:
  [[nodiscard]] Tensor whole(const Tensor& rows, bool is_of_keys, DType dtype) const {
    Shape shape = rows.shape;
    shape[1] /= layout_.size();
    shape[2] = layout_.length(is_of_keys);
    return make_(dtype, shape);
  }
  Tensor in(const Tensor& rows, bool is_of_keys) {
    share_.in.push_back({rows, whole(rows, is_of_keys, rows.dtype), is_of_keys});
    return share_.in.back().heads;
  }
  Tensor out(const Tensor& rows, bool is_of_keys, DType dtype) {
    share_.out.push_back({rows, whole(rows, is_of_keys, dtype), is_of_keys});
    return share_.out.back().heads;
  }

  const Call& call_;
  HeadLayout layout_;
  const MakeTensor& make_;
  const Problem& p_;
  Share share_;
};

}  // namespace

Share forward_share(const Call& call, const MakeTensor& make, const Tensor& o, const Tensor* lse) {
  return ShareMaker(call, make).forward(o, lse);
}

Share backward_share(const Call& call, const MakeTensor& make, const Tensor* deltas) {
  return ShareMaker(call, make).backward(deltas);
}

Share share_without_memory(const Call& call) {
  const Problem& p = call.problem;
  const Device device = p.q.device;
  const MakeTensor make = [&](DType dtype, const Shape& shape) {
    return Tensor::bhsd<void>(nullptr, dtype, shape, device);
  };
  return p.is_backward ? backward_share(call, make, nullptr)
                       : forward_share(call, make, p.o, p.lse ? &*p.lse : nullptr);
}

Problem batch_entry(const Problem& problem, std::int64_t batch) {
  Problem p = problem;
  p.num_sequences = 1;
  for (Tensor* t : {&p.q, &p.k, &p.v, &p.o}) *t = batch_entry(*t, batch);
  if (p.is_backward) {
    for (Tensor* t : {&p.dout, &p.dq, &p.dk, &p.dv}) *t = batch_entry(*t, batch);
  }
  for (std::optional<Tensor>* t : {&p.lse, &p.dlse, &p.bias, &p.mask, &p.alibi_slopes}) {
    if (*t) *t = batch_entry(**t, batch);
  }
  if (const Tensor* delta = p.delta()) p.part->delta = batch_entry(*delta, batch);
  return p;
}

}  // namespace attend::ring
