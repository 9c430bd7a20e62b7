// Reads a library call from the arguments, results and attributes of an XLA custom call.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "xla_ffi.hpp"

namespace attend::python::xla {

/// The buffers and attributes of a frame, by name. The attributes `operands` and `results` list the names of the
/// arguments and results in order, separated by one space.
class NamedFrame {
 public:
  /// @throws Error (kInternal) if names and buffers do not match.
  NamedFrame(const CallFrame& frame, Device device);

  /// Returns a buffer as an Array, or nothing if the frame has no buffer with this name.
  [[nodiscard]] std::optional<Array> find(std::string_view name) const;
  /// Returns a buffer as an Array. @throws Error (kInternal) if the frame has no buffer with this name.
  [[nodiscard]] Array array(std::string_view name) const;

  /// Return the value of a numeric or boolean attribute, or `otherwise` if the frame does not have it.
  [[nodiscard]] double number(std::string_view name, double otherwise) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  /// Returns the value of a string attribute, or an empty string if the frame does not have it.
  [[nodiscard]] std::string_view text(std::string_view name) const;

 private:
  [[nodiscard]] const Buffer* buffer(std::string_view name) const;
  [[nodiscard]] const void* attribute(std::string_view name, int type) const;

  const CallFrame& frame_;
  Device device_;
};

/// The tensors and options of a frame. Only their kinds are checked here. The library checks the rest.
struct FrameCall {
  NamedFrame frame;
  std::string compute;
  WorkspaceView workspace = {};

  FrameCall(const CallFrame& call_frame, Device device);

  /// Return the library's call. It is valid as long as this object and the frame's buffers.
  [[nodiscard]] ForwardCall forward(Stream stream) const;
  [[nodiscard]] BackwardCall backward(Stream stream) const;

 private:
  [[nodiscard]] Params params() const;
  [[nodiscard]] Layout layout() const { return layout_of(std::string(frame.text("layout"))); }
  [[nodiscard]] Tensor heads(const char* name) const { return heads_view(name, frame.array(name), layout()); }
  [[nodiscard]] Tensor rows(const char* name) const { return rows_view(name, frame.array(name), layout()); }
};

}  // namespace attend::python::xla
