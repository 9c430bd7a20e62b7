// Shared by the programs that test the C interface. Provides checks, tensors with memory, and attention as a loop in
// double.
#ifndef ATTEND_TESTS_C_SUPPORT_H_
#define ATTEND_TESTS_C_SUPPORT_H_

#include <attend/attend.h>
#include <stdio.h>

/// Reports and counts a failure if the condition is false. The condition is evaluated once.
#define CHECK(condition) check((condition) ? 1 : 0, __FILE__, __LINE__, #condition)

/// Reports a failure if the call does not succeed.
#define CHECK_OK(call) check_ok((call), &test_error, __FILE__, __LINE__)

/// Reports a failure unless the call fails with this status and message.
#define CHECK_REFUSED(call, status, message) check_refused((call), status, message, &test_error, __FILE__, __LINE__)

/// Error argument that every call on the main thread uses.
extern attend_error test_error;

void check(int holds, const char* file, int line, const char* what);
void check_ok(int32_t status, const attend_error* error, const char* file, int line);
void check_refused(int32_t status, int32_t wanted, const char* message, const attend_error* error, const char* file,
                   int line);

/// Prints "NAME: ok" or the number of failures. @return the exit status of the program
int finish(const char* name);

/// Return a dense tensor with new memory, which is freed when the program ends. Elements of inputs are random in (-1,
/// 1). Elements of outputs are NaN.
attend_tensor new_tensor(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns);
attend_tensor new_output(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns);
attend_tensor new_bshd_tensor(int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns);

/// Returns zeroed memory that lasts until the program ends.
void* keep(size_t bytes);

/// element() returns an element of an f32 or bf16 tensor. f32_place() returns the address of an f32 element.
double element(const attend_tensor* tensor, int64_t b, int64_t h, int64_t i, int64_t d);
float* f32_place(const attend_tensor* tensor, int64_t b, int64_t h, int64_t i, int64_t d);

/// Results of the loop. The arrays are dense and have the element order of their tensors.
typedef struct {
  double *o, *lse, *dq, *dk, *dv, *dbias, *dsinks;
} oracle;

/// Computes the formula of attend_params in double, row by row. Covers scale, causal masks, windows, softcap, ALiBi,
/// bias, mask and sinks.
oracle forward_by_loop(const attend_forward_call* call);

/// Computes the gradients of the same formula.
oracle backward_by_loop(const attend_backward_call* call);

/// Returns the largest |found - wanted| / (1 + |wanted|). Returns infinity if one value is NaN or only one value is
/// infinite.
double difference(const attend_tensor* found, const double* wanted);

/// Returns whether every byte of the tensor's memory still has the value that new_output() wrote.
int is_untouched(const attend_tensor* output);

#endif  // ATTEND_TESTS_C_SUPPORT_H_
