// CUDA events that order the streams of ranks that are threads of one process.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver/stream.hpp"

namespace attend::ring {

/// Events of a rank's stream for other ranks of the same process. The other ranks may outlive this rank, so all of them
/// share the ownership of the events. Events for other processes are separate, because a process cannot open the IPC
/// handle of its own event.
struct LocalMarks {
  cuda::Event ready;   ///< when this event is complete, other ranks may read the memory that the rank sends
  cuda::Event copied;  ///< when this event is complete, the rank has read the memory that other ranks sent
};

/// Makes the marks available to marks_of() under the rank's name, until they are destroyed.
void publish_marks(const std::string& name, const std::shared_ptr<LocalMarks>& marks);

/// @throws Error (kInternal) if the process has no marks with this name.
[[nodiscard]] std::shared_ptr<LocalMarks> marks_of(const std::string& name);

}  // namespace attend::ring
