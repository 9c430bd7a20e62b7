// Converts the arguments, results and attributes of an XLA custom call to a library call.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "xla_ffi.hpp"

namespace attend::python::xla {

/// Finds the buffers and attributes of a call frame by name. A call frame is the struct that XLA passes to a custom
/// call. The attributes `operands` and `results` contain the names of the arguments and results in order, separated by
/// one space.
class NamedFrame {
 public:
  /// @throws Error (kInternal) if the number of names differs from the number of buffers.
  NamedFrame(const CallFrame& frame, Device device);

  /// Returns the buffer `name` as an Array, or nothing if there is no such buffer.
  [[nodiscard]] std::optional<Array> find(std::string_view name) const;
  /// Returns the buffer `name` as an Array. @throws Error (kInternal) if there is no such buffer.
  [[nodiscard]] Array array(std::string_view name) const;

  /// Returns the value of a numeric or boolean attribute as a double, or `otherwise` if there is no such attribute.
  [[nodiscard]] double number(std::string_view name, double otherwise) const;
  /// Returns the value of an integer or boolean attribute, or `otherwise` if there is no such attribute.
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  /// Returns the value of a string attribute, or an empty string if there is no such attribute.
  [[nodiscard]] std::string_view text(std::string_view name) const;

 private:
  [[nodiscard]] const Buffer* buffer(std::string_view name) const;
  [[nodiscard]] const void* attribute(std::string_view name, int type) const;

  const CallFrame& frame_;
  Device device_;
};

/// The tensors and options of a call frame. This class checks only their types. The library checks their values.
struct FrameCall {
  NamedFrame frame;
  std::string compute;
  WorkspaceView workspace = {};

  FrameCall(const CallFrame& call_frame, Device device);

  /// Returns the forward call of the library. It is valid as long as this object and the buffers of the frame exist.
  [[nodiscard]] ForwardCall forward(Stream stream) const;
  /// Returns the backward call of the library. It is valid as long as this object and the buffers of the frame exist.
  [[nodiscard]] BackwardCall backward(Stream stream) const;

 private:
  [[nodiscard]] Params params() const;
  [[nodiscard]] Layout layout() const { return layout_of(std::string(frame.text("layout"))); }
  [[nodiscard]] Tensor heads(const char* name) const { return heads_view(name, frame.array(name), layout()); }
  [[nodiscard]] Tensor rows(const char* name) const { return rows_view(name, frame.array(name), layout()); }
};

}  // namespace attend::python::xla
