// A call of the library, read from the arguments, results and attributes of a custom call of XLA.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "xla_ffi.hpp"

namespace attend::python::xla {

/// The buffers and attributes of a frame by their names. Attributes `operands` and `results` hold the names of the
/// arguments and results, in their order, with a space between two.
class NamedFrame {
 public:
  /// @throws Error (kInternal) where names and buffers do not match.
  NamedFrame(const CallFrame& frame, Device device);

  /// A buffer as the package's front ends describe arrays; none if the frame has none of this name.
  [[nodiscard]] std::optional<Array> find(std::string_view name) const;
  /// @throws Error (kInternal) if there is none.
  [[nodiscard]] Array array(std::string_view name) const;

  /// An attribute that is a number or a flag; `otherwise` if there is none.
  [[nodiscard]] double number(std::string_view name, double otherwise) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  /// An attribute that is a text; empty if there is none.
  [[nodiscard]] std::string_view text(std::string_view name) const;

 private:
  [[nodiscard]] const Buffer* buffer(std::string_view name) const;
  [[nodiscard]] const void* attribute(std::string_view name, int type) const;

  const CallFrame& frame_;
  Device device_;
};

/// The tensors and options of a frame, checked for their kinds only; the library checks the rest.
struct FrameCall {
  NamedFrame frame;
  std::string compute;
  WorkspaceView workspace = {};

  FrameCall(const CallFrame& call_frame, Device device);

  /// Valid as long as this, and as long as the frame's buffers.
  [[nodiscard]] ForwardCall forward(Stream stream) const;
  [[nodiscard]] BackwardCall backward(Stream stream) const;

 private:
  [[nodiscard]] Params params() const;
  [[nodiscard]] Layout layout() const { return layout_of(std::string(frame.text("layout"))); }
  [[nodiscard]] Tensor heads(const char* name) const { return heads_view(name, frame.array(name), layout()); }
  [[nodiscard]] Tensor rows(const char* name) const { return rows_view(name, frame.array(name), layout()); }
};

}  // namespace attend::python::xla
