// The enumerations that a kernel's Config may name. Included before every generated Config; the host uses them too.
#pragma once

namespace attend {

// Which keys a row sees. Masks align bottom right: see key_range.cuh. kWindow: left and right ends are arguments.
enum class MaskKind { kFull, kCausal, kWindow };

// The type of q, k, v, o and their gradients.
enum class ElementType { kF32, kF16, kBF16 };

}  // namespace attend
