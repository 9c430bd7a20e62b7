// A fake NVRTC that always fails. If $ATTEND_FAKE_NVRTC is `builtins`, it cannot open its builtins library, as if only
// libnvrtc.so had been copied. If the variable is `arch`, it does not support the architecture. The only architecture
// that it reports as supported is $ATTEND_FAKE_NVRTC_ARCH, or 52 if this variable is not set.
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr char kLog[] = "nvrtc: error: what the log of the fake says";

int failure() {
  const char* what = std::getenv("ATTEND_FAKE_NVRTC");
  return what != nullptr && std::string_view(what) == "builtins" ? 7 : 5;
}

}  // namespace

extern "C" {
const char* nvrtcGetErrorString(int result) {
  return result == 7 ? "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE" : "NVRTC_ERROR_INVALID_OPTION";
}
int nvrtcVersion(int* major, int* minor) {
  *major = 11;
  *minor = 2;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  const char* told = std::getenv("ATTEND_FAKE_NVRTC_ARCH");
  *archs = told != nullptr ? std::atoi(told) : 52;
  return 0;
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
  static int place = 0;
  *program = &place;
  return 0;
}
int nvrtcDestroyProgram(void**) {
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  return failure();
}
int nvrtcGetCUBINSize(void*, std::size_t*) {
  return 1;
}
int nvrtcGetCUBIN(void*, char*) {
  return 1;
}
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) {
  *bytes = sizeof(kLog);
  return 0;
}
int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, kLog, sizeof(kLog));
  return 0;
}
}
