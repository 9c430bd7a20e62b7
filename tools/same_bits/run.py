"""Distributes groups of cases over pairs of processes, one process for each build, and collects the outcomes."""

import collections
import concurrent.futures
import pathlib
import queue
import sys
import threading
import time

import tqdm

from same_bits import cases
from same_bits.compare import KINDS, compare, words
from same_bits.sides import Sides


def describe(settings, sides):
    """Returns the descriptions of the two builds. Ends the program if a build was not loaded from its folder."""
    builds = sides.ask_both("describe")
    for name, folder, build in zip(("base", "new"), (settings.base, settings.new), builds):
        if not pathlib.Path(build["file"]).resolve().is_relative_to(folder.resolve()):
            settings.error(f"--{name}: {folder}, allowed a folder with the package attend; found {build['file']}")
    return builds


def passes_of(compute, builds, error):
    """Converts a name of --compute to a pair: the backend of forward, and the backend of backward or None."""
    if compute == "auto":
        return compute, compute
    names = [name for name in builds[0]["backends"] if name in builds[1]["backends"]]
    forward_only = {name for build in builds for name in build["forward_only"]}
    forward = next((name for name in (compute, f"{compute}_forward") if name in names), None)
    if forward is None:
        error(f"--compute: {compute!r}, allowed auto, {', '.join(names)}")
    backward = next((name for name in (compute, f"{compute}_backward") if name in names), None)
    return forward, None if backward in forward_only else backward


class Run:
    """A run of the tool, in which every requested backend computes each case.

    `settings` contains the command-line options. `passes` maps each name of --compute to the result of passes_of.
    """

    def __init__(self, settings, passes):
        self._settings, self._passes = settings, passes
        self._stops = False  # True if a process has ended early
        self._lock = threading.Lock()  # protects the fields below, because several threads change them
        self.counts = {name: collections.Counter() for name in passes}
        # For each backend, the number of cases in which a result varies.
        self.varying = {name: collections.Counter() for name in passes}
        # The messages of refusals: those of base and of new.
        self.lines = {name: collections.Counter() for name in passes}
        self.differing = []

    def all_of(self, groups, first):
        """Runs the groups, several at a time. If a process ends early, no further case is started, and SystemExit is
        raised.

        `first` is a pair of processes that are already running. More pairs are started if needed.
        """
        s = self._settings
        num_pairs = max(1, min(s.jobs, len(groups)))
        pairs = queue.SimpleQueue()
        pairs.put(first)
        for _ in range(num_pairs - 1):
            pairs.put(Sides(s.base, s.new, s.device))
        self._total = sum(map(len, groups)) * len(self._passes)
        with (
            tqdm.tqdm(total=self._total, disable=None, unit="run", file=sys.stderr, leave=False) as bar,
            concurrent.futures.ThreadPoolExecutor(num_pairs) as pool,
        ):
            jobs = [pool.submit(self._group, group, pairs, bar) for group in groups]
            try:
                for job in concurrent.futures.as_completed(jobs):
                    job.result()
            except BaseException:
                self._stops = True
                raise
        for _ in range(num_pairs):
            pairs.get().close()

    def _group(self, group, pairs, bar):
        if time.monotonic() > self._settings.deadline:
            return
        sides = pairs.get()  # never waits, because there is one pair for each thread
        try:
            for compute, passes in self._passes.items():
                for case in group:
                    if self._stops:
                        return
                    self._one(sides, compute, case, passes)
                    bar.set_postfix_str(f"{compute} {case['number']}")
                    bar.update()
        finally:
            pairs.put(sides)

    def _one(self, sides, compute, case, passes):
        may_vary = self._settings.device == "cuda" and not case["deterministic"]
        try:
            outcome = compare(sides, ("run", case, self._settings.seed, *passes), may_vary)
        except SystemExit as error:
            self._stops = True
            raise SystemExit(f"{compute} {cases.text(case)}: {error}") from error
        with self._lock:
            self._take(compute, case, outcome)

    def _take(self, compute, case, outcome):
        self.counts[compute][outcome.kind] += 1
        self.varying[compute].update(outcome.varying)
        self.lines[compute].update(outcome.lines)
        if not outcome.differences:
            return
        self.differing.append({"compute": compute, "case": case, "differences": outcome.differences})
        for found in outcome.differences:
            tqdm.tqdm.write(f"{compute} {cases.text(case)}: {words(found)}", file=sys.stdout)
        sys.stdout.flush()

    def summary(self):
        """Yields a line for each backend, for each refusal whose messages differ between the builds, and for missing
        cases.
        """
        for compute, counts in self.counts.items():
            line = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
            more = ", ".join(f"{count} of {name}" for name, count in sorted(self.varying[compute].items()))
            nothing = "" if self._has_computed(compute) else "; NONE was computed"
            yield f"{compute}: {line}{'; varying: ' + more if more else ''}{nothing}"
            for (base, new), count in self.lines[compute].most_common():
                if base != new:
                    yield f"  refused by both with different messages, {count} times: {base!r} became {new!r}"
        missing = self._total - self._num_run()
        if missing:
            why = "a process ended early" if self._stops else "--seconds was over"
            yield f"{missing} of {self._total} runs are missing: {why}"

    def report(self):
        """Returns the data of the JSON file."""
        return {
            "computes": {
                name: {
                    **{kind: counts[kind] for kind in KINDS},
                    "varying": dict(self.varying[name]),
                    "refusals": [
                        {"count": n, "base": base, "new": new} for (base, new), n in self.lines[name].most_common()
                    ],
                }
                for name, counts in self.counts.items()
            },
            "missing": self._total - self._num_run(),
            "passed": self.passed(),
            "differing": self.differing,
        }

    def passed(self):
        return not self.differing and self._num_run() == self._total and all(map(self._has_computed, self._passes))

    def _num_run(self):
        return sum(sum(counts.values()) for counts in self.counts.values())

    def _has_computed(self, compute):
        return any(self.counts[compute][kind] for kind in KINDS if kind != "refused")
