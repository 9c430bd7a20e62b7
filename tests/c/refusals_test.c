// Tests the error path of every function: its status, its message, and that it writes nothing.
#include <string.h>

#include "support.h"

static const char kNoSinks[] = "sinks: given, compute 'cpu_naive' allows none";

static attend_tensor q, k, v, o, lse, dout, dq, dk, dv, sinks;
static attend_params params;
static attend_forward_call forward;
static attend_backward_call backward;

/// Sets up valid calls. Each test makes one of them invalid.
static void reset(void) {
  attend_params_init(&params, sizeof params);
  attend_forward_call_init(&forward, sizeof forward);
  forward.q = &q;
  forward.k = &k;
  forward.v = &v;
  forward.o = &o;
  forward.lse = &lse;
  forward.params = &params;
  attend_backward_call_init(&backward, sizeof backward);
  backward.q = &q;
  backward.k = &k;
  backward.v = &v;
  backward.o = &o;
  backward.lse = &lse;
  backward.dout = &dout;
  backward.dq = &dq;
  backward.dk = &dk;
  backward.dv = &dv;
  backward.params = &params;
}

static void make_tensors(void) {
  q = new_tensor(ATTEND_F32, 2, 4, 9, 16);
  k = new_tensor(ATTEND_F32, 2, 2, 11, 16);
  v = new_tensor(ATTEND_F32, 2, 2, 11, 16);
  o = new_output(ATTEND_F32, 2, 4, 9, 16);
  lse = new_output(ATTEND_F32, 2, 4, 9, 1);
  sinks = new_tensor(ATTEND_F32, 1, 4, 1, 1);
  dout = new_tensor(ATTEND_F32, 2, 4, 9, 16);
  dq = new_output(ATTEND_F32, 2, 4, 9, 16);
  dk = new_output(ATTEND_F32, 2, 2, 11, 16);
  dv = new_output(ATTEND_F32, 2, 2, 11, 16);
}

#define FORWARD_REFUSED(status, message)                                   \
  do {                                                                     \
    CHECK_REFUSED(attend_forward(&forward, &test_error), status, message); \
    CHECK(attend_forward(&forward, NULL) == (status));                     \
    CHECK(is_untouched(&o) && is_untouched(&lse));                         \
    reset();                                                               \
  } while (0)

static void test_pointers(void) {
  CHECK_REFUSED(attend_forward(NULL, &test_error), ATTEND_INVALID_ARGUMENT, "call: null, allowed a struct");
  CHECK_REFUSED(attend_backward(NULL, &test_error), ATTEND_INVALID_ARGUMENT, "call: null, allowed a struct");
  forward.q = NULL;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "q: null, allowed a tensor");
  forward.o = NULL;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "o: null, allowed a tensor");
  k.data = NULL;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "k: null data with shape (2, 2, 11, 16)");
  k = new_tensor(ATTEND_F32, 2, 2, 11, 16);
  backward.dv = NULL;
  CHECK_REFUSED(attend_backward(&backward, &test_error), ATTEND_INVALID_ARGUMENT, "dv: null, allowed a tensor");
  reset();
  backward.lse = NULL;
  CHECK_REFUSED(attend_backward(&backward, &test_error), ATTEND_INVALID_ARGUMENT, "lse: null, allowed a tensor");
  CHECK(is_untouched(&dq) && is_untouched(&dk) && is_untouched(&dv));
  reset();
}

