"""Random cases: every allowed pair of values of two options occurs together.

A GPU compiles kernels for some options and receives the others as arguments. Compiling takes a second per kernel. The
cases therefore come in groups that share the compiled options (KERNEL_OPTIONS) and differ in the others (call_options).
"""

import covering

# The names are those of python/tests/problems.py, except `plain`, `varlen` and `deterministic`. Random rows rarely have
# no option at all. `plain` therefore makes some cases without score modifications, for the fastest kernels, and some
# simple cases, which every backend supports.
KERNEL_OPTIONS = {
    "dtype": ["f32", "f16", "bf16"],
    "head_dims": [
        (40, 40),
        (64, 64),
        (72, 72),
        (96, 96),
        (128, 128),
        (192, 128),
        (256, 256),
        (512, 512),
        (33, 33),
        (7, 3),
    ],
    "visible": [{}, {"causal": True}, {"window": (7, 3)}, {"window": (40, -1), "causal": True}, {"window": (-1, 2)}],
    "scale": [None, 0.3, -0.4],
    "deterministic": [True, False],
    "varlen": [False, True],
    "plain": [None, "unmodified", "simple"],
    "softcap": [0.0, 3.0],
    "bias": [None, "full", "heads", "rows"],
    "mask": [False, True],
    "alibi": [None, "heads", "batch"],
    "sinks": [None, "heads", "batch"],
    "dropout_p": [0.0, 0.3],
}
MODIFICATIONS = ("softcap", "bias", "mask", "alibi", "sinks", "dropout_p")
KEYWORDS = {"alibi": "alibi_slopes"}  # options with another name in calls of attend


def call_options(device):
    """Returns options for which no kernel is compiled. Negative strides are NumPy's only; many rows are slow in float64
    on a CPU.
    """
    on_cpu = device == "cpu"
    return {
        "seqlens": [(1, 1), (1, 150), (17, 33), (130, 257), (200, 131) if on_cpu else (700, 1100), (0, 5), (5, 0)],
        "heads": [(1, 1), (4, 4), (6, 2), (4, 1)],
        "batch": [1, 3],
        "layout": ["bhsd", "bshd"],
        "strides": ["dense", "packed", "strided", *(["reversed"] if on_cpu else [])],
        "dlse": [False, True],
        "values": ["normal", "small", "large", "not finite"],
    }


def is_off(value):
    return value is None or value is False or value == 0.0


def excludes(pair):
    """Returns whether a call must not combine these options, or `plain` excludes them."""
    on = {name for name, value in pair.items() if not is_off(value)}
    if pair.get("plain") == "simple" and ("varlen" in on or "window" in pair.get("visible", {})):
        return True
    if "varlen" in on and on & {"bias", "mask"}:
        return True
    if "sinks" in on and pair.get("bias") == "rows":
        return True
    return "plain" in on and bool(on & set(MODIFICATIONS))


def groups(num_cases, seed, device, dtypes, known):
    """Returns lists of numbered cases that share kernels, `num_cases` in total; and the number of cases that cover
    every pair.

    dtypes: those that the device supports. known: names of the options that both builds have.
    """
    kernels = {
        name: values
        for name, values in KERNEL_OPTIONS.items()
        if name not in MODIFICATIONS or KEYWORDS.get(name, name) in known
    }
    kernels["dtype"] = [dtype for dtype in kernels["dtype"] if dtype in dtypes]
    rows = covering.cases(kernels, seed, excludes)
    calls = {"kernels": list(range(len(rows))), **call_options(device)}
    found = covering.cases(calls, seed)
    num_covering, more = len(found), seed
    while len(found) < num_cases:
        more += 1
        found += covering.cases(calls, more)
    of_kernels = {}
    for number, call in enumerate(found[:num_cases]):
        row = call.pop("kernels")
        of_kernels.setdefault(row, []).append({"number": number, **rows[row], **call})
    return list(of_kernels.values()), num_covering


def text(case):
    """Returns the case in one line, without disabled options."""
    left_out = ("number", "plain", "visible", *(["values"] if case["values"] == "normal" else []))
    shown = {k: v for k, v in case.items() if k not in left_out and not is_off(v)} | case["visible"]
    return f"case {case['number']}: " + " ".join(f"{k}={v}" for k, v in shown.items()).replace(", ", ",")
