"""Random cases: every pair of values of two options occurs together, as far as both may be given together.

A GPU compiles kernels for some options and takes the others as numbers. Compiling costs a second a kernel, so the
cases come in groups that share the first kind (KERNEL_OPTIONS) and differ in the second (call_options).
"""

import covering

# The names are those of python/tests/problems.py, but for `plain`, `varlen` and `deterministic`. Of random rows few
# would have no option: `plain` makes some without modifications of scores, which the fastest kernels are for, and some
# simple ones, which every backend takes.
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
KEYWORDS = {"alibi": "alibi_slopes"}  # options that have another name in calls of attend


def call_options(device):
    """What no kernel is compiled for. Negative strides are NumPy's alone; many rows are slow in float64 on a CPU."""
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
    """Options that no call may have together, or that `plain` leaves out."""
    on = {name for name, value in pair.items() if not is_off(value)}
    if pair.get("plain") == "simple" and ("varlen" in on or "window" in pair.get("visible", {})):
        return True
    if "varlen" in on and on & {"bias", "mask"}:
        return True
    if "sinks" in on and pair.get("bias") == "rows":
        return True
    return "plain" in on and bool(on & set(MODIFICATIONS))


def groups(num_cases, seed, device, dtypes, known):
    """Lists of cases that share their kernels, `num_cases` in all, numbered; and how many cases have every pair.

    dtypes: those that can be had on the device. known: names of the options that both builds have.
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
    """The case in one line, without the options that are off."""
    left_out = ("number", "plain", "visible", *(["values"] if case["values"] == "normal" else []))
    shown = {k: v for k, v in case.items() if k not in left_out and not is_off(v)} | case["visible"]
    return f"case {case['number']}: " + " ".join(f"{k}={v}" for k, v in shown.items()).replace(", ", ",")
