// Compares two kinds of rings with the loop in double over the full sequence: rings of threads, and rings whose
// messages are sent by functions of the caller.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { kRanks = 3, kTokens = 20, kHeads = 3, kColumns = 16, kChannels = 8 };

/// A message between two threads. All messages are in one list, which one lock protects.
typedef struct message {
  struct message* next;
  int32_t from, to, channel;
  int number;  ///< index among the messages with the same from, to and channel
  size_t size;
  unsigned char bytes[1];
} message;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static message* messages = NULL;
static int sent[kRanks][kRanks][kChannels], expected[kRanks][kRanks][kChannels];
static int open_requests = 0, failed = 0, send_returns = 0;

typedef struct {
  int32_t from, to, channel;
  int number;
  size_t size;
  void* bytes;
} request;

static int32_t send_message(void* user, int32_t to, int32_t channel, const void* bytes, size_t size, void** mark) {
  const int32_t from = *(const int32_t*)user;
  if (send_returns != 0) return send_returns;
  message* m = (message*)malloc(sizeof(message) + size);
  m->from = from;
  m->to = to;
  m->channel = channel;
  m->size = size;
  memcpy(m->bytes, bytes, size);
  pthread_mutex_lock(&lock);
  m->number = sent[from][to][channel]++;
  m->next = messages;
  messages = m;
  ++open_requests;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  // The mark is null on entry and stays null, which means that the message is already sent.
  return *mark == NULL ? 0 : 99;
}

static int32_t receive_message(void* user, int32_t from, int32_t channel, void* bytes, size_t size, void** mark) {
  const int32_t to = *(const int32_t*)user;
  request* r = (request*)malloc(sizeof(request));
  pthread_mutex_lock(&lock);
  r->from = from;
  r->to = to;
  r->channel = channel;
  r->number = expected[from][to][channel]++;
  r->size = size;
  r->bytes = bytes;
  ++open_requests;
  pthread_mutex_unlock(&lock);
  *mark = r;
  return 0;
}

/// Removes the message that matches a request from the list. @return 0 if there is none, -1 if it has another size
static int take(const request* r) {
  for (message** place = &messages; *place != NULL; place = &(*place)->next) {
    message* m = *place;
    if (m->from != r->from || m->to != r->to || m->channel != r->channel || m->number != r->number) continue;
    const int fits = m->size == r->size;
    if (fits) memcpy(r->bytes, m->bytes, r->size);
    *place = m->next;
    free(m);
    return fits ? 1 : -1;
  }
  return 0;
}

static int32_t wait_for(void* user, void* mark) {
  int taken = 1;
  (void)user;
  pthread_mutex_lock(&lock);
  --open_requests;
  if (mark != NULL) {
    while ((taken = take((const request*)mark)) == 0 && !failed) pthread_cond_wait(&changed, &lock);
  }
  pthread_mutex_unlock(&lock);
  free(mark);
  return taken == 1 ? 0 : 7;
}

static void abandon(void* user, void* mark) {
  (void)user;
  pthread_mutex_lock(&lock);
  --open_requests;
  pthread_mutex_unlock(&lock);
  free(mark);
}

