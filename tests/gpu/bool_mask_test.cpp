// Compares boolean masks on Hopper with the float64 reference, forward and backward. The GPU builds the lists of key
// tiles.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/gpu.hpp"
#include "gpu/output_checks.hpp"
#include "gpu/own_functions.hpp"
#include "support/attention_case.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

class BoolMasks : public HopperTest {};

struct Mask {
  const char* name;
  std::function<bool(Index b, Index h, Index q, Index k)> sees;
};

/// Returns a pseudo-random number from 0 to 99 that depends only on the position.
Index percent(Index b, Index h, Index q, Index k) {
  std::uint64_t x = static_cast<std::uint64_t>(((b * 31 + h) * 4099 + q) * 8191 + k) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
  return static_cast<Index>((x >> 33) % 100);
}

std::vector<Mask> masks() {
  return {{"all", [](Index, Index, Index, Index) { return true; }},
          {"none", [](Index, Index, Index, Index) { return false; }},
          {"random 10 %", [](Index b, Index h, Index q, Index k) { return percent(b, h, q, k) < 10; }},
          {"causal", [](Index, Index, Index q, Index k) { return k <= q; }},
          {"tiles of every kind, rows that see nothing", [](Index b, Index h, Index q, Index k) {
             if (q % 7 == 3 || q / 64 == 2) return false;
             return (q / 64 + k / 64 + b + h) % 3 == 0 || (k / 128 == 1 && percent(0, h, q, k) < 60);
           }}};
}

void set_mask(const Inputs& in, const Mask& mask) {
  in.mask->generate([&](Index b, Index h, Index q, Index k) { return mask.sees(b, h, q, k) ? 1.0 : 0.0; });
}

Inputs with_mask(const AttentionCase& c, const Mask& mask) {
  Inputs in = make_inputs(c);
  set_mask(in, mask);
  return in;
}

AttentionCase small(Index seqlen_q, Index seqlen_k, Index head_dim) {
  return {.dtype = DType::kBF16,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .head_dim = head_dim,
          .head_dim_v = head_dim,
          .mask = Broadcast{},
          .dlse = true,
          .seed = 7};
}

Outputs run_on_hopper(const Inputs& in) {
  const Outputs out = make_outputs(in);
  forward(forward_of(in, out, "sm90_forward"));
  backward(backward_of(in, out, "sm90_backward"));
  wait_for("sm90_forward");
  return out;
}

void expect_reference(const Inputs& in) {
  const double results = in.options.dtype == DType::kBF16 ? 0x1p-7 : 0x1p-10;
  const Outputs got = run_on_hopper(in);
  const Inputs exact = as_f64(in);
  const Outputs truth = make_outputs(exact);
  forward(forward_of(exact, truth, "reference"));
  backward(backward_of(exact, truth, "reference"));
  std::printf("%s:", describe(in.options).c_str());
  expect_outputs_near(got, truth, results, 4e-6);
}

void expect_reference(const AttentionCase& c) {
  for (const Mask& mask : masks()) {
    SCOPED_TRACE(mask.name + (" " + describe(c)));
    expect_reference(with_mask(c, mask));
  }
}

TEST_F(BoolMasks, OfOddSizes) {
  expect_reference(small(300, 517, 128));
}
TEST_F(BoolMasks, OfNarrowHeads) {
  AttentionCase c = small(517, 300, 64);
  c.dtype = DType::kF16;
  expect_reference(c);
}
TEST_F(BoolMasks, OfWideHeads) {
  expect_reference(small(300, 259, 192));
}
TEST_F(BoolMasks, OfWholeTiles) {
  expect_reference(small(256, 512, 96));
}
TEST_F(BoolMasks, OfFewRowsOrKeys) {
  expect_reference(small(1, 129, 128));
  expect_reference(small(129, 1, 64));
  expect_reference(small(5, 15, 128));
}

TEST_F(BoolMasks, OfEachBroadcast) {
  for (int number = 1; number <= 8; ++number) {
    AttentionCase c = small(150, 200, 128);
    c.mask = numbered_broadcast(number);
    expect_reference(c);
  }
}

/// The rows of the mask may begin at any address and may have gaps between them.
TEST_F(BoolMasks, OfAnyStrides) {
  const AttentionCase c = small(150, 1100, 64);
  for (const Layout layout : {Layout::kPadded, Layout::kBSHD, Layout::kSliced}) {
    SCOPED_TRACE(static_cast<int>(layout));
    Inputs in = make_inputs(c);
    in.mask = TensorBuffer(DType::kBool, {c.batch, c.heads_q, c.seqlen_q, c.seqlen_k}, {layout, 3});
    set_mask(in, masks().back());
    expect_reference(in);
  }
}

