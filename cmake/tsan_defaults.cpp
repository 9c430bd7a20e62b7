// Default options of ThreadSanitizer, linked into every program of such a build, so that running a program needs no
// environment variables. libomp is not instrumented; reports from its locking inside intercepted calls are ignored.
extern "C" const char* __tsan_default_options();  // the runtime's hook

extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:halt_on_error=1";
}
