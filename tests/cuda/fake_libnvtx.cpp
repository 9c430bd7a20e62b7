// A fake NVTX library that records the pushed ranges and their nesting depth, as a profiler does.
#include <cstring>
#include <string>

namespace {

std::string log_text;
int depth = 0;

}  // namespace

extern "C" {
int nvtxRangePushA(const char* name) {
  log_text += std::string(name) + "\n";
  return depth++;
}
int nvtxRangePop() {
  return --depth;
}
int attend_fake_nvtx_depth() {
  return depth;
}
const char* attend_fake_nvtx_log() {
  return log_text.c_str();
}
}
