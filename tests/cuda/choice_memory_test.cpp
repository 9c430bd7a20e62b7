// Tests the memory of `auto`, which stores its choices by a key made from the problem. The key must contain everything
// that can change the choice, and must ignore addresses and seeds.
#include "dispatch/choice_memory.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>

#include "cuda/made_up.hpp"
#include "dispatch/dispatch.hpp"

namespace attend::test {
namespace {

using core::Problem;
using dispatch::ProblemKey;

std::vector<MadeUp> all_problems() {
  std::vector<MadeUp> all = problems(false);
  for (MadeUp& made : problems(true)) all.push_back(std::move(made));
  return all;
}

void move_by(Tensor& t, std::uintptr_t bytes) {
  t.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(t.data) + bytes);
}

void toggle(std::optional<Tensor>& t) {
  t = t ? std::nullopt : std::optional(Tensor{});
}

/// Returns one of two score functions that have different sources.
const core::CustomScore* custom_score(std::size_t which) {
  static const core::CustomScore kScores[] = {{.source = "first", .digest = {1, 2, 3, 4}},
                                              {.source = "second", .digest = {1, 2, 3, 5}}};
  return &kScores[which];
}

struct Change {
  const char* name;
  std::function<void(Problem&)> make;
};

/// Returns one change for each member of Problem that a backend may read.
std::vector<Change> changes(const Problem& p) {
  std::vector<Change> all = {
      {"num_sequences", [](Problem& x) { x.num_sequences += 1; }},
      {"num_heads_q", [](Problem& x) { x.num_heads_q += 1; }},
      {"num_heads_k", [](Problem& x) { x.num_heads_k += 1; }},
      {"max_seqlen_q", [](Problem& x) { x.max_seqlen_q += 1; }},
      {"max_seqlen_k", [](Problem& x) { x.max_seqlen_k += 1; }},
      {"head_dim", [](Problem& x) { x.head_dim += 1; }},
      {"head_dim_v", [](Problem& x) { x.head_dim_v += 1; }},
      {"scale", [](Problem& x) { x.scale = -x.scale; }},
      {"softcap", [](Problem& x) { x.transform_cap += 1; }},
      {"window_left", [](Problem& x) { x.window_left += 1; }},
      {"window_right", [](Problem& x) { x.window_right += 1; }},
      {"dropout_p", [](Problem& x) { x.dropout_p += 0.25; }},
      {"philox_state", [](Problem& x) { x.philox_state = reinterpret_cast<const std::uint64_t*>(256); }},
      {"deterministic", [](Problem& x) { x.deterministic = !x.deterministic; }},
      {"workspace",
       [](Problem& x) {
         x.workspace = {reinterpret_cast<void*>(256), 0};
       }},
      {"varlen", [](Problem& x) { x.varlen = Varlen{.num_sequences = x.num_sequences}; }},
      {"lse", [](Problem& x) { x.lse.reset(); }},
      {"alibi_slopes", [](Problem& x) { x.alibi_slopes = x.q; }},
      {"bias", [](Problem& x) { toggle(x.bias); }},
      {"mask", [](Problem& x) { x.mask = x.q; }},
      {"sinks", [](Problem& x) { toggle(x.sinks); }},
      {"dlse", [](Problem& x) { x.dlse = x.q; }},
      {"q_descale", [](Problem& x) { x.q_descale = x.q; }},
      {"k_descale", [](Problem& x) { x.k_descale = x.q; }},
      {"v_descale", [](Problem& x) { x.v_descale = x.q; }},
      {"dbias", [](Problem& x) { toggle(x.dbias); }},
      {"dsinks", [](Problem& x) { toggle(x.dsinks); }},
      {"custom_score", [](Problem& x) { x.custom_score = custom_score(x.custom_score == nullptr ? 0 : 1); }},
  };
  all.push_back({"block_mask", [](Problem& x) {
                   static const core::BlockTiles kTiles;
                   x.block_mask = x.block_mask == nullptr ? &kTiles : nullptr;
                 }});
  all.push_back({"captured_gradients", [](Problem& x) { x.captured_gradients.push_back({0, x.q}); }});
  std::vector<Tensor Problem::*> tensors = {&Problem::q, &Problem::k, &Problem::v, &Problem::o};
  if (p.is_backward) {
    for (const auto t : {&Problem::dout, &Problem::dq, &Problem::dk, &Problem::dv}) tensors.push_back(t);
  }
  for (const auto t : tensors) {
    all.push_back(
        {"dtype", [t](Problem& x) { (x.*t).dtype = (x.*t).dtype == DType::kF16 ? DType::kF32 : DType::kF16; }});
    all.push_back({"device", [t](Problem& x) { (x.*t).device.index += 1; }});
    all.push_back({"alignment", [t](Problem& x) { move_by(x.*t, 2); }});
    for (std::size_t d = 0; d < 4; ++d) {
      all.push_back({"shape", [t, d](Problem& x) { (x.*t).shape[d] += 1; }});
      all.push_back({"stride", [t, d](Problem& x) { (x.*t).stride[d] += 1; }});
    }
  }
  return all;
}

/// Does not compile if Problem has a member that is missing here. Add a Change above for a new member. The tensors and
/// numbers of options need no Change above, because their changes are made from the table of options.
void name_all_members(const Problem& p) {
  const auto& [q, k, v, o, lse, alibi_slopes, bias, mask, sinks, q_descale, k_descale, v_descale, varlen, is_backward,
               dout, dq, dk, dv, dlse, dbias, dsinks, captured_gradients, num_sequences, num_heads_q, num_heads_k,
               max_seqlen_q, max_seqlen_k, head_dim, head_dim_v, scale, transform_cap, window_left, window_right,
               dropout_p, seed, offset, philox_state, deterministic, custom_score, block_mask, workspace, part] = p;
  (void)q;
}

TEST(ChoiceMemory, AKeyHasEverythingThatAChoiceMayDependOn) {
  for (const MadeUp& made : all_problems()) {
    name_all_members(made.problem);
    const ProblemKey key(made.problem);
    for (const Change& change : changes(made.problem)) {
      Problem changed = made.problem;
      change.make(changed);
      EXPECT_FALSE(ProblemKey(changed) == key) << change.name;
    }
    Problem elsewhere = made.problem;
    for (Tensor* t : {&elsewhere.q, &elsewhere.dv}) move_by(*t, 4096);
    elsewhere.seed += 1;
    EXPECT_TRUE(ProblemKey(elsewhere) == key) << "a model's next step has other addresses and another seed";
    EXPECT_EQ(ProblemKey(elsewhere).hash(), key.hash());
  }
}

TEST(ChoiceMemory, AutoTakesWhatAThreadWithoutMemoryTakes) {
  const std::vector<MadeUp> all = all_problems();  // many more problems than the memory can store
  for (int turn = 0; turn < 2; ++turn) {
    for (const MadeUp& made : all) {
      const core::Backend& backend = dispatch::choose("auto", made.problem);
      EXPECT_EQ(&dispatch::choose("auto", made.problem), &backend);
      EXPECT_EQ(dispatch::remembered_choice(ProblemKey(made.problem)), &backend);
      const core::Backend* fresh = nullptr;
      std::thread([&] {
        EXPECT_EQ(dispatch::remembered_choice(ProblemKey(made.problem)), nullptr);
        fresh = &dispatch::choose("auto", made.problem);
      }).join();
      EXPECT_EQ(fresh, &backend);
    }
  }
}

TEST(ChoiceMemory, PartsOfARingAndWhatNobodyTakesAreNotRemembered) {
  const core::Placement place = {.whole_seqlen_q = 1000, .whole_seqlen_k = 1000};
  for (const core::Part& part : {core::Part{.placement = place}, core::Part{.adds_to_outputs = true}, core::Part{}}) {
    MadeUp made(DType::kF16);
    made.problem.part = part;
    (void)dispatch::choose("auto", made.problem);
    EXPECT_EQ(dispatch::remembered_choice(ProblemKey(made.problem)), nullptr);
  }
  const MadeUp unknown(DType::kF16, {}, {}, false, 1);
  for (int turn = 0; turn < 2; ++turn) EXPECT_THROW((void)dispatch::choose("auto", unknown.problem), Error);
  EXPECT_EQ(dispatch::remembered_choice(ProblemKey(unknown.problem)), nullptr);
}

}  // namespace
}  // namespace attend::test
