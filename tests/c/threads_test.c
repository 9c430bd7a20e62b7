// Ten threads make calls at the same time. Each makes separate calls, and all use one shared plan. Each error must stay
// in its thread.
#include <pthread.h>
#include <string.h>

#include "support.h"

enum { kThreads = 10, kRounds = 20, kRows = 40, kColumns = 32 };

typedef struct {
  attend_tensor q, k, v, o;
  const double* wanted;
  const attend_plan* shared;  // plan of the first thread's call; all threads only read its inputs
  int number, faults;
} worker;

static void* work(void* argument) {
  worker* w = (worker*)argument;
  attend_error error;
  attend_forward_call call;
  attend_forward_call_init(&call, sizeof call);
  call.q = &w->q;
  call.k = &w->k;
  call.v = &w->v;
  for (int round = 0; round < kRounds; ++round) {
    size_t needed = 0;
    char text[64], wanted[64];
    attend_params params;
    attend_params_init(&params, sizeof params);
    call.o = &w->o;
    call.params = NULL;
    memset(w->o.data, 0xff, kRows * kColumns * sizeof(float));
    if (attend_forward(&call, &error) != ATTEND_OK || !(difference(&w->o, w->wanted) <= 1e-5)) ++w->faults;

    params.window_left = -2 - w->number;
    call.params = &params;
    sprintf(wanted, "window_left: %d, allowed >= 0, or -1 for open", -2 - w->number);
    if (attend_forward(&call, &error) != ATTEND_INVALID_ARGUMENT || strcmp(error.message, wanted) != 0) ++w->faults;

    if (attend_plan_explain(w->shared, NULL, 0, &needed, &error) != ATTEND_OK || needed < 3) ++w->faults;
    if (attend_cpu_simd_target(text, sizeof text, NULL, &error) != ATTEND_OK) ++w->faults;
  }
  return NULL;
}

int main(void) {
  static worker workers[kThreads];
  pthread_t threads[kThreads];
  attend_plan* plan = NULL;
  for (int n = 0; n < kThreads; ++n) {
    worker* w = &workers[n];
    attend_forward_call call;
    attend_forward_call_init(&call, sizeof call);
    w->number = n;
    w->q = new_tensor(ATTEND_F32, 1, 1, kRows, kColumns);
    w->k = new_tensor(ATTEND_F32, 1, 1, kRows, kColumns);
    w->v = new_tensor(ATTEND_F32, 1, 1, kRows, kColumns);
    w->o = new_output(ATTEND_F32, 1, 1, kRows, kColumns);
    call.q = &w->q;
    call.k = &w->k;
    call.v = &w->v;
    call.o = &w->o;
    if (n == 0) CHECK_OK(attend_plan_forward(&call, &plan, &test_error));
    w->wanted = forward_by_loop(&call).o;
    w->shared = plan;
  }
  for (int n = 0; n < kThreads; ++n) CHECK(pthread_create(&threads[n], NULL, work, &workers[n]) == 0);
  for (int n = 0; n < kThreads; ++n) {
    pthread_join(threads[n], NULL);
    CHECK(workers[n].faults == 0);
  }
  attend_plan_free(plan);
  return finish("threads");
}
