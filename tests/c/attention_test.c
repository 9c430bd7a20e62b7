// Compares forward, backward, plans and queries of the C interface with a loop in double.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { kHeads = 4, kHeadsK = 2, kColumns = 24, kColumnsV = 17 };

/// The arguments of forward and backward with their tensors.
typedef struct {
  attend_tensor q, k, v, o, lse, dout, dlse, dq, dk, dv;
  attend_params params;
  attend_forward_call forward;
  attend_backward_call backward;
} passes;

/// Creates all tensors. q and v have the layout (batch, tokens, heads, columns), the other tensors have heads before
/// tokens. A call that confuses strides therefore fails.
static passes* new_passes(int32_t dtype, int64_t batch, int64_t rows, int64_t keys) {
  passes* p = (passes*)keep(sizeof(passes));
  p->q = new_bshd_tensor(dtype, batch, kHeads, rows, kColumns);
  p->k = new_tensor(dtype, batch, kHeadsK, keys, kColumns);
  p->v = new_bshd_tensor(dtype, batch, kHeadsK, keys, kColumnsV);
  p->o = new_output(dtype, batch, kHeads, rows, kColumnsV);
  p->lse = new_output(ATTEND_F32, batch, kHeads, rows, 1);
  p->dout = new_tensor(dtype, batch, kHeads, rows, kColumnsV);
  p->dlse = new_tensor(ATTEND_F32, batch, kHeads, rows, 1);
  p->dq = new_output(dtype, batch, kHeads, rows, kColumns);
  p->dk = new_output(dtype, batch, kHeadsK, keys, kColumns);
  p->dv = new_output(dtype, batch, kHeadsK, keys, kColumnsV);
  attend_params_init(&p->params, sizeof p->params);
  attend_forward_call_init(&p->forward, sizeof p->forward);
  p->forward.q = &p->q;
  p->forward.k = &p->k;
  p->forward.v = &p->v;
  p->forward.o = &p->o;
  p->forward.lse = &p->lse;
  p->forward.params = &p->params;
  attend_backward_call_init(&p->backward, sizeof p->backward);
  p->backward.q = &p->q;
  p->backward.k = &p->k;
  p->backward.v = &p->v;
  p->backward.o = &p->o;
  p->backward.lse = &p->lse;
  p->backward.dout = &p->dout;
  p->backward.dlse = &p->dlse;
  p->backward.dq = &p->dq;
  p->backward.dk = &p->dk;
  p->backward.dv = &p->dv;
  p->backward.params = &p->params;
  return p;
}

static void check_passes(passes* p, double budget) {
  CHECK_OK(attend_forward(&p->forward, &test_error));
  CHECK_OK(attend_backward(&p->backward, &test_error));
  const oracle wanted = backward_by_loop(&p->backward);
  CHECK(difference(&p->o, wanted.o) <= budget);
  CHECK(difference(&p->lse, wanted.lse) <= 1e-5);
  CHECK(difference(&p->dq, wanted.dq) <= budget);
  CHECK(difference(&p->dk, wanted.dk) <= budget);
  CHECK(difference(&p->dv, wanted.dv) <= budget);
  if (p->backward.dbias != NULL) CHECK(difference(p->backward.dbias, wanted.dbias) <= budget);
  if (p->backward.dsinks != NULL) CHECK(difference(p->backward.dsinks, wanted.dsinks) <= budget);
}

static void test_sizes_and_masks(void) {
  const int64_t sizes[][3] = {{2, 33, 33}, {1, 5, 70}, {3, 1, 1}, {1, 40, 7}, {2, 9, 0}, {2, 0, 9}, {0, 9, 9}};
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; ++n) {
    for (int mask = 0; mask < 3; ++mask) {
      passes* p = new_passes(ATTEND_F32, sizes[n][0], sizes[n][1], sizes[n][2]);
      p->params.causal = mask == 1;
      if (mask == 2) {
        p->params.window_left = 6;
        p->params.window_right = 2;
      }
      check_passes(p, 1e-5);
    }
  }
  check_passes(new_passes(ATTEND_BF16, 2, 33, 40), 2e-2);
}

