"""Generates random cases. Every allowed pair of values of two options occurs in at least one case.

On a GPU, attend compiles kernels for some options (KERNEL_OPTIONS) and passes all other options (call_options) to the
kernels as arguments. Compiling takes a second per kernel. The cases of a group therefore have the same KERNEL_OPTIONS
and differ in the other options.
"""

import covering

# The names are those of python/tests/problems.py, except `plain`, `varlen` and `deterministic`. Random cases almost
# always have some option. The option `plain` therefore adds cases without score modifications, which use the fastest
# kernels, and simple cases, which every backend supports.
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
KEYWORDS = {"alibi": "alibi_slopes"}  # options whose argument of attend has another name


def call_options(device):
    """Returns the options for which no kernel is compiled. Only NumPy has negative strides, and a CPU gets few rows,
    because many rows are slow in float64.
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
    """Returns whether these two option values must not occur in the same case, because attend or `plain` excludes the
    combination.
    """
    on = {name for name, value in pair.items() if not is_off(value)}
    if pair.get("plain") == "simple" and ("varlen" in on or "window" in pair.get("visible", {})):
        return True
    if "varlen" in on and on & {"bias", "mask"}:
        return True
    if "sinks" in on and pair.get("bias") == "rows":
        return True
    return "plain" in on and bool(on & set(MODIFICATIONS))


def groups(num_cases, seed, device, dtypes, known):
    """Returns a list of groups, and the number of cases that are needed to cover every pair. A group is a list of
    numbered cases that share kernels. All groups together have `num_cases` cases.

    `dtypes` are the dtypes that the device supports. `known` contains the names of the options that both builds have.
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
    """Returns the case as one line, without options that are disabled."""
    left_out = ("number", "plain", "visible", *(["values"] if case["values"] == "normal" else []))
    shown = {k: v for k, v in case.items() if k not in left_out and not is_off(v)} | case["visible"]
    return f"case {case['number']}: " + " ".join(f"{k}={v}" for k, v in shown.items()).replace(", ", ",")
