// Compares append, decode and merge of the C interface with a loop in double.
#include <math.h>
#include <string.h>

#include "support.h"

enum { kSequences = 2, kHeads = 4, kHeadsK = 2, kColumns = 32, kPage = 4, kPagesOfRow = 3, kCapacity = 12 };

/// Caches of two sequences. The keys are stored twice: in pages of one pool, and in contiguous rows.
typedef struct {
  attend_tensor k_pages, v_pages, k_rows, v_rows;
  int32_t pages[kSequences * kPagesOfRow];
  int32_t lengths[kSequences];
  attend_page_table table;
  attend_cache_index paged, rows;
} caches;

static caches* new_caches(void) {
  static const int32_t order[kSequences * kPagesOfRow] = {4, 0, 3, 1, 5, 2};
  caches* c = (caches*)keep(sizeof(caches));
  c->k_pages = new_tensor(ATTEND_F32, kSequences * kPagesOfRow, kHeadsK, kPage, kColumns);
  c->v_pages = new_tensor(ATTEND_F32, kSequences * kPagesOfRow, kHeadsK, kPage, kColumns);
  c->k_rows = new_tensor(ATTEND_F32, kSequences, kHeadsK, kCapacity, kColumns);
  c->v_rows = new_tensor(ATTEND_F32, kSequences, kHeadsK, kCapacity, kColumns);
  memcpy(c->pages, order, sizeof order);
  attend_page_table_init(&c->table, sizeof c->table);
  c->table.pages = c->pages;
  c->table.num_rows = kSequences;
  c->table.pages_per_row = kPagesOfRow;
  c->table.row_stride = kPagesOfRow;
  attend_cache_index_init(&c->paged, sizeof c->paged);
  c->paged.seqlens_k = c->lengths;
  c->paged.page_table = &c->table;
  attend_cache_index_init(&c->rows, sizeof c->rows);
  c->rows.seqlens_k = c->lengths;
  return c;
}

/// Compares decode's result for sequence s with the loop over the first `keys` keys in the contiguous rows. Returns the
/// largest difference.
static double difference_of_sequence(const attend_decode_call* call, const caches* c, int s, int64_t keys,
                                     const attend_params* params) {
  attend_tensor q = *call->q, o = *call->o, k = c->k_rows, v = c->v_rows;
  attend_forward_call as_forward;
  attend_forward_call_init(&as_forward, sizeof as_forward);
  q.data = f32_place(&q, s, 0, 0, 0);
  o.data = f32_place(&o, s, 0, 0, 0);
  k.data = f32_place(&k, s, 0, 0, 0);
  v.data = f32_place(&v, s, 0, 0, 0);
  q.shape[0] = o.shape[0] = k.shape[0] = v.shape[0] = 1;
  k.shape[2] = v.shape[2] = keys;
  as_forward.q = &q;
  as_forward.k = &k;
  as_forward.v = &v;
  as_forward.params = params;
  return difference(&o, forward_by_loop(&as_forward).o);
}

/// Appends and decodes in several steps. The paged cache uses one call per step, and the contiguous cache uses two.
static void test_steps(void) {
  const int64_t steps[] = {5, 1, 3};
  caches* c = new_caches();
  attend_params causal;
  attend_params_init(&causal, sizeof causal);
  causal.causal = 1;
  for (size_t n = 0; n < sizeof steps / sizeof steps[0]; ++n) {
    attend_tensor k = new_tensor(ATTEND_F32, kSequences, kHeadsK, steps[n], kColumns);
    attend_tensor v = new_tensor(ATTEND_F32, kSequences, kHeadsK, steps[n], kColumns);
    attend_tensor q = new_bshd_tensor(ATTEND_F32, kSequences, kHeads, steps[n], kColumns);
    attend_tensor o = new_output(ATTEND_F32, kSequences, kHeads, steps[n], kColumns);
    attend_tensor lse = new_output(ATTEND_F32, kSequences, kHeads, steps[n], 1);
    attend_append_call append;
    attend_decode_call decode;
    attend_append_call_init(&append, sizeof append);
    append.k = &k;
    append.v = &v;
    append.k_cache = &c->k_rows;
    append.v_cache = &c->v_rows;
    append.cache = &c->rows;
    CHECK_OK(attend_append(&append, &test_error));
    append.k_cache = &c->k_pages;
    append.v_cache = &c->v_pages;
    append.cache = &c->paged;
    attend_decode_call_init(&decode, sizeof decode);
    decode.q = &q;
    decode.k_cache = &c->k_pages;
    decode.v_cache = &c->v_pages;
    decode.o = &o;
    decode.lse = &lse;
    decode.cache = &c->paged;
    CHECK_OK(attend_append_and_decode(&append, &decode, &test_error));
    for (int s = 0; s < kSequences; ++s) c->lengths[s] += (int32_t)steps[n];
    for (int s = 0; s < kSequences; ++s) {
      CHECK(difference_of_sequence(&decode, c, s, c->lengths[s], &causal) <= 1e-5);
    }
    CHECK(isfinite(element(&lse, 1, 1, 0, 0)));
  }
}

