// The version of the headers; attend::version() gives the version of the library that was linked. C reads the macros.
#pragma once

#include "attend/export.hpp"

#define ATTEND_VERSION_MAJOR 0         ///< as in Semantic Versioning
#define ATTEND_VERSION_MINOR 1         ///< likewise
#define ATTEND_VERSION_PATCH 0         ///< likewise
#define ATTEND_VERSION_STRING "0.1.0"  ///< the three, with points between

#ifdef __cplusplus
namespace attend {

/// "MAJOR.MINOR.PATCH" of the linked library.
ATTEND_API const char* version() noexcept;

}  // namespace attend
#endif
