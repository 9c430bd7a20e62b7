// Points in the streams of ranks that are threads of one process.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver/stream.hpp"

namespace attend::ring {

/// Of a rank's stream, for ranks of the same process, which may be there for longer. Events that are made for other
/// processes are for those alone.
struct LocalMarks {
  cuda::Event ready;   ///< what the rank sends in an exchange may be read
  cuda::Event copied;  ///< what it receives has been read
};

/// Lets marks_of() find them by the rank's name for as long as they are there.
void publish_marks(const std::string& name, const std::shared_ptr<LocalMarks>& marks);

/// @throws Error (kInternal) where no rank of the name is in this process any more.
[[nodiscard]] std::shared_ptr<LocalMarks> marks_of(const std::string& name);

}  // namespace attend::ring
