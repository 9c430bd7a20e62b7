// ATTEND_API marks what the shared library exports; everything else in it is hidden.
#pragma once

#if defined(__GNUC__)
#define ATTEND_API __attribute__((visibility("default")))
#else
#define ATTEND_API
#endif
