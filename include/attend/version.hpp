// Version of these headers. attend::version() returns the version of the linked library. The macros are for C code.
#pragma once

#include "attend/export.hpp"

#define ATTEND_VERSION_MAJOR 0         ///< major version number, as in Semantic Versioning
#define ATTEND_VERSION_MINOR 1         ///< minor version number, as in Semantic Versioning
#define ATTEND_VERSION_PATCH 0         ///< patch version number, as in Semantic Versioning
#define ATTEND_VERSION_STRING "0.1.0"  ///< the three numbers, separated by points

#ifdef __cplusplus
namespace attend {

/// Returns the version of the linked library as "MAJOR.MINOR.PATCH".
ATTEND_API const char* version() noexcept;

}  // namespace attend
#endif