static void test_options(void) {
  passes* p = new_passes(ATTEND_F32, 2, 20, 31);
  attend_tensor slopes = new_tensor(ATTEND_F32, 2, kHeads, 1, 1);
  attend_tensor mask = new_output(ATTEND_BOOL, 1, 1, 20, 31);
  for (int n = 0; n < 20 * 31; ++n) ((unsigned char*)mask.data)[n] = n % 3 != 0;
  p->params.scale = -0.3;
  p->params.has_scale = 1;
  p->params.softcap = 1.5;
  p->params.alibi_slopes = &slopes;
  p->params.mask = &mask;
  p->params.compute = "cpu";
  p->params.deterministic = 1;
  check_passes(p, 1e-5);

  p = new_passes(ATTEND_F32, 1, 20, 31);
  attend_tensor bias = new_tensor(ATTEND_F32, 1, kHeads, 20, 31), sinks = new_tensor(ATTEND_F32, 1, kHeads, 1, 1);
  attend_tensor dbias = new_output(ATTEND_F32, 1, kHeads, 20, 31), dsinks = new_output(ATTEND_F32, 1, kHeads, 1, 1);
  p->params.causal = 1;
  p->params.bias = &bias;
  p->params.sinks = &sinks;
  p->backward.dbias = &dbias;
  p->backward.dsinks = &dsinks;
  check_passes(p, 1e-5);
  p->params.compute = "reference";
  check_passes(p, 1e-6);
}

static void test_null_params_are_the_defaults(void) {
  passes* p = new_passes(ATTEND_F32, 1, 12, 15);
  p->forward.params = NULL;
  p->backward.params = NULL;
  p->backward.dlse = NULL;
  check_passes(p, 1e-5);
  p->forward.lse = NULL;
  CHECK(attend_forward(&p->forward, NULL) == ATTEND_OK);
}

static int same_o(const passes* a, const passes* b) {
  return memcmp(a->o.data, b->o.data, (size_t)(a->o.shape[0] * a->o.stride[0]) * sizeof(float)) == 0;
}

static void test_dropout(void) {
  const uint64_t state[2] = {17, 4};
  passes *first = new_passes(ATTEND_F32, 1, 30, 30), *other = (passes*)keep(sizeof(passes));
  first->params.dropout_p = 0.4;
  first->params.seed = 17;
  first->params.offset = 4;
  CHECK_OK(attend_forward(&first->forward, &test_error));
  CHECK_OK(attend_backward(&first->backward, &test_error));
  *other = *first;
  other->o = new_output(ATTEND_F32, 1, kHeads, 30, kColumnsV);
  other->forward.o = &other->o;
  other->forward.params = &other->params;
  other->params.seed = 1;
  other->params.offset = 1;
  CHECK_OK(attend_forward(&other->forward, &test_error));
  CHECK(!same_o(first, other));
  other->params.philox_state = state;
  CHECK_OK(attend_forward(&other->forward, &test_error));
  CHECK(same_o(first, other));
}

static void test_varlen(void) {
  // Two packed sequences with 5 and 9 rows and with 8 and 3 keys are compared with separate calls.
  const int32_t rows[3] = {0, 5, 14}, keys[3] = {0, 8, 11};
  passes* p = new_passes(ATTEND_F32, 1, 14, 11);
  attend_varlen varlen;
  attend_varlen_init(&varlen, sizeof varlen);
  varlen.cu_seqlens_q = rows;
  varlen.cu_seqlens_k = keys;
  varlen.num_sequences = 2;
  varlen.max_seqlen_q = 9;
  varlen.max_seqlen_k = 8;
  p->params.varlen = &varlen;
  p->params.causal = 1;
  CHECK_OK(attend_forward(&p->forward, &test_error));
  p->params.varlen = NULL;
  for (int s = 0; s < 2; ++s) {
    attend_tensor q = p->q, k = p->k, v = p->v, o = p->o;
    q.data = f32_place(&q, 0, 0, rows[s], 0);
    k.data = f32_place(&k, 0, 0, keys[s], 0);
    v.data = f32_place(&v, 0, 0, keys[s], 0);
    o.data = f32_place(&o, 0, 0, rows[s], 0);
    q.shape[2] = o.shape[2] = rows[s + 1] - rows[s];
    k.shape[2] = v.shape[2] = keys[s + 1] - keys[s];
    attend_forward_call call = p->forward;
    call.q = &q;
    call.k = &k;
    call.v = &v;
    CHECK(difference(&o, forward_by_loop(&call).o) <= 1e-5);
  }
}