static void test_struct_sizes(void) {
  struct {
    attend_params params;
    int32_t newer[2];
  } larger = {{0}, {0}};
  forward.struct_size = 0;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "call.struct_size: 0, allowed 64 to 4096");
  backward.struct_size = sizeof backward - 1;
  CHECK_REFUSED(attend_backward(&backward, &test_error), ATTEND_INVALID_ARGUMENT,
                "call.struct_size: 119, allowed 120 to 4096");
  reset();
  params.struct_size = (size_t)-1;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "params.struct_size: 18446744073709551615, allowed 152 to 4096");
  attend_params_init(&larger.params, sizeof larger);
  forward.params = &larger.params;
  larger.newer[1] = 1 << 8;
  FORWARD_REFUSED(ATTEND_UNSUPPORTED,
                  "params.struct_size: 160 with byte 157 not 0, allowed 0 beyond the 152 bytes that "
                  "attend " ATTEND_VERSION_STRING " defines");
  larger.newer[1] = 0;
  forward.params = &larger.params;
  CHECK_OK(attend_forward(&forward, &test_error));
  o = new_output(ATTEND_F32, 2, 4, 9, 16);
  lse = new_output(ATTEND_F32, 2, 4, 9, 1);
  memset(&larger, 0xff, sizeof larger);
  // 12 is the size of an older caller's struct; nothing after its end may be written.
  attend_params_init(&larger.params, 12);
  CHECK(larger.params.struct_size == 12 && larger.params.has_scale == -1 && larger.newer[0] == -1);
  attend_params_init(NULL, sizeof larger);
  reset();
}

static void test_values(void) {
  attend_varlen varlen;
  k.shape[3] = 15;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT,
                  "k: shape (2, 2, 11, 15), allowed (batch of q, num_heads_k, seqlen_k, head_dim of q) = "
                  "(2, any, any, 16)");
  k.shape[3] = 16;
  q.dtype = 7;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "q: dtype 7, allowed 0 to 6");
  q.dtype = ATTEND_F8E4M3;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "q: dtype f8e4m3, allowed f32, f16, bf16 (f64 with compute 'reference')");
  q.dtype = ATTEND_F32;
  v.device_type = -1;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "v: device_type -1, allowed 0 to 1");
  v.device_type = ATTEND_CPU;
  lse.reserved = 1;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "lse.reserved: 1, allowed 0");
  lse.reserved = 0;
  params.causal = 2;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "causal: 2, allowed 0 or 1");
  params.reserved = 5;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "params.reserved: 5, allowed 0");
  params.window_left = -2;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "window_left: -2, allowed >= 0, or -1 for open");
  params.dropout_p = 1;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "dropout_p: 1, allowed 0 <= dropout_p < 1");
  params.compute = "none";
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "compute: 'none', allowed auto, cpu, reference, cpu_naive");
  attend_varlen_init(&varlen, sizeof varlen);
  params.varlen = &varlen;
  varlen.struct_size = 1;
  FORWARD_REFUSED(ATTEND_INVALID_ARGUMENT, "varlen.struct_size: 1, allowed 48 to 4096");
  params.compute = "cpu_naive";
  params.sinks = &sinks;
  CHECK_REFUSED(attend_backward(&backward, &test_error), ATTEND_UNSUPPORTED, kNoSinks);
  CHECK(is_untouched(&dq));
  reset();
}

