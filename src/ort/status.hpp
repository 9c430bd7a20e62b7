// Boundary to ONNX Runtime: turns failures of its functions into exceptions, and our exceptions into its Status.
#pragma once

#include "ort/api.hpp"

namespace attend::ort {

/// A Status returned by a function of ONNX Runtime, passed back unchanged.
struct Failure {
  Status* status;
};

/// Calls a function of the table. @throws Failure
template <class Which, class... Args>
void call(Table table, Args... args) {
  if (Status* status = Which::of(table)(args...)) throw Failure{status};
}

/// For a catch block: returns a Status with the message of the current exception.
[[nodiscard]] Status* status_of_exception(Table table) noexcept;

/// Runs the body of a function that ONNX Runtime calls. No exception leaves it.
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