static void test_decode_options(void) {
  caches* c = new_caches();
  attend_tensor q = new_tensor(ATTEND_F32, kSequences, kHeads, 2, kColumns);
  attend_tensor o = new_output(ATTEND_F32, kSequences, kHeads, 2, kColumns);
  attend_tensor lse = new_output(ATTEND_F32, kSequences, kHeads, 2, 1);
  attend_tensor lse2 = new_output(ATTEND_F32, kSequences, kHeads, 2, 1);
  attend_tensor sinks = new_tensor(ATTEND_F32, 1, kHeads, 1, 1), slopes = new_tensor(ATTEND_F32, 1, kHeads, 1, 1);
  attend_decode_params params;
  attend_params same;
  attend_decode_call decode;
  attend_decode_params_init(&params, sizeof params);
  CHECK(params.causal == 1 && params.window_left == -1 && params.window_right == -1);
  params.scale = 0.4;
  params.has_scale = 1;
  params.causal = 0;
  params.window_left = 7;
  params.softcap = 2;
  params.sinks = &sinks;
  params.alibi_slopes = &slopes;
  params.compute = "cpu";
  attend_params_init(&same, sizeof same);
  same.scale = 0.4;
  same.has_scale = 1;
  same.window_left = 7;
  same.softcap = 2;
  same.sinks = &sinks;
  same.alibi_slopes = &slopes;
  attend_decode_call_init(&decode, sizeof decode);
  decode.q = &q;
  decode.k_cache = &c->k_rows;
  decode.v_cache = &c->v_rows;
  decode.o = &o;
  decode.lse = &lse;
  decode.cache = &c->rows;
  decode.params = &params;
  c->lengths[0] = 11;
  c->lengths[1] = -1;  // the sequence is dead
  CHECK_OK(attend_decode(&decode, &test_error));
  CHECK(difference_of_sequence(&decode, c, 0, 11, &same) <= 1e-5);
  CHECK(element(&o, 1, 0, 0, 0) == 0 && element(&lse, 1, 0, 0, 0) == -INFINITY);
  params.lse_base2 = 1;
  decode.lse = &lse2;
  CHECK_OK(attend_decode(&decode, &test_error));
  CHECK(fabs(element(&lse2, 0, 1, 1, 0) - element(&lse, 0, 1, 1, 0) / log(2.0)) <= 1e-5);
  decode.cache = NULL;  // without a cache index, every sequence uses its full cache row
  CHECK_OK(attend_decode(&decode, &test_error));
  CHECK(difference_of_sequence(&decode, c, 1, kCapacity, &same) <= 1e-5);
}

/// Appends one row at position 2. Applies an RMS norm and a rotation by 90 degrees.
static void test_rotary_and_norm(void) {
  caches* c = new_caches();
  attend_tensor k = new_tensor(ATTEND_F32, kSequences, kHeadsK, 1, kColumns);
  attend_tensor cosines = new_tensor(ATTEND_F32, 1, 1, 3, 2), sines = new_tensor(ATTEND_F32, 1, 1, 3, 2);
  attend_tensor weight = new_tensor(ATTEND_F32, 1, 1, 1, kColumns);
  // The second slot is out of range, so nothing is written for the second sequence.
  const int64_t slots[kSequences] = {2, 7 * kCapacity};
  const int32_t positions[kSequences] = {2, 2};
  attend_rotary rotary;
  attend_append_call append;
  double square = 0, x[kColumns];
  *f32_place(&cosines, 0, 0, 2, 0) = *f32_place(&cosines, 0, 0, 2, 1) = 0;
  *f32_place(&sines, 0, 0, 2, 0) = *f32_place(&sines, 0, 0, 2, 1) = 1;
  attend_rotary_init(&rotary, sizeof rotary);
  rotary.cos = &cosines;
  rotary.sin = &sines;
  rotary.interleaved = 1;
  rotary.first_column = 2;
  attend_append_call_init(&append, sizeof append);
  CHECK(append.norm_eps == 1e-6 && append.query_positions == ATTEND_POSITIONS_LAST);
  append.k = &k;
  append.k_cache = &c->k_rows;
  append.cache = &c->rows;
  append.rotary = &rotary;
  append.k_norm = &weight;
  append.norm_eps = 0.25;
  append.slot_mapping = slots;
  append.positions = positions;
  CHECK_OK(attend_append(&append, &test_error));
  for (int d = 0; d < kColumns; ++d) square += element(&k, 0, 0, 0, d) * element(&k, 0, 0, 0, d);
  for (int d = 0; d < kColumns; ++d) {
    x[d] = element(&k, 0, 0, 0, d) / sqrt(square / kColumns + 0.25) * element(&weight, 0, 0, 0, d);
  }
  for (int d = 0; d < kColumns; ++d) {
    const double wanted = d < 2 || d > 5 ? x[d] : d % 2 == 0 ? -x[d + 1] : x[d - 1];
    CHECK(fabs(element(&c->k_rows, 0, 0, 2, d) - wanted) <= 1e-5);
  }
}

