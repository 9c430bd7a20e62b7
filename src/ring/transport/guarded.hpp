// A rank that fails in a call ends the call of the others.
#pragma once

#include <exception>

#include "cpu/parallel.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// Calls run(). Tells the other ranks when it fails, as they would wait for ever.
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
