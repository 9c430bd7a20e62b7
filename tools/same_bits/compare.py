"""Compares two arrays bit by bit, and the results of two builds for a case."""

import base64

import numpy as np


class Result:
    """The bytes, dtype and shape of an array."""

    def __init__(self, dtype, shape, content):
        self.dtype, self.shape, self.content = dtype, tuple(shape), content

    @classmethod
    def of_answer(cls, answer):
        return cls(answer["dtype"], answer["shape"], base64.b64decode(answer["bytes"]))

    def bits(self):
        size = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}[self.dtype]
        return np.frombuffer(self.content, f"u{size}")

    def values(self):
        """Returns the values as float64."""
        if self.dtype == "bfloat16":
            return (self.bits().astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return np.frombuffer(self.content, self.dtype).astype(np.float64)


def difference(base, new):
    """Returns None if two Results have the same bits. NaNs with the same bits are equal; 0 and -0 are not.

    Otherwise returns a dict with the number of differing elements, the total number of elements (`of`), the largest
    difference of two elements (NaN if one is NaN), the largest magnitude of base's finite values, and the first
    differing element.
    """
    if (base.dtype, base.shape) != (new.dtype, new.shape):
        return {"kind": f"{base.dtype} {base.shape} became {new.dtype} {new.shape}"}
    differs = base.bits() != new.bits()
    if not differs.any():
        return None
    before, after = base.values(), new.values()
    with np.errstate(invalid="ignore"):
        apart = np.abs(after[differs] - before[differs])
    return {
        "elements": int(differs.sum()),
        "of": differs.size,
        "largest_difference": float(apart.max()),  # NaN if one is NaN
        "largest_value": float(np.abs(before[np.isfinite(before)]).max(initial=0.0)),
        "first": [int(i) for i in np.unravel_index(int(differs.argmax()), base.shape)],
    }


def words(found):
    """Returns a difference as one line."""
    if "refused" in found:
        return f"{found['refused']} refused: base {found['base']!r}, new {found['new']!r}"
    if "kind" in found:
        return f"{found['result']}: {found['kind']}"
    return (
        f"{found['result']}: {found['elements']} of {found['of']} elements differ, the first at {found['first']}, "
        f"by {found['largest_difference']:.3g} at most; base's values reach {found['largest_value']:.3g}"
    )


class Outcome:
    """The outcome of a case.

    Attributes:
        kind: "same", "refused" (both builds refused forward), "backward refused", or "differs". "backward refused"
            means that both builds refused only backward, and that forward's results are the same.
        differences: a list of dicts. For a differing result, the dict contains `result` and the fields of `difference`.
            For a pass that only one build refused, the dict contains the name of the pass as `refused`, and the
            messages of `base` and `new`, one of which is None.
        varying: results that vary between runs of one build, so they cannot be compared.
        lines: the messages of base and new for a pass that both builds refused. They are usually the same.
    """

    def __init__(self, base_refused, new_refused):
        self.differences, self.varying, self.lines = [], [], []
        for name in ("forward", "backward"):
            lines = (base_refused.get(name), new_refused.get(name))
            if None not in lines:
                self.lines.append(lines)
            elif lines != (None, None):
                self.differences.append({"refused": name, "base": lines[0], "new": lines[1]})
        self._alike = "refused" if "forward" in base_refused else "backward refused" if base_refused else "same"

    @property
    def kind(self):
        return "differs" if self.differences else self._alike


KINDS = ("same", "backward refused", "refused", "differs")
REPEATS = 4  # number of repeats of a call whose results may vary between runs


def compare(sides, message, may_vary):
    """Runs a case in both builds and compares the results.

    `sides` is an object with a method ask_both, such as same_bits.sides.Sides. `message` is the message for Worker.run.
    `may_vary` is True if results may have different bits in each run of a build.
    """
    base, new = sides.ask_both(*message)
    outcome = Outcome(base["refused"], new["refused"])
    names = [name for name, digest in base["digests"].items() if new["digests"].get(name, digest) != digest]
    found = {name: difference(*map(Result.of_answer, sides.ask_both("fetch", name))) for name in names}
    varying = varying_results(sides, message, (base, new)) if names and may_vary else set()
    outcome.varying = sorted(varying & set(names))
    outcome.differences += [{"result": name, **found[name]} for name in names if name not in varying]
    return outcome


def varying_results(sides, message, first):
    """Runs the case again in both builds. Returns the names of the results whose bits vary between runs of a build."""
    found = set()
    for _ in range(REPEATS):
        for before, now in zip(first, sides.ask_both(*message)):
            found |= {name for name, digest in now["digests"].items() if digest != before["digests"].get(name)}
    return found
