#include "ring/transport/device_state.hpp"

#include "attend/error.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/ipc.hpp"

namespace attend::ring {

DeviceState::DeviceState(int device) : device_(device) {
  const cuda::ContextGuard guard(device);
  stream_.emplace(cuda::OwnStream::Priority::kHigh);
  returned_.emplace();
}

DeviceState::~DeviceState() {
  try {
    const cuda::ContextGuard guard(device_);
    cuda::synchronize(stream());
    memory_ = {};
    outgrown_.clear();
    returned_.reset();
    stream_.reset();
  } catch (const Error&) {
    return;  // if the CUDA context no longer exists, its memory is already freed
  }
}

cuda::DevicePointer DeviceState::borrow(std::size_t bytes, cuda::StreamHandle user) {
  if (is_lent_) {  // a failed call may still use the memory, on any stream
    cuda::check_call(cuda::driver().context_synchronize(), "cuCtxSynchronize", "waiting for a call that has failed");
  }
  is_lent_ = true;
  if (bytes > memory_.bytes()) {
    if (memory_.bytes() > 0) {  // this GPU's streams also wait for reads by other GPUs
      cuda::check_call(cuda::driver().context_synchronize(), "cuCtxSynchronize", "waiting for earlier messages");
      if (keeps_outgrown_) outgrown_.push_back(std::move(memory_));
    }
    memory_ = cuda::DeviceMemory();  // frees the old memory first, so that both are never allocated at the same time
    memory_ =
        cuda::DeviceMemory((bytes + cuda::kSharedMemoryUnit - 1) / cuda::kSharedMemoryUnit * cuda::kSharedMemoryUnit);
    ++generation_;
  } else {
    returned_->make_wait(user);
  }
  return memory_.data();
}

void DeviceState::give_back(cuda::StreamHandle user) {
  returned_->record(user);
  is_lent_ = false;
}

}  // namespace attend::ring