static void test_plan(void) {
  passes* p = new_passes(ATTEND_F32, 2, 21, 21);
  attend_plan *forward = NULL, *backward = NULL;
  const char* name = NULL;
  size_t bytes = 99, needed = 0;
  char compute[] = "cpu";
  p->params.compute = compute;
  CHECK_OK(attend_plan_forward(&p->forward, &forward, &test_error));
  CHECK_OK(attend_plan_backward(&p->backward, &backward, &test_error));
  compute[0] = '?';  // this change has no effect, because the plan has copied the string
  CHECK_OK(attend_plan_compute(forward, &name, &test_error));
  CHECK(name != NULL && strcmp(name, "cpu") == 0);
  CHECK_OK(attend_plan_workspace_bytes(backward, &bytes, &test_error));
  CHECK(bytes == 0);
  CHECK_OK(attend_plan_prepare(forward, &test_error));
  CHECK_OK(attend_plan_run(forward, &test_error));
  CHECK_OK(attend_plan_run_in(backward, NULL, 0, &test_error));
  const oracle wanted = backward_by_loop(&p->backward);
  CHECK(difference(&p->o, wanted.o) <= 1e-5);
  CHECK(difference(&p->dk, wanted.dk) <= 1e-5);

  CHECK_OK(attend_plan_explain(forward, NULL, 0, &needed, &test_error));
  CHECK(needed > 2);
  char* text = (char*)keep(needed);
  CHECK_OK(attend_plan_explain(forward, text, needed, NULL, &test_error));
  CHECK(strlen(text) + 1 == needed);
  CHECK(strstr(text, "{\"compute\": \"cpu\", \"chosen\": true, \"lack\": \"\"") != NULL);
  CHECK(text[0] == '[' && text[needed - 2] == ']');
  attend_plan_free(forward);
  attend_plan_free(backward);
  attend_plan_free(NULL);
}

static void test_queries(void) {
  int32_t count = 0, threads = 0, found = 0, before = 0;
  char text[64];
  size_t needed = 0;
  CHECK_OK(attend_num_backends(&count, &test_error));
  CHECK(count >= 3);
  for (int32_t n = 0; n < count; ++n) {
    attend_backend_info info;
    attend_backend_info_init(&info, sizeof info);
    CHECK_OK(attend_get_backend(n, &info, &test_error));
    CHECK(info.struct_size == sizeof info && info.description[0] != '\0');
    if (strcmp(info.name, "cpu") == 0) found = info.device_type == ATTEND_CPU && info.has_backward == 1;
  }
  CHECK(found);
  CHECK_OK(attend_cpu_threads(&before, &test_error));
  CHECK_OK(attend_set_cpu_threads(3, &test_error));
  CHECK_OK(attend_cpu_threads(&threads, &test_error));
  CHECK(threads == 3);
  CHECK_OK(attend_set_cpu_threads(0, &test_error));
  CHECK_OK(attend_cpu_threads(&threads, &test_error));
  CHECK(threads == before);
  CHECK_OK(attend_cpu_simd_target(text, sizeof text, &needed, &test_error));
  CHECK(strlen(text) + 1 == needed);
  CHECK_OK(attend_cpu_bf16_unit(text, sizeof text, &needed, &test_error));
  CHECK(strlen(text) + 1 == needed);

  CHECK(strcmp(attend_version(), ATTEND_VERSION_STRING) == 0);
  CHECK(attend_version_number() == ATTEND_VERSION_NUMBER);
  CHECK(strcmp(attend_status_name(ATTEND_OK), "ok") == 0 && strcmp(attend_status_name(-7), "unknown status") == 0);
  CHECK(strcmp(attend_dtype_name(ATTEND_BF16), "bf16") == 0 && strcmp(attend_dtype_name(99), "?") == 0);
  CHECK(attend_dtype_bytes(ATTEND_F64) == 8 && attend_dtype_bytes(ATTEND_I8) == 1 && attend_dtype_bytes(-1) == 0);
}

static void test_tensor_views(void) {
  const int64_t shape[4] = {2, 3, 5, 7}, huge[4] = {1, INT64_MAX, INT64_MAX, 2};
  attend_tensor t;
  attend_tensor_init(&t, shape, ATTEND_F16, shape);
  CHECK(t.data == (const void*)shape && t.dtype == ATTEND_F16 && t.device_type == ATTEND_CPU && t.reserved == 0);
  CHECK(t.stride[0] == 105 && t.stride[1] == 35 && t.stride[2] == 7 && t.stride[3] == 1);
  attend_tensor_init_bshd(&t, NULL, ATTEND_F16, shape);
  CHECK(t.shape[1] == 3 && t.stride[0] == 105 && t.stride[1] == 7 && t.stride[2] == 21 && t.stride[3] == 1);
  attend_tensor_init(&t, NULL, ATTEND_F32, NULL);
  CHECK(t.shape[0] == 0 && t.shape[3] == 0);
  attend_tensor_init(&t, NULL, ATTEND_F32, huge);  // the strides must not overflow
  CHECK(t.stride[0] == (int64_t)1 << 62);
  attend_tensor_init(NULL, NULL, ATTEND_F32, shape);
}

int main(void) {
  test_sizes_and_masks();
  test_options();
  test_null_params_are_the_defaults();
  test_dropout();
  test_varlen();
  test_plan();
  test_queries();
  test_tensor_views();
  return finish("attention");
}
