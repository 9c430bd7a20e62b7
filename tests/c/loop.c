// Computes the formula of attend_params and its gradients in double.
#include <math.h>

#include "support.h"

typedef struct {
  attend_params params;
  const attend_tensor *q, *k, *v;
  int64_t batch, heads, group, rows, keys, columns, columns_v;
  double scale;
} problem;

static problem make_problem(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                            const attend_params* params) {
  problem p;
  attend_params_init(&p.params, sizeof p.params);
  if (params != NULL) p.params = *params;
  p.q = q;
  p.k = k;
  p.v = v;
  p.batch = q->shape[0];
  p.heads = q->shape[1];
  p.group = k->shape[1] == 0 ? 1 : q->shape[1] / k->shape[1];
  p.rows = q->shape[2];
  p.keys = k->shape[2];
  p.columns = q->shape[3];
  p.columns_v = v->shape[3];
  p.scale = p.params.has_scale ? p.params.scale : 1 / sqrt((double)p.columns);
  return p;
}

/// Returns an element of a tensor. Dimensions of size 1 are broadcast.
static double broadcast(const attend_tensor* t, int64_t b, int64_t h, int64_t i, int64_t j) {
  return element(t, t->shape[0] == 1 ? 0 : b, t->shape[1] == 1 ? 0 : h, t->shape[2] == 1 ? 0 : i,
                 t->shape[3] == 1 ? 0 : j);
}

static int sees(const problem* p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t diagonal = i + p->keys - p->rows;
  const attend_tensor* mask = p->params.mask;
  if (p->params.causal && j > diagonal) return 0;
  if (p->params.window_left >= 0 && j < diagonal - p->params.window_left) return 0;
  if (p->params.window_right >= 0 && j > diagonal + p->params.window_right) return 0;
  if (mask == NULL) return 1;
  return ((const unsigned char*)mask->data)[(mask->shape[0] == 1 ? 0 : b) * mask->stride[0] +
                                            (mask->shape[1] == 1 ? 0 : h) * mask->stride[1] +
                                            (mask->shape[2] == 1 ? 0 : i) * mask->stride[2] + j] != 0;
}

/// Returns the score of row i and key j. *slope receives the derivative of the score with respect to scale * <q, k>.
static double score(const problem* p, int64_t b, int64_t h, int64_t i, int64_t j, double* slope) {
  double s = 0;
  const double softcap = p->params.softcap;
  for (int64_t d = 0; d < p->columns; ++d) s += element(p->q, b, h, i, d) * element(p->k, b, h / p->group, j, d);
  s *= p->scale;
  *slope = 1;
  if (softcap > 0) {
    const double t = tanh(s / softcap);
    s = softcap * t;
    *slope = 1 - t * t;
  }
  if (p->params.bias != NULL) s += broadcast(p->params.bias, b, h, i, j);
  if (p->params.alibi_slopes != NULL) {
    s -= broadcast(p->params.alibi_slopes, b, h, 0, 0) * fabs((double)(i + p->keys - p->rows - j));
  }
  return s;
}

/// Computes one row of o and returns the lse of the row.
static double forward_row(const problem* p, int64_t b, int64_t h, int64_t i, double* o) {
  double most = -INFINITY, sum = 0, unused;
  if (p->params.sinks != NULL) most = broadcast(p->params.sinks, b, h, 0, 0);
  for (int64_t j = 0; j < p->keys; ++j) {
    if (sees(p, b, h, i, j)) most = fmax(most, score(p, b, h, i, j, &unused));
  }
  for (int64_t d = 0; d < p->columns_v; ++d) o[d] = 0;
  if (most == -INFINITY) return most;
  if (p->params.sinks != NULL) sum = exp(broadcast(p->params.sinks, b, h, 0, 0) - most);
  for (int64_t j = 0; j < p->keys; ++j) {
    if (!sees(p, b, h, i, j)) continue;
    const double e = exp(score(p, b, h, i, j, &unused) - most);
    sum += e;
    for (int64_t d = 0; d < p->columns_v; ++d) o[d] += e * element(p->v, b, h / p->group, j, d);
  }
  for (int64_t d = 0; d < p->columns_v; ++d) o[d] /= sum;
  return most + log(sum);
}

static double* numbers(int64_t count) {
  return (double*)keep((size_t)count * sizeof(double));
}

static oracle forward_of(const problem* p) {
  oracle result = {0};
  const int64_t all_rows = p->batch * p->heads * p->rows;
  result.o = numbers(all_rows * p->columns_v);
  result.lse = numbers(all_rows);
  for (int64_t row = 0; row < all_rows; ++row) {
    const int64_t i = row % p->rows, h = row / p->rows % p->heads, b = row / p->rows / p->heads;
    result.lse[row] = forward_row(p, b, h, i, result.o + row * p->columns_v);
  }
  return result;
}

oracle forward_by_loop(const attend_forward_call* call) {
  const problem p = make_problem(call->q, call->k, call->v, call->params);
  return forward_of(&p);
}

/// Adds the contribution of row i to all gradients. delta is <dout, o> - dlse.
static void backward_row(const problem* p, const attend_tensor* dout, int64_t b, int64_t h, int64_t i, double lse,
                         double delta, const oracle* result) {
  const int64_t first_key = (b * (p->heads / p->group) + h / p->group) * p->keys;
  const int64_t row = (b * p->heads + h) * p->rows + i;
  for (int64_t j = 0; j < p->keys; ++j) {
    double slope, dp = 0;
    if (!sees(p, b, h, i, j)) continue;
    const double weight = exp(score(p, b, h, i, j, &slope) - lse);
    for (int64_t d = 0; d < p->columns_v; ++d) {
      dp += element(dout, b, h, i, d) * element(p->v, b, h / p->group, j, d);
      result->dv[(first_key + j) * p->columns_v + d] += weight * element(dout, b, h, i, d);
    }
    const double ds = weight * (dp - delta);
    if (result->dbias != NULL) result->dbias[row * p->keys + j] += ds;
    for (int64_t d = 0; d < p->columns; ++d) {
      result->dq[row * p->columns + d] += p->scale * slope * ds * element(p->k, b, h / p->group, j, d);
      result->dk[(first_key + j) * p->columns + d] += p->scale * slope * ds * element(p->q, b, h, i, d);
    }
  }
}

oracle backward_by_loop(const attend_backward_call* call) {
  const problem p = make_problem(call->q, call->k, call->v, call->params);
  const int64_t all_rows = p.batch * p.heads * p.rows, all_keys = p.batch * p.heads / p.group * p.keys;
  oracle result = forward_of(&p);
  result.dq = numbers(all_rows * p.columns);
  result.dk = numbers(all_keys * p.columns);
  result.dv = numbers(all_keys * p.columns_v);
  if (call->dbias != NULL) result.dbias = numbers(all_rows * p.keys);
  if (call->dsinks != NULL) result.dsinks = numbers(p.heads);
  for (int64_t row = 0; row < all_rows; ++row) {
    const int64_t i = row % p.rows, h = row / p.rows % p.heads, b = row / p.rows / p.heads;
    double delta = call->dlse == NULL ? 0 : -element(call->dlse, b, h, i, 0);
    for (int64_t d = 0; d < p.columns_v; ++d)
      delta += element(call->dout, b, h, i, d) * result.o[row * p.columns_v + d];
    if (result.dsinks != NULL) result.dsinks[h] -= exp(element(p.params.sinks, 0, h, 0, 0) - result.lse[row]) * delta;
    if (result.lse[row] != -INFINITY) backward_row(&p, call->dout, b, h, i, result.lse[row], delta, &result);
  }
  return result;
}
