// CUDA events that order the streams of ranks that are threads of one process.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver/stream.hpp"

namespace attend::ring {

/// Events of a rank's stream for ranks of the same process. Those ranks may outlive the rank, so they share ownership.
/// Events for other processes are separate, because a process cannot open the IPC handle of its own event.
struct LocalMarks {
  cuda::Event ready;   ///< once complete, other ranks may read the memory that the rank sends
  cuda::Event copied;  ///< once complete, the rank has read the memory that other ranks sent
};

/// Publishes the marks under the rank's name. marks_of() finds them until they are destroyed.
void publish_marks(const std::string& name, const std::shared_ptr<LocalMarks>& marks);

/// @throws Error (kInternal) if the process has no marks with this name.
[[nodiscard]] std::shared_ptr<LocalMarks> marks_of(const std::string& name);

}  // namespace attend::ring
