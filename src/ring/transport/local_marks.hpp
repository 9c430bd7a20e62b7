// Events in the streams of ranks that are threads of one process.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver/stream.hpp"

namespace attend::ring {

/// Events of a rank's stream, for ranks of the same process, which may outlive that rank. CUDA events made for other
/// processes cannot be used within the process.
struct LocalMarks {
  cuda::Event ready;   ///< the memory that the rank sends in an exchange may be read
  cuda::Event copied;  ///< the memory that the rank receives from has been read
};

/// Publishes the marks under the rank's name. marks_of() finds them as long as they exist.
void publish_marks(const std::string& name, const std::shared_ptr<LocalMarks>& marks);

/// @throws Error (kInternal) if no rank of this name is left in the process.
[[nodiscard]] std::shared_ptr<LocalMarks> marks_of(const std::string& name);

}  // namespace attend::ring
