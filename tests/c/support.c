#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

attend_error test_error;
static int failures = 0;
static uint32_t random_state = 12345;

void check(int holds, const char* file, int line, const char* what) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "%s:%d: %s\n", file, line, what);
}

void check_ok(int32_t status, const attend_error* error, const char* file, int line) {
  check(status == ATTEND_OK && error->code == ATTEND_OK && error->message[0] == '\0', file, line, error->message);
}

void check_refused(int32_t status, int32_t wanted, const char* message, const attend_error* error, const char* file,
                   int line) {
  if (status == wanted && error->code == wanted && strcmp(error->message, message) == 0) return;
  check(0, file, line, error->message);
  fprintf(stderr, "  status %d, wanted %d and: %s\n", (int)status, (int)wanted, message);
}

int finish(const char* name) {
  if (failures == 0) {
    printf("%s: ok\n", name);
    return 0;
  }
  printf("%s: %d failures\n", name, failures);
  return 1;
}

void* keep(size_t bytes) {
  static void* last = NULL;  // each block stores the address of the previous one, so a leak checker finds all blocks
  char* block = (char*)calloc(1, bytes + 64);
  if (block == NULL) abort();
  memcpy(block, &last, sizeof last);
  last = block;
  return block + 64;
}

static double random_number(void) {
  random_state = random_state * 1664525U + 1013904223U;
  return (double)(random_state >> 8) / 8388608.0 - 1;
}

static int64_t count(const attend_tensor* t) {
  return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

static void fill(attend_tensor* t, int is_output) {
  const size_t bytes = (size_t)(count(t) * attend_dtype_bytes(t->dtype));
  unsigned char* memory = (unsigned char*)keep(bytes + 1);
  t->data = memory;
  memset(memory, 0xff, bytes);  // NaN in every float type
  for (int64_t n = 0; n < count(t) && !is_output; ++n) {
    const float value = (float)random_number();
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t upper = (uint16_t)(bits >> 16);
    if (t->dtype == ATTEND_BF16) memcpy(memory + 2 * n, &upper, 2);
    if (t->dtype == ATTEND_F32) memcpy(memory + 4 * n, &value, 4);
  }
}

attend_tensor new_tensor(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  const int64_t shape[4] = {batch, heads, rows, columns};
  attend_tensor t;
  attend_tensor_init(&t, NULL, dtype, shape);
  fill(&t, 0);
  return t;
}

attend_tensor new_output(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  const int64_t shape[4] = {batch, heads, rows, columns};
  attend_tensor t;
  attend_tensor_init(&t, NULL, dtype, shape);
  fill(&t, 1);
  return t;
}

attend_tensor new_bshd_tensor(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  const int64_t shape[4] = {batch, heads, rows, columns};
  attend_tensor t;
  attend_tensor_init_bshd(&t, NULL, dtype, shape);
  fill(&t, 0);
  return t;
}

int is_untouched(const attend_tensor* output) {
  const unsigned char* memory = (const unsigned char*)output->data;
  const int64_t bytes = count(output) * attend_dtype_bytes(output->dtype);
  for (int64_t n = 0; n < bytes; ++n) {
    if (memory[n] != 0xff) return 0;
  }
  return 1;
}

static int64_t place_of(const attend_tensor* t, int64_t b, int64_t h, int64_t i, int64_t d) {
  return b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + d * t->stride[3];
}

float* f32_place(const attend_tensor* t, int64_t b, int64_t h, int64_t i, int64_t d) {
  return (float*)t->data + place_of(t, b, h, i, d);
}

double element(const attend_tensor* t, int64_t b, int64_t h, int64_t i, int64_t d) {
  const int64_t place = place_of(t, b, h, i, d);
  float value;
  uint32_t bits;
  if (t->dtype == ATTEND_F32) return ((const float*)t->data)[place];
  bits = (uint32_t)((const uint16_t*)t->data)[place] << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}

double difference(const attend_tensor* found, const double* wanted) {
  double worst = 0;
  for (int64_t b = 0; b < found->shape[0]; ++b) {
    for (int64_t h = 0; h < found->shape[1]; ++h) {
      for (int64_t i = 0; i < found->shape[2]; ++i) {
        for (int64_t d = 0; d < found->shape[3]; ++d, ++wanted) {
          const double x = element(found, b, h, i, d);
          const double off = x == *wanted ? 0 : fabs(x - *wanted) / (1 + fabs(*wanted));
          if (!(off <= worst)) worst = isfinite(off) ? off : INFINITY;
        }
      }
    }
  }
  return worst;
}
