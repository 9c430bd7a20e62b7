#include "ring/ring_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "support/expect.hpp"

namespace attend::test {
namespace {

std::span<const std::int32_t> offsets_of(const Inputs& in, const std::shared_ptr<std::int32_t>& cu_seqlens) {
  if (cu_seqlens == nullptr) return {};
  return {cu_seqlens.get(), static_cast<std::size_t>(in.options.num_sequences()) + 1};
}

/// Copies the offsets to memory that the device can access. Returns null if there are none.
std::shared_ptr<std::int32_t> copy_of(std::span<const std::int32_t> cu_seqlens) {
  if (cu_seqlens.empty()) return nullptr;
  const std::shared_ptr<std::byte> memory = allocate_tensor_memory(cu_seqlens.size_bytes());
  auto* const copy = reinterpret_cast<std::int32_t*>(memory.get());
  std::copy(cu_seqlens.begin(), cu_seqlens.end(), copy);
  return {memory, copy};
}

Tensor on(RankPlace place, const TensorBuffer& buffer) {
  Tensor view = buffer.view();
  view.device = place.device;
  return view;
}

Params params_on(RankPlace place, const Inputs& in, std::string_view compute) {
  Params params = in.params(compute);
  for (std::optional<ConstTensor>* t : {&params.bias, &params.mask, &params.alibi_slopes, &params.sinks}) {
    if (*t) (*t)->device = place.device;
  }
  return params;
}

/// Returns the rows of `whole` that belong to one rank, in the layout of `whole`.
TensorBuffer share_of(const TensorBuffer& whole, const RingCase& c, int rank,
                      std::span<const std::int32_t> cu_seqlens) {
  Shape shape = whole.shape();
  shape[2] = shard_seqlen(c.sharding, shape[2], rank, c.num_ranks, cu_seqlens);
  const Layout layout = c.problem.layout == CaseLayout::kBHSD     ? Layout::kBHSD
                        : c.problem.layout == CaseLayout::kPadded ? Layout::kPadded
                                                                  : Layout::kBSHD;
  return {whole.dtype(), shape, {layout, c.problem.base_offset}};
}

TensorBuffer sharded(const TensorBuffer& whole, const RingCase& c, int rank, std::span<const std::int32_t> cu_seqlens) {
  TensorBuffer share = share_of(whole, c, rank, cu_seqlens);
  shard(c.sharding, whole.view(), share.view(), rank, c.num_ranks, cu_seqlens);
  return share;
}

}  // namespace

std::string describe(const RingCase& c) {
  return std::string(algorithm_name(c.algorithm)) + ", " + sharding_name(c.sharding) + " over " +
         std::to_string(c.num_ranks) + ": " + describe(c.problem);
}

RankTensors rank_tensors(const Inputs& whole, const RingCase& c, int rank) {
  const auto cu_q = offsets_of(whole, whole.cu_q);
  const auto cu_k = offsets_of(whole, whole.cu_k);
  RankTensors t = {whole, {}};
  if (whole.slopes) t.in.slopes = copy_of(*whole.slopes);
  t.in.cu_q = copy_of(cu_q);
  t.in.cu_k = copy_of(cu_k);
  for (TensorBuffer* rows : {&t.in.q, &t.in.dout}) *rows = sharded(*rows, c, rank, cu_q);
  for (TensorBuffer* keys : {&t.in.k, &t.in.v}) *keys = sharded(*keys, c, rank, cu_k);
  if (t.in.dlse) t.in.dlse = sharded(*t.in.dlse, c, rank, cu_q);
  for (std::optional<TensorBuffer>* scores : {&t.in.bias, &t.in.mask}) {
    const bool has_rows = *scores && (*scores)->shape()[2] == whole.q.shape()[2];
    if (has_rows) *scores = sharded(**scores, c, rank, cu_q);
  }
  const Outputs out = make_outputs(whole);
  t.out = {share_of(out.o, c, rank, cu_q),  share_of(out.lse, c, rank, cu_q), share_of(out.dq, c, rank, cu_q),
           share_of(out.dk, c, rank, cu_k), share_of(out.dv, c, rank, cu_k),  {}};
  return t;
}

void ring_forward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                     RankPlace place) {
  const Tensor lse = on(place, t.out.lse);
  ring_forward(context, on(place, t.in.q), on(place, t.in.k), on(place, t.in.v), on(place, t.out.o), &lse,
               params_on(place, t.in, compute), c.ring_params(), place.stream);
}

void ring_backward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                      RankPlace place) {
  BackwardExtras extras;
  if (t.in.dlse) extras.dlse = on(place, *t.in.dlse);
  ring_backward(context, on(place, t.in.dout), on(place, t.in.q), on(place, t.in.k), on(place, t.in.v),
                on(place, t.out.o), on(place, t.out.lse), on(place, t.out.dq), on(place, t.out.dk), on(place, t.out.dv),
                params_on(place, t.in, compute), c.ring_params(), place.stream, extras);
}

std::vector<std::string> on_threads(int num_ranks, const std::function<void(int)>& work) {
  std::vector<std::string> thrown(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

std::vector<RankTensors> cut(const Inputs& whole, const RingCase& c) {
  std::vector<RankTensors> tensors;
  for (int rank = 0; rank < c.num_ranks; ++rank) tensors.push_back(rank_tensors(whole, c, rank));
  return tensors;
}

Outputs put_together(const std::vector<RankTensors>& ranks, const Inputs& whole, const RingCase& c) {
  Outputs out = make_outputs(whole);
  out.dbias.reset();
  const auto cu_q = offsets_of(whole, whole.cu_q);
  const auto cu_k = offsets_of(whole, whole.cu_k);
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    const Outputs& part = ranks[static_cast<std::size_t>(rank)].out;
    const auto put = [&](const TensorBuffer& from, const TensorBuffer& to, std::span<const std::int32_t> cu_seqlens) {
      EXPECT_TRUE(from.gaps_intact()) << "rank " << rank << " wrote outside of an output, " << describe(c);
      unshard(c.sharding, from.view(), to.view(), rank, c.num_ranks, cu_seqlens);
    };
    put(part.o, out.o, cu_q);
    put(part.lse, out.lse, cu_q);
    put(part.dq, out.dq, cu_q);
    put(part.dk, out.dk, cu_k);
    put(part.dv, out.dv, cu_k);
  }
  return out;
}

Outputs run_on_ring(const std::vector<RingContext>& ranks, const Inputs& whole, const RingCase& c,
                    std::string_view compute) {
  const std::vector<RankTensors> tensors = cut(whole, c);
  const std::vector<std::string> thrown = on_threads(c.num_ranks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    ring_forward_of(ranks[at], tensors[at], c, compute);
    ring_backward_of(ranks[at], tensors[at], c, compute);
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "") << describe(c);
  return put_together(tensors, whole, c);
}

Outputs run_on_ring(const Inputs& whole, const RingCase& c, std::string_view compute) {
  return run_on_ring(make_thread_ring(c.num_ranks), whole, c, compute);
}

}  // namespace attend::test
