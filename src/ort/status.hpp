// The boundary to ONNX Runtime: its functions' failures become exceptions here, and exceptions of ours its Status.
#pragma once

#include "ort/api.hpp"

namespace attend::ort {

/// A Status that a function of ONNX Runtime gave: it goes back to ONNX Runtime as it is.
struct Failure {
  Status* status;
};

/// Calls a function of the table. @throws Failure
template <class Which, class... Args>
void call(Table table, Args... args) {
  if (Status* status = Which::of(table)(args...)) throw Failure{status};
}

/// For a catch block: the Status of what was thrown, with its line.
[[nodiscard]] Status* status_of_exception(Table table) noexcept;

/// What ONNX Runtime calls: nothing that body() throws comes out.
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