static void tell_failure(void* user, const char* why) {
  (void)user;
  pthread_mutex_lock(&lock);
  failed = why[0] != '\0';
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static attend_ring_callbacks mailbox(int32_t* rank) {
  attend_ring_callbacks callbacks;
  attend_ring_callbacks_init(&callbacks, sizeof callbacks);
  callbacks.user = rank;
  callbacks.send = send_message;
  callbacks.receive = receive_message;
  callbacks.wait = wait_for;
  callbacks.abandon = abandon;
  callbacks.fail = tell_failure;
  return callbacks;
}

/// Indices of the tensors of both passes: inputs, then outputs of forward, then outputs of backward.
enum { kQ, kK, kV, kDout, kO, kLse, kDq, kDk, kDv, kTensors };

/// The arguments of one rank, and the results of its calls.
typedef struct {
  attend_ring* ring;
  attend_ring_params params;
  attend_params options;
  attend_tensor t[kTensors];
  attend_forward_call forward;
  attend_backward_call backward;
  int32_t status;
  attend_error error;
} rank_work;

static void* run_rank(void* argument) {
  rank_work* w = (rank_work*)argument;
  w->status = attend_ring_forward(w->ring, &w->forward, &w->params, &w->error);
  if (w->status == ATTEND_OK) w->status = attend_ring_backward(w->ring, &w->backward, &w->params, &w->error);
  return NULL;
}

static void point_to(const attend_tensor* t, attend_forward_call* forward, attend_backward_call* backward) {
  attend_forward_call_init(forward, sizeof *forward);
  attend_backward_call_init(backward, sizeof *backward);
  forward->q = backward->q = &t[kQ];
  forward->k = backward->k = &t[kK];
  forward->v = backward->v = &t[kV];
  forward->o = backward->o = &t[kO];
  forward->lse = backward->lse = &t[kLse];
  backward->dout = &t[kDout];
  backward->dq = &t[kDq];
  backward->dk = &t[kDk];
  backward->dv = &t[kDv];
}

static void make_whole(attend_tensor* t) {
  for (int n = 0; n < kTensors; ++n) {
    t[n] = n < kO ? new_tensor(ATTEND_F32, 1, kHeads, kTokens, kColumns)
                  : new_output(ATTEND_F32, 1, kHeads, kTokens, n == kLse ? 1 : kColumns);
  }
}

/// Distributes the rows to the ranks, runs all ranks at the same time, and gathers the results.
static void run_ranks(rank_work* ranks, attend_tensor* whole, int32_t sharding, int32_t algorithm) {
  pthread_t threads[kRanks];
  attend_shard_part part;
  attend_shard_part_init(&part, sizeof part);
  part.sharding = sharding;
  part.num_ranks = kRanks;
  for (part.rank = 0; part.rank < kRanks; ++part.rank) {
    rank_work* w = &ranks[part.rank];
    int64_t rows = 0;
    CHECK_OK(attend_shard_seqlen(&part, kTokens, &rows, &test_error));
    attend_params_init(&w->options, sizeof w->options);
    attend_ring_params_init(&w->params, sizeof w->params);
    w->options.causal = 1;
    w->params.sharding = sharding;
    w->params.algorithm = algorithm;
    point_to(w->t, &w->forward, &w->backward);
    w->forward.params = w->backward.params = &w->options;
    for (int n = 0; n < kTensors; ++n) {
      w->t[n] = new_output(ATTEND_F32, 1, kHeads, rows, whole[n].shape[3]);
      CHECK_OK(attend_shard(&part, &whole[n], &w->t[n], &test_error));
    }
  }
  for (int n = 0; n < kRanks; ++n) CHECK(pthread_create(&threads[n], NULL, run_rank, &ranks[n]) == 0);
  for (part.rank = 0; part.rank < kRanks; ++part.rank) {
    rank_work* w = &ranks[part.rank];
    pthread_join(threads[part.rank], NULL);
    CHECK(w->status == ATTEND_OK);
    if (w->status != ATTEND_OK) fprintf(stderr, "  rank %d: %s\n", (int)part.rank, w->error.message);
    for (int n = kO; n < kTensors; ++n) CHECK_OK(attend_unshard(&part, &w->t[n], &whole[n], &test_error));
  }
}

static void check_whole(const attend_tensor* whole) {
  attend_forward_call forward;
  attend_backward_call backward;
  attend_params causal;
  attend_params_init(&causal, sizeof causal);
  causal.causal = 1;
  point_to(whole, &forward, &backward);
  backward.params = &causal;
  const oracle wanted = backward_by_loop(&backward);
  CHECK(difference(&whole[kO], wanted.o) <= 1e-5);
  CHECK(difference(&whole[kLse], wanted.lse) <= 1e-5);
  CHECK(difference(&whole[kDq], wanted.dq) <= 1e-5);
  CHECK(difference(&whole[kDk], wanted.dk) <= 1e-5);
  CHECK(difference(&whole[kDv], wanted.dv) <= 1e-5);
}

static void test_thread_ring(void) {
  static rank_work ranks[kRanks];
  attend_ring* handles[kRanks];
  attend_tensor whole[kTensors];
  CHECK_OK(attend_make_thread_ring(kRanks, 60000, handles, &test_error));
  for (int n = 0; n < kRanks; ++n) {
    ranks[n].ring = handles[n];
    CHECK(attend_ring_rank(handles[n]) == n && attend_ring_size(handles[n]) == kRanks);
  }
  for (int32_t sharding = ATTEND_SHARDING_CONTIGUOUS; sharding <= ATTEND_SHARDING_STRIPED; ++sharding) {
    make_whole(whole);
    run_ranks(ranks, whole, sharding, ATTEND_RING_EXCHANGE);
    check_whole(whole);
  }
  make_whole(whole);
  run_ranks(ranks, whole, ATTEND_SHARDING_ZIGZAG, ATTEND_RING_ALL_TO_ALL);
  check_whole(whole);

  // A null argument on one rank must fail with the same message on all ranks. Otherwise the other ranks would wait for
  // that rank.
  pthread_t threads[kRanks];
  ranks[1].forward.q = NULL;
  for (int n = 0; n < kRanks; ++n) CHECK(pthread_create(&threads[n], NULL, run_rank, &ranks[n]) == 0);
  for (int n = 0; n < kRanks; ++n) {
    pthread_join(threads[n], NULL);
    CHECK_REFUSED((test_error = ranks[n].error, ranks[n].status), ATTEND_INVALID_ARGUMENT,
                  "q: null, allowed a tensor (rank 1)");
    attend_ring_free(handles[n]);
  }
}

static void test_callback_ring(void) {
  static rank_work ranks[kRanks];
  static int32_t numbers[kRanks] = {0, 1, 2};
  attend_tensor whole[kTensors];
  for (int32_t n = 0; n < kRanks; ++n) {
    const attend_ring_callbacks callbacks = mailbox(&numbers[n]);
    CHECK_OK(attend_make_callback_ring(n, kRanks, &callbacks, &ranks[n].ring, &test_error));
  }
  make_whole(whole);
  run_ranks(ranks, whole, ATTEND_SHARDING_STRIPED, ATTEND_RING_AUTOMATIC);
  check_whole(whole);
  CHECK(open_requests == 0 && messages == NULL && !failed);

  send_returns = 5;
  CHECK_REFUSED(attend_ring_forward(ranks[0].ring, &ranks[0].forward, &ranks[0].params, &test_error), ATTEND_INTERNAL,
                "callbacks.send: returned 5, allowed 0");
  CHECK(open_requests == 0);  // the ring has abandoned all pending requests
  for (int n = 0; n < kRanks; ++n) attend_ring_free(ranks[n].ring);
}

static void test_shards(void) {
  const int32_t offsets[3] = {0, 7, 12};
  attend_shard_part part;
  int64_t rows = 0, positions[8] = {0};
  attend_shard_part_init(&part, sizeof part);
  part.num_ranks = 3;
  CHECK_OK(attend_shard_seqlen(&part, 12, &rows, &test_error));
  CHECK_OK(attend_shard_positions(&part, 12, positions, rows, &test_error));
  CHECK(rows == 4 && positions[0] == 0 && positions[1] == 1 && positions[2] == 10 && positions[3] == 11);
  part.cu_seqlens = offsets;
  part.num_sequences = 2;
  part.sharding = ATTEND_SHARDING_STRIPED;
  CHECK_OK(attend_shard_seqlen(&part, 12, &rows, &test_error));
  CHECK_OK(attend_shard_positions(&part, 12, positions, rows, &test_error));
  CHECK(rows == 5 && positions[2] == 6 && positions[3] == 7 && positions[4] == 10);
  CHECK(strcmp(attend_sharding_name(ATTEND_SHARDING_ZIGZAG), "zigzag") == 0);
  CHECK(strcmp(attend_sharding_name(3), "?") == 0 && strcmp(attend_ring_algorithm_name(-1), "?") == 0);
  CHECK(strcmp(attend_ring_algorithm_name(ATTEND_RING_TWO_LEVEL), "two_level") == 0);
}

static void test_explanation(void) {
  attend_ring_problem problem;
  size_t needed = 0;
  attend_ring_problem_init(&problem, sizeof problem);
  problem.num_ranks = 4;
  problem.num_heads_q = problem.num_heads_k = 8;
  problem.seqlen_q = problem.seqlen_k = 4096;
  problem.head_dim = problem.head_dim_v = 64;
  CHECK_OK(attend_explain_ring(&problem, NULL, NULL, NULL, 0, &needed, &test_error));
  char* text = (char*)keep(needed);
  CHECK_OK(attend_explain_ring(&problem, NULL, NULL, text, needed, NULL, &test_error));
  CHECK(strstr(text, "\"algorithm\": \"exchange\"") != NULL && strstr(text, "\"chosen\": true") != NULL);
}

static void test_refusals(void) {
  attend_ring *ring = NULL, *rings[1] = {NULL};
  attend_ring_callbacks callbacks;
  attend_shard_part part;
  attend_ring_problem problem;
  int64_t rows = -5, positions[4];
  size_t needed = 3;
  CHECK_REFUSED(attend_make_thread_ring(0, 1000, rings, &test_error), ATTEND_INVALID_ARGUMENT,
                "num_ranks: 0, allowed >= 1");
  CHECK_REFUSED(attend_make_thread_ring(1, -1, rings, &test_error), ATTEND_INVALID_ARGUMENT,
                "timeout_ms: -1, allowed 0 to 2147483647");
  CHECK_REFUSED(attend_make_thread_ring(1, 0, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "ranks: null, allowed an address to write to");
  attend_ring_callbacks_init(&callbacks, sizeof callbacks);
  CHECK_REFUSED(attend_make_callback_ring(0, 2, NULL, &ring, &test_error), ATTEND_INVALID_ARGUMENT,
                "callbacks: null, allowed a struct");
  CHECK_REFUSED(attend_make_callback_ring(0, 2, &callbacks, &ring, &test_error), ATTEND_INVALID_ARGUMENT,
                "callbacks.send: none, allowed a function");
  CHECK_REFUSED(attend_make_callback_ring(2, 2, &callbacks, &ring, &test_error), ATTEND_INVALID_ARGUMENT,
                "rank: 2, allowed 0 to 1");
  CHECK(ring == NULL && rings[0] == NULL);
  CHECK(attend_ring_rank(NULL) == -1 && attend_ring_size(NULL) == -1);
  attend_ring_free(NULL);
  CHECK_REFUSED(attend_ring_forward(NULL, NULL, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "ring: null, allowed a rank of a ring");
  CHECK_REFUSED(attend_ring_backward(NULL, NULL, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "ring: null, allowed a rank of a ring");

  attend_shard_part_init(&part, sizeof part);
  CHECK_REFUSED(attend_shard_seqlen(NULL, 4, &rows, &test_error), ATTEND_INVALID_ARGUMENT,
                "part: null, allowed a struct");
  CHECK_REFUSED(attend_shard_seqlen(&part, 4, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "rows: null, allowed an address to write to");
  CHECK_REFUSED(attend_shard_positions(&part, 4, positions, 3, &test_error), ATTEND_INVALID_ARGUMENT,
                "num_positions: 3, allowed 4");
  CHECK_REFUSED(attend_shard_positions(&part, 4, NULL, 4, &test_error), ATTEND_INVALID_ARGUMENT,
                "positions: null, allowed an address to write to");
  CHECK_REFUSED(attend_shard(&part, NULL, NULL, &test_error), ATTEND_INVALID_ARGUMENT, "whole: null, allowed a tensor");
  CHECK_REFUSED(attend_unshard(&part, NULL, NULL, &test_error), ATTEND_INVALID_ARGUMENT,
                "local: null, allowed a tensor");
  part.sharding = 3;
  CHECK_REFUSED(attend_shard_seqlen(&part, 4, &rows, &test_error), ATTEND_INVALID_ARGUMENT,
                "sharding: 3, allowed 0 to 2");
  part.num_sequences = 1;
  part.sharding = 0;
  CHECK_REFUSED(attend_shard_seqlen(&part, 4, &rows, &test_error), ATTEND_INVALID_ARGUMENT,
                "num_sequences: 1 without cu_seqlens, allowed with it only");
  attend_ring_problem_init(&problem, sizeof problem);
  problem.dtype = 8;
  CHECK_REFUSED(attend_explain_ring(&problem, NULL, NULL, NULL, 0, &needed, &test_error), ATTEND_INVALID_ARGUMENT,
                "dtype: 8, allowed 0 to 6");
  CHECK(rows == -5 && needed == 3);
}

int main(void) {
  CHECK_OK(attend_set_cpu_threads(1, &test_error));
  test_thread_ring();
  test_callback_ring();
  test_shards();
  test_explanation();
  test_refusals();
  return finish("ring");
}
