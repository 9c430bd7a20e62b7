"""Runs in the process of one build. It makes the inputs of cases, calls attend, and returns digests of the results."""

import base64
import hashlib
import inspect
import json
import sys

import attend
import ml_dtypes
import numpy as np
import problems

from same_bits.arrays import arrays_of

MORE_SEQUENCES = ((3, 5), (0, 4), (6, 0))  # rows and keys of additional sequences in packed cases


class Inputs:
    """q, k, v, dout, dlse and the options of a case, as arrays of the device."""

    def __init__(self, case, seed, arrays):
        rng = np.random.default_rng([seed, case["number"]])
        if case["varlen"]:
            lengths = [case["seqlens"], *MORE_SEQUENCES[: case["batch"]]]
            case = case | {"layout": "bshd", "batch": 1, "seqlens": [sum(x) for x in zip(*lengths)]}
        p = problems.make(case, rng)
        change_values(p, case["values"], rng)
        options = problems.options_of(p, int(rng.integers(2**63)) * 2 + 1)
        host = [problems.laid_out(x, case["layout"], case["strides"]) for x in (p.q, p.k, p.v, p.dout)]
        dlse = p.dlse if case["dlse"] else None
        if case["varlen"]:
            host = [x[0] for x in host]
            dlse = None if dlse is None else dlse[0]
            options |= self._of_sequences(lengths, options, rng)
        else:
            options["layout"] = case["layout"]
        self.deterministic = {"deterministic": case["deterministic"]}
        self.q, self.k, self.v, self.dout = map(arrays.put, host)
        self.dlse = None if dlse is None else arrays.put(dlse)
        self.options = {k: arrays.put(x) if isinstance(x, np.ndarray) else x for k, x in options.items()}
        given = [name for name in ("bias", "sinks") if options.get(name) is not None]
        self.gradients = ["dq", "dk", "dv", *(f"d{name}" for name in given)]

    @staticmethod
    def _of_sequences(lengths, options, rng):
        """Returns the offsets of packed sequences. Slopes and sinks that have an entry for each batch element get an
        entry for each sequence.
        """
        rows, keys = zip(*lengths)
        found = {"max_seqlen_q": max(rows), "max_seqlen_k": max(keys)}
        for name, counts in (("cu_seqlens_q", rows), ("cu_seqlens_k", keys)):
            found[name] = np.cumsum([0, *counts], dtype=np.int32)
        for name in ("alibi_slopes", "sinks"):
            x = options.get(name)
            if x is not None and x.ndim == 2:
                found[name] = (rng.random((len(lengths), x.shape[1])) * 0.2).astype(x.dtype)
        return found


def change_values(p, values, rng):
    """Changes the inputs so that scores are nearly equal, or differ by thousands and a bias hides keys, or are not
    finite.

    values: the option of a case.
    """
    factor = {"small": 2.0**-6, "large": 2.0**6}.get(values, 1.0)
    p.q, p.k = ((x.astype(np.float32) * factor).astype(x.dtype) for x in (p.q, p.k))
    if values == "large" and p.bias is not None:
        p.bias[rng.random(p.bias.shape) < 0.1] = ml_dtypes.finfo(p.bias.dtype).min
    if values == "not finite":
        for x, value in ((p.q, np.inf), (p.k, np.nan), (p.v, -np.inf), (p.dout, np.nan)):
            if x.size:
                x.flat[rng.integers(x.size)] = value


class Worker:
    """Answers the messages of same_bits.sides.Side."""

    def __init__(self, device):
        self.arrays = arrays_of(device)
        self.device = device
        self.inputs = (None, None)  # the number of the last case, and its Inputs
        self.results = {}

    def describe(self):
        """Returns this build's location and features."""
        return {
            "file": attend.__file__,
            "options": list(inspect.signature(attend.attention).parameters),
            "backends": [x["name"] for x in attend.backends()],
            "forward_only": [x["name"] for x in attend.backends() if not x["has_backward"]],
            "dtypes": self.arrays.dtypes,
            "kernel_digest": attend._core.kernel_digest(),
            "arrays": self.arrays.name,
        }

    def run(self, case, seed, forward, backward):
        """Returns {name: digest} for the results of a case, and the message with which attend refused a pass.

        `forward` and `backward` are values of attend's argument `compute`. If `backward` is None, the backward pass is
            skipped.
        """
        number, x = self.inputs
        if number != case["number"]:
            x = Inputs(case, seed, self.arrays)
            self.inputs = (case["number"], x)
        self.results = {}
        try:
            self._forward(x, forward)
        except (attend.ArgumentError, attend.UnsupportedError) as error:
            return {"digests": {}, "refused": {"forward": str(error)}}
        refused = {}
        try:
            if backward is not None:
                self._backward(x, backward)
        except (attend.ArgumentError, attend.UnsupportedError) as error:
            refused = {"backward": str(error)}
        self.results = {name: self.arrays.get(result) for name, result in self.results.items()}
        return {"digests": {name: digest(result) for name, result in self.results.items()}, "refused": refused}

    def _forward(self, x, compute):
        with self.arrays.poisoned(x.q, x.q, x.q):
            o, lse = attend.forward(x.q, x.k, x.v, **x.options, **x.deterministic, compute=compute)
        self.results = {"o": o, "lse": lse}

    def _backward(self, x, compute):
        inputs = (x.dout, x.q, x.k, x.v, self.results["o"], self.results["lse"])
        with self.arrays.poisoned(x.q, x.k, x.v):
            found = attend.backward(*inputs, dlse=x.dlse, **x.options, **x.deterministic, compute=compute)
        self.results |= dict(zip(x.gradients, found, strict=True))

    def fetch(self, name):
        """Returns a result of the last run."""
        x = self.results[name]
        return {"dtype": x.dtype.name, "shape": list(x.shape), "bytes": base64.b64encode(x.tobytes()).decode()}

    def serve(self):
        answers = sys.stdout
        sys.stdout = sys.stderr  # stdout contains the answers, so printed text must not go there
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            print(json.dumps(getattr(self, method)(*arguments)), file=answers, flush=True)


def digest(x):
    return f"{x.dtype.name} {x.shape} {hashlib.blake2b(x.tobytes(), digest_size=16).hexdigest()}"
