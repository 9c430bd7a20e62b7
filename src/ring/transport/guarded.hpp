// Ends the calls of the other ranks if this rank fails.
#pragma once

#include <exception>

#include "cpu/parallel.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// Calls run(). If run() throws, notifies the other ranks, which would otherwise wait forever.
template <class Run>
void guarded(Transport& transport, Run run) {
  try {
    run();
  } catch (const std::exception& error) {
    transport.fail(error.what());
    throw;
  } catch (const cpu::Interrupted&) {
    transport.fail(kInterrupted);
    throw;
  } catch (...) {
    transport.fail("the call was ended");
    throw;
  }
}

}  // namespace attend::ring
