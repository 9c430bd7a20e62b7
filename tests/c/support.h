// What the programs that test the C interface share: checks, tensors with memory, and attention as a loop in double.
#ifndef ATTEND_TESTS_C_SUPPORT_H_
#define ATTEND_TESTS_C_SUPPORT_H_

#include <attend/attend.h>
#include <stdio.h>

/// Counts a failure and says where. The condition is evaluated once.
#define CHECK(condition) check((condition) ? 1 : 0, __FILE__, __LINE__, #condition)

/// A call succeeds.
#define CHECK_OK(call) check_ok((call), &test_error, __FILE__, __LINE__)

/// A call is refused with this status and line.
#define CHECK_REFUSED(call, status, message) check_refused((call), status, message, &test_error, __FILE__, __LINE__)

/// What every call of a test on the main thread is given.
extern attend_error test_error;

void check(int holds, const char* file, int line, const char* what);
void check_ok(int32_t status, const attend_error* error, const char* file, int line);
void check_refused(int32_t status, int32_t wanted, const char* message, const attend_error* error, const char* file,
                   int line);

/// Prints "NAME: ok" or the number of failures. @return the exit status of the program
int finish(const char* name);

/// A dense view of memory of its own, freed when the program ends. Elements are random in (-1, 1), or NaN where a call
/// is to write.
attend_tensor new_tensor(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns);
attend_tensor new_output(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns);
attend_tensor new_bshd_tensor(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns);

/// Memory that lasts as long as the program: zeros.
void* keep(size_t bytes);

/// An element of a tensor of f32 or bf16.
double element(const attend_tensor* tensor, int64_t b, int64_t h, int64_t i, int64_t d);
float* f32_place(const attend_tensor* tensor, int64_t b, int64_t h, int64_t i, int64_t d);

/// Results of the loop: dense, in the order of the tensors that they belong to.
typedef struct {
  double *o, *lse, *dq, *dk, *dv, *dbias, *dsinks;
} oracle;

/// The formula of attend_params in double, a row at a time: scale, causal, windows, softcap, ALiBi, bias, mask, sinks.
oracle forward_by_loop(const attend_forward_call* call);

/// Its gradients.
oracle backward_by_loop(const attend_backward_call* call);

/// Largest |found - wanted| / (1 + |wanted|); infinity where one of them is NaN, or infinite alone.
double difference(const attend_tensor* found, const double* wanted);

/// Every byte of the tensor's memory is what new_output left there.
int is_untouched(const attend_tensor* output);

#endif  // ATTEND_TESTS_C_SUPPORT_H_
