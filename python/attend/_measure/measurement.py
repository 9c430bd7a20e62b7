"""Measures implementations: checks each against float64, then times those of a device in alternation."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, TypeVar

from attend._measure import timing
from attend._measure.apart import on_a_fresh_thread
from attend._measure.errors import INTERRUPTED, gpu_is_here
from attend._measure.implementations import Implementation, Prepared, refusal
from attend._measure.inputs import Source, keep_float32_products
from attend._measure.memory import Meter
from attend._measure.problems import Problem
from attend._measure.reference import Truth, compare

T = TypeVar("T")


@dataclasses.dataclass
class Row:
    """The measurement of one implementation on one problem in one pass. If it was skipped or failed, `ms` is None and
    `remark` contains the reason.

    If `passed` is None, the result was not checked. The units are those of docs/experiments.md.
    """

    experiment: str
    implementation: str
    library: str
    device: str
    dtype: str
    mode: str
    B: int
    H: int
    S: int
    D: int
    causal: bool
    ms: Optional[float] = None
    ms_min: Optional[float] = None
    ms_p25: Optional[float] = None
    ms_p75: Optional[float] = None
    samples: int = 0
    speedup: Optional[float] = None
    tflops: Optional[float] = None
    gbps: Optional[float] = None
    peak_mib: Optional[float] = None
    max_abs_err: Optional[float] = None
    max_abs_allowed: Optional[float] = None
    mean_abs_err: Optional[float] = None
    mse: Optional[float] = None
    max_rel_err: Optional[float] = None
    passed: Optional[bool] = None
    remark: str = ""

    @property
    def shape(self) -> str:
        return f"({self.B}, {self.H}, {self.S}, {self.D}){' causal' if self.causal else ''}"


# The time of a problem with fewer operations than this is dominated by launch overhead. It does not predict the time of
# larger problems.
TELLING_FLOPS = 1e8

COLUMNS = [field.name for field in dataclasses.fields(Row)]


class CheckFailedError(Exception):
    """A result was wrong. The measurement stops at the first wrong result."""


@dataclasses.dataclass(frozen=True)
class Settings:
    tolerance: float = 1e-3
    stop_on_failure: bool = True
    gpu_reference: bool = True  # compute the float64 reference on the GPU if there is one
    max_seconds: float = 10.0  # limit for checking and timing one implementation on one problem in one pass
    limits: timing.Limits = dataclasses.field(default_factory=timing.Limits)
    checked_scores: Optional[int] = None  # the `most_scores` of Truth
    seed: int = 0


class Progress:
    """Receives progress reports of a measurement. This base class ignores them."""

    def step(self, what: str) -> None:
        """Called when one implementation has finished one problem."""

    def found(self, row: Row) -> None:
        """Called when the row of an implementation, problem and pass is final."""


class Measurement:
    """Measures implementations. `rows` has one entry for each requested implementation, problem and pass, even if it
    was skipped.
    """

    def __init__(self, settings: Settings, progress: Optional[Progress] = None) -> None:
        keep_float32_products()
        self.settings = settings
        self.progress = progress or Progress()
        self.rows: list[Row] = []
        self._flops_per_second: dict[tuple[str, str], float] = {}
        self._meters = {device: Meter(device) for device in (["cpu", "cuda"] if gpu_is_here() else ["cpu"])}

    def measure(
        self, problem: Problem, modes: Sequence[str], implementations: Sequence[Implementation], experiment: str
    ) -> list[Row]:
        """Returns rows of all implementations that support the mode, in the order of `implementations`.

        Raises:
            CheckFailedError if the settings require it, and KeyboardInterrupt. `rows` keeps its entries, and the
            `remark` of an entry that was not measured says so.
        """
        before = len(self.rows)
        try:
            self._measure(problem, modes, implementations, experiment)
        except CheckFailedError:
            self._mark_the_rest(before, "not timed, because an earlier check failed")
            raise
        except KeyboardInterrupt:
            self._mark_the_rest(before, "not timed, because the run was interrupted")
            raise
        return self.rows[before:]

    def _mark_the_rest(self, first: int, remark: str) -> None:
        for row in self.rows[first:]:
            if row.ms is None and not row.remark:
                row.remark = remark

    def _measure(
        self, problem: Problem, modes: Sequence[str], implementations: Sequence[Implementation], experiment: str
    ) -> None:
        truths: dict[str, Truth] = {}
        source: Optional[Source] = None
        for mode in modes:
            able = [x for x in implementations if mode == "forward" or x.has_backward]
            rows = {x.name: _row(x, problem, mode, experiment) for x in able}
            self.rows += rows.values()
            for device in ("cpu", "cuda"):
                left = [x for x in able if x.device == device and not self._too_large(rows[x.name], problem)]
                if left and source is None:
                    source = self._draw(problem, [rows[x.name] for x in left])
                if source is not None:
                    self._measure_device(problem, left, rows, source, truths, "backward" in modes)
                for x in able:
                    if x.device == device:
                        self.progress.found(rows[x.name])

    def _draw(self, problem: Problem, rows: Sequence[Row]) -> Optional[Source]:
        """Returns the inputs, or None if they cannot be drawn. The rows then contain the reason."""
        try:
            return Source(problem, self.settings.seed)
        except Exception as error:  # noqa: BLE001 (an error in one problem must not lose the others)
            for row in rows:
                self._note(row, error)
                self.progress.step(f"{row.implementation} {row.mode} {problem}")
            return None

    def _measure_device(
        self,
        problem: Problem,
        implementations: list[Implementation],
        rows: dict[str, Row],
        source: Source,
        truths: dict[str, Truth],
        with_backward: bool,
    ) -> None:
        prepared: dict[str, Prepared] = {}
        rough: dict[str, float] = {}
        _clean_up()
        for x in implementations:
            row = rows[x.name]
            try:
                with warnings.catch_warnings():
                    # torch issues long warnings about every backend that does not support a problem.
                    warnings.simplefilter("ignore")
                    self._check(x, row, problem, source, truths, with_backward)
                    prepared[x.name], rough[x.name] = self._warm(x, row, problem, source)
            except CheckFailedError:
                raise
            except _TooSlowError as slow:
                row.remark = row.remark or str(slow)
            except Exception as error:  # noqa: BLE001 (an exception of a library is a result and must not end the run)
                self._note(row, error)
            self.progress.step(f"{x.name} {row.mode} {problem}")
        if not prepared:
            return
        try:
            timings = timing.in_turns(prepared, rough, implementations[0].device, self.settings.limits)
        except Exception as error:  # noqa: BLE001 (as above; on a GPU the failing side is unknown)
            for name in prepared:
                self._note(rows[name], error)
            return
        for name, taken in timings.items():
            row = rows[name]
            row.ms, row.ms_min, row.ms_p25, row.ms_p75, row.samples = dataclasses.astuple(taken)
            row.tflops = problem.flops(row.mode) / taken.ms / 1e9
            row.gbps = problem.bytes_moved(row.mode, row.dtype) / taken.ms / 1e6
            # The prediction for larger problems uses the minimum time, so that a slow moment of the machine does not
            # affect it.
            rate = problem.flops(row.mode) / (taken.ms_min / 1e3)
            key = name, row.mode
            if problem.flops(row.mode) >= TELLING_FLOPS:
                self._flops_per_second[key] = max(rate, self._flops_per_second.get(key, 0.0))

    def _check(
        self,
        x: Implementation,
        row: Row,
        problem: Problem,
        source: Source,
        truths: dict[str, Truth],
        with_backward: bool,
    ) -> None:
        """Runs one call as a user would, and compares its results with float64. Records its peak memory."""
        tensors = source.inputs(x.dtype, x.device).sets[0]
        if x.dtype not in truths:
            on_gpu = self.settings.gpu_reference and gpu_is_here()
            given = tensors, problem.causal, with_backward, "cuda" if on_gpu else "cpu", self.settings.checked_scores
            truths[x.dtype] = Truth(*given) if on_gpu else on_a_fresh_thread(lambda: Truth(*given))
        got, row.peak_mib = self._meters[x.device].peak(lambda: x.step(tensors, problem.causal, row.mode))
        errors = compare(got, truths[x.dtype], row.mode, x.dtype, self.settings.tolerance, x.rounds_scores)
        row.max_abs_err, row.max_abs_allowed, row.mean_abs_err, row.mse, row.max_rel_err, row.passed = (
            dataclasses.astuple(errors)
        )
        if not errors.passed:
            row.remark = f"max abs error {errors.max_abs:.3g}, allowed {errors.allowed:.3g}"
            if self.settings.stop_on_failure:
                raise CheckFailedError(f"{x.name} {row.mode} {problem}: {row.remark}")

    def _warm(self, x: Implementation, row: Row, problem: Problem, source: Source) -> tuple[Prepared, float]:
        inputs = source.inputs(x.dtype, x.device)
        prepared = x.prepare(inputs, problem.causal, row.mode)
        rough = timing.rough_ms(prepared, x.device, len(inputs.sets))
        if timing.MIN_SAMPLES * rough / 1e3 > self.settings.max_seconds:
            raise _TooSlowError(f"a call takes {rough / 1e3:.3g} s, beyond --max-seconds {self.settings.max_seconds:g}")
        return prepared, rough

    def _too_large(self, row: Row, problem: Problem) -> bool:
        """Returns whether the implementation is expected to exceed the time limit. If so, the row contains the
        reason.
        """
        rate = self._flops_per_second.get((row.implementation, row.mode))
        if rate is None:
            return False
        call = problem.flops(row.mode) / rate
        # A slow implementation runs one call for the check, some for the first estimate, and MIN_SAMPLES samples.
        if (timing.MIN_SAMPLES + 3) * call <= self.settings.max_seconds:
            return False
        row.remark = f"about {call:.2g} s per call, beyond --max-seconds {self.settings.max_seconds:g}"
        self.progress.step(f"{row.implementation} {row.mode} {problem}")
        return True

    def _note(self, row: Row, error: Exception) -> None:
        """Records an error in the row. If the problem is unsupported, the row counts as skipped, unless its check has
        already failed. After any other error the row counts as failed.
        """
        refused = refusal(error)
        if refused:
            row.remark = row.remark or refused
            _clean_up()
        else:
            row.passed = False
            row.remark = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            if self.settings.stop_on_failure:
                raise CheckFailedError(f"{row.implementation} {row.mode} {row.shape}: {row.remark}") from error


def each_until_interrupted(problems: Iterable[T], measure: Callable[[T], Any], notes: list[str]) -> int:
    """Measures one problem after another. Returns 0. After Ctrl-C it stops, adds a line to `notes`, and returns the
    exit status of an interrupt.
    """
    try:
        for problem in problems:
            measure(problem)
    except KeyboardInterrupt:
        notes.append("interrupted: the results so far are here")
        return INTERRUPTED
    return 0


def _clean_up() -> None:
    """Frees the memory of the previous problem before the next one starts."""
    gc.collect()
    if gpu_is_here():
        import torch

        torch.cuda.empty_cache()


class _TooSlowError(Exception):
    pass


def _row(x: Implementation, problem: Problem, mode: str, experiment: str) -> Row:
    return Row(experiment, x.name, x.library, x.device, x.dtype, mode, *problem.shape, problem.causal)


def left_out_lines(rows: Sequence[Row]) -> list[str]:
    """Returns one line for each combination of implementation, pass and reason. The line lists the skipped problems."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.ms is None and row.passed is not False:
            reason = row.remark if not row.remark.startswith("about") else row.remark.partition(": ")[2]
            found.setdefault((row.implementation, row.mode, reason), []).append(row.shape)
    return [f"{name} {mode} at {', '.join(shapes)}: {reason}" for (name, mode, reason), shapes in found.items()]


def failures(rows: Sequence[Row]) -> list[str]:
    return [f"{r.implementation} {r.mode} {r.shape}: {r.remark}" for r in rows if r.passed is False]


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]
