#include "attend/error.hpp"

namespace attend {

Error::~Error() = default;

}  // namespace attend
