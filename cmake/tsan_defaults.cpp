// Linked into every program of a ThreadSanitizer build: its default options, so that running one by hand needs no
// environment. libomp is not instrumented; its own locking inside intercepted calls is not ours to judge.
extern "C" const char* __tsan_default_options();  // the runtime's hook

extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:halt_on_error=1";
}
