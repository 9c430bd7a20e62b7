"""Ctrl-C during a long call: it ends soon, and the process goes on."""

import os
import signal
import subprocess
import sys
import time

import pytest

# A parent may have told its children to ignore the signal, as shells do for work in the background.
PROGRAM = """
import signal, time
import numpy as np
import attend

signal.signal(signal.SIGINT, signal.default_int_handler)
q = np.ones((1, 64, 16384, 64), np.float32)
print("ready", flush=True)
start = time.monotonic()
try:
    attend.attention(q, q, q)
    print("finished", time.monotonic() - start, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
small = np.ones((1, 1, 8, 8), np.float32)
print("after", float(attend.attention(small, small, small).sum()), flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_ends_a_long_call_and_leaves_the_process_sane():
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    line = process.stdout.readline()
    waited = time.monotonic() - sent
    rest = process.stdout.read()
    assert process.wait() == 0
    assert line == "interrupted\n", f"{line!r}: the call was over before the signal came, or did not hear it"
    assert waited < 3, f"{waited:.1f} s from the signal to the exception"
    assert rest == "after 64.0\n"
