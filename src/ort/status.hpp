// Boundary to ONNX Runtime. It turns errors of ONNX Runtime's functions into exceptions, and exceptions into a Status
// of ONNX Runtime.
#pragma once

#include "ort/api.hpp"

namespace attend::ort {

/// Exception that contains a Status which a function of ONNX Runtime has returned. The library returns this Status to
/// ONNX Runtime unchanged.
struct Failure {
  Status* status;
};

/// Calls a function of the table. @throws Failure if it returns an error
template <class Which, class... Args>
void call(Table table, Args... args) {
  if (Status* status = Which::of(table)(args...)) throw Failure{status};
}

/// Must be called in a catch block. Returns a Status with the message of the current exception.
[[nodiscard]] Status* status_of_exception(Table table) noexcept;

/// Runs the body of a function that ONNX Runtime calls, and catches all exceptions. Returns null or a Status.
template <class Body>
Status* guarded(Table table, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_exception(table);
  }
}

}  // namespace attend::ort