/// A causal mask or a window shortens the lists of key tiles.
TEST_F(BoolMasks, BesideWindows) {
  AttentionCase c = small(300, 517, 128);
  c.causal = true;
  expect_reference(c);
  c.causal = false, c.window_left = 90, c.window_right = 40, c.mask = Broadcast{true, false, false};
  expect_reference(c);
}

TEST_F(BoolMasks, BesideOtherRules) {
  AttentionCase softcap = small(300, 200, 128), dropout = small(300, 200, 64), sinks = small(200, 300, 128),
                wide = small(100, 130, 256);
  softcap.softcap = 10;
  dropout.dropout_p = 0.2, dropout.heads_k = 1;
  sinks.sinks = true;
  wide.dropout_p = 0.2, wide.dtype = DType::kF16;
  for (const AttentionCase& c : {softcap, dropout, sinks, wide}) expect_reference(c);
}

/// With many query heads per key head, dk and dv are summed in memory.
TEST_F(BoolMasks, OfLargeGroups) {
  AttentionCase c = small(1050, 300, 64);
  c.batch = 1, c.heads_q = 8, c.heads_k = 1;
  expect_reference(with_mask(c, masks().back()));
}

TEST_F(BoolMasks, WithAnOrderOfAdditions) {
  for (AttentionCase c : {small(300, 517, 128), small(517, 300, 64)}) {
    c.deterministic = true;
    for (const bool is_causal : {false, true}) {
      c.causal = is_causal;
      expect_reference(c);
      const Inputs in = with_mask(c, masks().back());
      const Outputs first = run_on_hopper(in), again = run_on_hopper(in);
      EXPECT_EQ(first.dq.values(), again.dq.values());
      EXPECT_EQ(first.dk.values(), again.dk.values());
      EXPECT_EQ(first.dv.values(), again.dv.values());
    }
  }
}

/// Each replay of a graph must build the lists again from the current mask. The emulator does not support graphs.
TEST_F(BoolMasks, OfAGraphMayChangeBetweenReplays) {
  AttentionCase c = small(300, 517, 128);
  c.deterministic = true;
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const Inputs in = with_mask(c, masks().front());
  (void)run_on_hopper(in);  // loads the kernels before the capture
  const Outputs out = make_outputs(in);
  CapturedGraph graph(stream.get(), [&] {
    ForwardCall call = forward_of(in, out, "sm90_forward");
    BackwardCall back = backward_of(in, out, "sm90_backward");
    call.stream = back.stream = stream.get();
    forward(call);
    backward(back);
  });
  for (const Mask& mask : masks()) {
    SCOPED_TRACE(mask.name);
    set_mask(in, mask);
    graph.launch();
    cuda::synchronize(stream.get());
    const Outputs wanted = run_on_hopper(in);
    EXPECT_EQ(out.o.values(), wanted.o.values());
    EXPECT_EQ(out.lse.values(), wanted.lse.values());
    EXPECT_EQ(out.dq.values(), wanted.dq.values());
    EXPECT_EQ(out.dk.values(), wanted.dk.values());
    EXPECT_EQ(out.dv.values(), wanted.dv.values());
  }
}

/// One call has a boolean mask and a block mask. A key is visible only if both masks allow it.
TEST_F(BoolMasks, BesideABlockMask) {
  for (AttentionCase c : {small(300, 517, 128), small(300, 259, 192)}) {
    for (const char* text : {"(q // 50 + k // 70 + h) % 3 != 0 && (q + k) % 5 < 3", "q // 128 == k // 128"}) {
      SCOPED_TRACE(text + (" " + describe(c)));
      const BlockMask block_mask = make_block_mask(MaskFunction(text), {1, c.heads_q, c.seqlen_q, c.seqlen_k});
      const Inputs in = with_mask(c, masks().back());
      const Outputs got = run_with_block_mask(in, block_mask, "sm90_forward", "sm90_backward");
      const Outputs want = run_with_block_mask(as_f64(in), block_mask, "reference", "reference");
      expect_outputs_near(got, want, 0x1p-7, 4e-6);
    }
    c.mask = Broadcast{false, false, false};
  }
}

}  // namespace
}  // namespace attend::test