static void test_quantized_cache(void) {
  attend_tensor k = new_tensor(ATTEND_F32, 1, kHeadsK, 3, kColumns);
  attend_tensor cache = new_output(ATTEND_I8, 1, kHeadsK, 3, kColumns);
  attend_tensor descale = new_tensor(ATTEND_F32, 1, 1, 1, 1);
  const int32_t length = 0;
  attend_cache_index index;
  attend_append_call append;
  *f32_place(&descale, 0, 0, 0, 0) = 0.01F;
  attend_cache_index_init(&index, sizeof index);
  index.seqlens_k = &length;
  index.k_descale = &descale;
  attend_append_call_init(&append, sizeof append);
  append.k = &k;
  append.k_cache = &cache;
  append.cache = &index;
  CHECK_OK(attend_append(&append, &test_error));
  for (int n = 0; n < 3 * kColumns; ++n) {
    const double x = element(&k, 0, 0, n / kColumns, n % kColumns);
    CHECK(fabs(((const signed char*)cache.data)[n] * 0.01 - x) <= 0.0051);
  }
}

/// Merging the states of both halves of the keys must give attention over all keys.
static void test_merge(void) {
  attend_tensor q = new_tensor(ATTEND_F32, 1, kHeads, 6, kColumns);
  attend_tensor k = new_tensor(ATTEND_F32, 1, kHeads, 20, kColumns);
  attend_tensor v = new_tensor(ATTEND_F32, 1, kHeads, 20, kColumns);
  attend_tensor sinks = new_tensor(ATTEND_F32, 1, kHeads, 1, 1);
  attend_tensor o[3], lse[3];
  attend_partial_state states[2];
  attend_forward_call call;
  attend_params params;
  attend_merge_call merge;
  attend_forward_call_init(&call, sizeof call);
  for (int n = 0; n < 3; ++n) {
    o[n] = new_output(ATTEND_F32, 1, kHeads, 6, kColumns);
    lse[n] = new_output(ATTEND_F32, 1, kHeads, 6, 1);
  }
  for (int n = 0; n < 2; ++n) {
    attend_tensor half_k = k, half_v = v;
    half_k.shape[2] = half_v.shape[2] = 10;
    half_k.data = f32_place(&k, 0, 0, 10 * n, 0);
    half_v.data = f32_place(&v, 0, 0, 10 * n, 0);
    call.q = &q;
    call.k = &half_k;
    call.v = &half_v;
    call.o = &o[n];
    call.lse = &lse[n];
    CHECK_OK(attend_forward(&call, &test_error));
    states[n].o = &o[n];
    states[n].lse = &lse[n];
  }
  attend_merge_call_init(&merge, sizeof merge);
  merge.states = states;
  merge.num_states = 2;
  merge.o = &o[2];
  merge.lse = &lse[2];
  merge.sinks = &sinks;
  CHECK_OK(attend_merge(&merge, &test_error));
  attend_params_init(&params, sizeof params);
  params.sinks = &sinks;
  call.k = &k;
  call.v = &v;
  call.params = &params;
  const oracle wanted = forward_by_loop(&call);
  CHECK(difference(&o[2], wanted.o) <= 1e-5);
  CHECK(difference(&lse[2], wanted.lse) <= 1e-5);
}

int main(void) {
  test_steps();
  test_decode_options();
  test_rotary_and_norm();
  test_quantized_cache();
  test_merge();
  return finish("serving");
}
