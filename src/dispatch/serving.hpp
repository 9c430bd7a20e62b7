// What the calls for serving have in common.
#pragma once

#include "attend/tensor.hpp"

namespace attend {

/// Throws Error where the tensor that decides the device of `call` lies on a GPU.
void require_cpu(const char* call, const char* name, const Tensor& t);

}  // namespace attend
