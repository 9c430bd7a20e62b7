"""Tests of Ctrl-C. A long call ends soon after Ctrl-C, and the process continues. An interrupted measurement keeps its
results.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

# The program restores the handler of SIGINT, because a parent process may have made it ignore the signal, as shells do
# for background jobs.
PROGRAM = """
import signal, time
import numpy as np
import attend

signal.signal(signal.SIGINT, signal.default_int_handler)
{prepare}
small = np.ones((1, 1, 8, 8), np.float32)
attend.attention(small, small, small)
print("ready", flush=True)
start = time.monotonic()
try:
    {call}
    print("finished", time.monotonic() - start, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("after", float(attend.attention(small, small, small).sum()), flush=True)
"""
ONES = "q = np.ones((1, {heads}, {rows}, 64), np.{dtype})"
# Calls that take many seconds, as (preparation, call). Calls with float64 always use the slow reference backend.
CALLS = {
    "cpu": (ONES.format(heads=64, rows=16384, dtype="float32"), "attend.attention(q, q, q)"),
    "float64": (ONES.format(heads=1, rows=32768, dtype="float64"), "attend.attention(q, q, q)"),
    "reference": (
        ONES.format(heads=1, rows=32768, dtype="float32"),
        "attend.attention(q, q, q, compute='reference')",
    ),
    "cpu_naive": (
        ONES.format(heads=1, rows=32768, dtype="float32"),
        "attend.attention(q, q, q, compute='cpu_naive')",
    ),
    "cpu backward": (
        ONES.format(heads=2, rows=32768, dtype="float32") + "; lse = np.full((1, 2, 32768), 20.0, np.float32)",
        "attend.backward(q, q, q, q, q, lse)",
    ),
    "backward": (
        ONES.format(heads=1, rows=32768, dtype="float64") + "; lse = np.full((1, 1, 32768), 20.0)",
        "attend.backward(q, q, q, q, q, lse)",
    ),
    "backward of NaN": (
        ONES.format(heads=2, rows=16384, dtype="float32")
        + "; lse = np.full((1, 2, 16384), 20.0, np.float32); d = q.copy(); d[0, :, 0, 0] = np.nan",
        "attend.backward(d, q, q, q, q, lse)",
    ),
}
TORCH_CALL = (
    "import torch; q = torch.ones(1, 1, 12288, 64, dtype=torch.float64, requires_grad=True); "
    + "o = attend.attention(q[:, :, :2048], q, q)",
    "for _ in range(9): o.sum().backward(retain_graph=True)",
)


@pytest.mark.parametrize("name", [*CALLS, pytest.param("torch", marks=pytest.mark.skipif(not HAS_TORCH, reason=""))])
def test_ctrl_c_ends_a_long_call_and_leaves_the_process_sane(name):
    prepare, call = CALLS.get(name, TORCH_CALL)
    program = PROGRAM.format(prepare=prepare, call=call)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
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


def end_after_the_first_line(words, number):
    """Runs a measurement with a pipe as stdout until it has printed a time. Returns (status, output)."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {words}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.endswith(" ms\n"):
            break
    time.sleep(2)  # now the program is checking the next row
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 5
    return process.returncode, "".join(lines) + out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_compare_prints_as_it_goes_and_keeps_its_rows(tmp_path, number):
    path = tmp_path / "c.json"
    words = ["compare", "--device", "cpu", "--no-peers", "--compute", "cpu", "--max-seconds", "1000", "--samples", "3"]
    words += ["--batch-size", "1", "--num-heads", "4", "--seq-lengths", "64,32768", "--output", str(path)]
    status, out, err = end_after_the_first_line(
        f"from attend._measure import apart; from attend.bench.__main__ import main; apart.end(main({words}))", number
    )
    assert status == 130, out + err
    rows = json.loads(path.read_text())["rows"]
    assert rows[0]["S"] == 64 and rows[0]["ms"] > 0
    assert out.startswith("given forward (1, 4, 64, 64) cpu f32: ")
    assert "interrupted: the results so far are here" in out
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_experiments_print_as_they_go_and_keep_their_rows(tmp_path, number):
    words = ["--seqlen-experiment", "--kernel", "cpu_naive", "--samples", "3", "--max-seconds", "1000"]
    words += ["--save-results", "--no-plots", "--output-dir", str(tmp_path)]
    status, out, err = end_after_the_first_line(
        f"from attend._measure import apart; from attend.experiments.__main__ import main; apart.end(main({words}))",
        number,
    )
    assert status == 130, out + err
    data = json.loads((tmp_path / "latest" / "results.json").read_text())
    assert data["stopped"] == "interrupted" and data["rows"][0]["ms"] > 0
    assert "seqlen forward (4, 8, 128, 64) cpu_naive f32: " in out
    assert "interrupted: the results so far are here" in out


# On the thread that measures memory, this program runs a call that no signal interrupts, like a library that does not
# return to Python.
BUSY = """
import sys, time
from attend._measure import apart, errors, memory

def command():
    memory.Meter("cpu").peak(lambda: (print("ready", flush=True), {call}))
    return 0

apart.end(errors.run(command))
"""
BUSY_CALLS = {
    "asleep": "time.sleep(60)",
    "attend": "(x := __import__('numpy').ones((1, 16, 32768, 64), 'f4'), __import__('attend').attention(x, x, x))",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("name", BUSY_CALLS)
def test_a_call_whose_memory_is_measured_is_left_within_a_second(name, number):
    program = BUSY.format(call=BUSY_CALLS[name])
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{program}"],
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    sent = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err == "interrupted\n"
    assert time.monotonic() - sent < 1.5
