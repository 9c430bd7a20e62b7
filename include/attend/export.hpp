// ATTEND_API marks symbols that the shared library exports. All other symbols are hidden.
#pragma once

#if defined(__GNUC__)
#define ATTEND_API __attribute__((visibility("default")))
#else
#define ATTEND_API
#endif