static void test_plans(void) {
  attend_plan *plan = NULL, *const untouched = plan;
  const char *name = "kept";
  size_t bytes = 7;
  char text[8] = "kept";
  CHECK_REFUSED(attend_plan_forward(&forward, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "plan: null, allowed an address to write to");
  CHECK_REFUSED(attend_plan_backward(NULL, &plan, &test_error), ATTEND_INVALID_ARGUMENT,
                "call: null, allowed a struct");
  forward.v = NULL;
  CHECK_REFUSED(attend_plan_forward(&forward, &plan, &test_error), ATTEND_INVALID_ARGUMENT,
                "v: null, allowed a tensor");
  CHECK(plan == untouched);
  reset();
  CHECK_REFUSED(attend_plan_compute(NULL, &name, &test_error), ATTEND_INVALID_ARGUMENT, "plan: null, allowed a plan");
  CHECK_REFUSED(attend_plan_workspace_bytes(NULL, &bytes, &test_error), ATTEND_INVALID_ARGUMENT,
                "plan: null, allowed a plan");
  CHECK_REFUSED(attend_plan_prepare(NULL, &test_error), ATTEND_INVALID_ARGUMENT, "plan: null, allowed a plan");
  CHECK_REFUSED(attend_plan_run(NULL, &test_error), ATTEND_INVALID_ARGUMENT, "plan: null, allowed a plan");
  CHECK_REFUSED(attend_plan_run_in(NULL, NULL, 0, &test_error), ATTEND_INVALID_ARGUMENT, "plan: null, allowed a plan");
  CHECK_REFUSED(attend_plan_explain(NULL, text, sizeof text, &bytes, &test_error), ATTEND_INVALID_ARGUMENT,
                "plan: null, allowed a plan");
  CHECK(strcmp(name, "kept") == 0 && bytes == 7 && strcmp(text, "kept") == 0);
  params.compute = "cpu_naive";  // this backend does not support sinks, so the plan reports it and its runs are refused
  params.sinks = &sinks;
  CHECK_OK(attend_plan_backward(&backward, &plan, &test_error));
  CHECK_REFUSED(attend_plan_compute(plan, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "name: null, allowed an address to write to");
  CHECK_REFUSED(attend_plan_workspace_bytes(plan, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "bytes: null, allowed an address to write to");
  CHECK_REFUSED(attend_plan_compute(plan, &name, &test_error), ATTEND_UNSUPPORTED, kNoSinks);
  CHECK_REFUSED(attend_plan_prepare(plan, &test_error), ATTEND_UNSUPPORTED, kNoSinks);
  CHECK_REFUSED(attend_plan_run(plan, &test_error), ATTEND_UNSUPPORTED, kNoSinks);
  CHECK_REFUSED(attend_plan_run_in(plan, NULL, 0, &test_error), ATTEND_UNSUPPORTED, kNoSinks);
  CHECK(attend_plan_explain(plan, text, sizeof text, &bytes, &test_error) == ATTEND_INVALID_ARGUMENT);
  CHECK(strncmp(test_error.message, "text_bytes: 8, allowed ", 23) == 0 && bytes > 8 && strcmp(text, "kept") == 0);
  CHECK_REFUSED(attend_plan_explain(plan, NULL, 3, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "text: null, allowed with text_bytes 0, not 3");
  attend_plan_free(plan);
  reset();
}

static void test_queries(void) {
  attend_backend_info info;
  attend_backend_info_init(&info, sizeof info);
  CHECK_REFUSED(attend_num_backends(NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "count: null, allowed an address to write to");
  CHECK_REFUSED(attend_get_backend(0, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "info: null, allowed an address to write to");
  CHECK(attend_get_backend(1000, &info, &test_error) == ATTEND_INVALID_ARGUMENT);
  CHECK(strncmp(test_error.message, "index: 1000, allowed 0 to ", 26) == 0 && info.name == NULL);
  info.struct_size = 8;
  CHECK_REFUSED(attend_get_backend(0, &info, &test_error), ATTEND_INVALID_ARGUMENT,
                "info.struct_size: 8, allowed 32 to 4096");
  CHECK_REFUSED(attend_cpu_threads(NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "threads: null, allowed an address to write to");
  CHECK_REFUSED(attend_set_cpu_threads(-1, &test_error), ATTEND_INVALID_ARGUMENT, "threads: -1, allowed >= 0");
  CHECK_REFUSED(attend_cpu_simd_target(NULL, 1, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "text: null, allowed with text_bytes 0, not 1");
  CHECK_REFUSED(attend_cpu_bf16_unit(NULL, 1, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "text: null, allowed with text_bytes 0, not 1");
}

static void test_decode(void) {
  attend_decode_params decode_params;
  attend_cache_index cache;
  attend_page_table table;
  attend_decode_call decode;
  attend_decode_params_init(&decode_params, sizeof decode_params);
  attend_cache_index_init(&cache, sizeof cache);
  attend_page_table_init(&table, sizeof table);
  attend_decode_call_init(&decode, sizeof decode);
  CHECK_REFUSED(attend_decode(NULL, &test_error), ATTEND_INVALID_ARGUMENT, "call: null, allowed a struct");
  CHECK_REFUSED(attend_decode(&decode, &test_error), ATTEND_INVALID_ARGUMENT, "q: null, allowed a tensor");
  decode.q = &q;
  decode.k_cache = &k;
  decode.v_cache = &v;
  decode.o = &o;
  decode.params = &decode_params;
  decode.cache = &cache;
  decode_params.lse_base2 = 3;
  CHECK_REFUSED(attend_decode(&decode, &test_error), ATTEND_INVALID_ARGUMENT, "lse_base2: 3, allowed 0 or 1");
  decode_params.lse_base2 = 0;
  decode_params.max_seqlen_q = 4;
  CHECK_REFUSED(attend_decode(&decode, &test_error), ATTEND_INVALID_ARGUMENT,
                "max_seqlen_q: 4 without cu_seqlens_q, allowed with it only");
  decode_params.struct_size = 3;
  CHECK_REFUSED(attend_decode(&decode, &test_error), ATTEND_INVALID_ARGUMENT,
                "params.struct_size: 3, allowed 112 to 4096");
  decode.params = NULL;
  cache.page_table = &table;
  table.num_rows = 1;
  table.pages_per_row = 1;
  CHECK_REFUSED(attend_decode(&decode, &test_error), ATTEND_INVALID_ARGUMENT, "page_table: null pages");
  table.struct_size = 39;
  CHECK_REFUSED(attend_decode(&decode, &test_error), ATTEND_INVALID_ARGUMENT,
                "page_table.struct_size: 39, allowed 40 to 4096");
  cache.struct_size = 9;
  CHECK_REFUSED(attend_decode(&decode, &test_error), ATTEND_INVALID_ARGUMENT,
                "cache.struct_size: 9, allowed 56 to 4096");
  CHECK(is_untouched(&o));
}

static void test_append(void) {
  attend_decode_call decode;
  attend_append_call append;
  attend_rotary rotary;
  attend_decode_call_init(&decode, sizeof decode);
  attend_append_call_init(&append, sizeof append);
  attend_rotary_init(&rotary, sizeof rotary);
  CHECK_REFUSED(attend_append(NULL, &test_error), ATTEND_INVALID_ARGUMENT, "call: null, allowed a struct");
  CHECK_REFUSED(attend_append(&append, &test_error), ATTEND_INVALID_ARGUMENT, "k: null, allowed a tensor");
  append.k = &k;
  append.k_cache = &o;
  append.query_positions = 3;
  CHECK_REFUSED(attend_append(&append, &test_error), ATTEND_INVALID_ARGUMENT, "query_positions: 3, allowed 0 to 2");
  append.query_positions = 0;
  append.rotary = &rotary;
  CHECK_REFUSED(attend_append(&append, &test_error), ATTEND_INVALID_ARGUMENT, "rotary.cos: null, allowed a tensor");
  append.rotary = NULL;
  CHECK_REFUSED(attend_append(&append, &test_error), ATTEND_INVALID_ARGUMENT,
                "k_cache: shape (2, 4, 9, 16), allowed (cache rows or pages, num_heads_k of k, keys, head_dim of k) = "
                "(any, 2, any, 16)");
  CHECK_REFUSED(attend_append_and_decode(NULL, &decode, &test_error), ATTEND_INVALID_ARGUMENT,
                "append: null, allowed a struct");
  CHECK_REFUSED(attend_append_and_decode(&append, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "decode: null, allowed a struct");
  CHECK(is_untouched(&o));
}

static void test_merge(void) {
  attend_merge_call merge;
  attend_partial_state state = {0};
  attend_merge_call_init(&merge, sizeof merge);
  CHECK_REFUSED(attend_merge(NULL, &test_error), ATTEND_INVALID_ARGUMENT, "call: null, allowed a struct");
  merge.o = &o;
  CHECK_REFUSED(attend_merge(&merge, &test_error), ATTEND_INVALID_ARGUMENT, "states: 0, allowed at least 1");
  merge.num_states = 1;
  CHECK_REFUSED(attend_merge(&merge, &test_error), ATTEND_INVALID_ARGUMENT, "states: null, allowed 1 of them");
  merge.states = &state;
  CHECK_REFUSED(attend_merge(&merge, &test_error), ATTEND_INVALID_ARGUMENT, "states[0].o: null, allowed a tensor");
  merge.num_states = -1;
  CHECK_REFUSED(attend_merge(&merge, &test_error), ATTEND_INVALID_ARGUMENT, "num_states: -1, allowed >= 1");
  CHECK(is_untouched(&o));
}

int main(void) {
  make_tensors();
  reset();
  test_pointers();
  test_struct_sizes();
  test_values();
  test_plans();
  test_queries();
  test_decode();
  test_append();
  test_merge();
  return finish("refusals");
}
