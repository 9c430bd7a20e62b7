"""Compares attend with transformers' eager attention for every architecture of transformers, in a small size.

    python python/tests/architectures.py            the table of docs/hugging_face.md, to stdout
    python python/tests/architectures.py --write    into the file
    python python/tests/architectures.py bert bart  only these, to stdout

Weights are drawn so that the scores of a row differ strongly. A missing mask or scale then changes the first digit of
the result.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import concurrent.futures.process
import contextlib
import dataclasses
import io
import multiprocessing
import pathlib
import resource
import signal
import sys
import textwrap
import warnings
from typing import Any, Optional

from small_models import NoModelError, first_output, first_that_runs, inputs_of, twin

SECONDS = 120  # time limit for one architecture
TOLERANCE = 1e-4  # relative to the largest magnitude, for a few float32 layers; a missing mask gives 1e-2 or more
MOST_BYTES = 4 << 30  # memory limit of a process
TABLE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "hugging_face.md"


@dataclasses.dataclass
class Outcome:
    """The result for one architecture: the model class and the cases that agree, a refusal, or the reason why there is
    no result.
    """

    model_type: str
    verdict: str  # same, refused, differs, no attention, not tried; or a part of other models
    class_name: str = ""
    cases: str = ""
    remark: str = ""


def generated(model: Any) -> Any:
    arguments = inputs_of(model, "left")
    arguments.pop("decoder_input_ids", None)
    return model.generate(**arguments, max_new_tokens=5, min_new_tokens=5, do_sample=False)


def error_of(found: Any, want: Any) -> float:
    """Returns the largest error relative to the largest magnitude. Equal infinities, and NaN in both, do not count as
    errors.
    """
    import torch

    if torch.equal(torch.isfinite(found), torch.isfinite(want)):
        found, want = (x.nan_to_num(0.0, 0.0, 0.0) for x in (found, want))
    return float((found - want).abs().max() / want.abs().max().clamp(min=1e-30))


def differences(models: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the cases in which attend and eager agree, and a line for each case in which they differ."""
    import torch

    same, different = [], []
    eager = models["eager"]
    for padding in ("none", "left", "right"):
        arguments = inputs_of(models["eager"], padding)
        if arguments is None:
            continue
        found, want = (first_output(models[name], arguments) for name in ("attend", "eager"))
        error = error_of(found, want)
        label = "no padding" if padding == "none" else f"padding {padding}"
        if error <= TOLERANCE:
            same.append(label)
        elif type(eager)._supports_sdpa and error_of(found, first_output(twin(eager, "sdpa"), arguments)) <= TOLERANCE:
            same.append(f"{label} (torch's sdpa differs from eager alike)")
        else:
            different.append(f"{label}: {error:.1e} of the largest magnitude")
    if models["eager"].can_generate() and models["eager"].main_input_name == "input_ids":
        try:
            want = generated(models["eager"])
        except Exception:  # noqa: BLE001 (if eager fails, the case cannot be compared)
            return same, different
        if torch.equal(generated(models["attend"]), want):
            same.append("generate")
        else:
            different.append("generate: other words")
    return same, different


def examine(model_type: str) -> Outcome:
    import attend.transformers
    import torch

    attend.transformers.register()
    torch.set_num_threads(1)
    try:
        eager = first_that_runs(model_type)
    except TimeoutError:
        raise
    except NoModelError as error:
        return Outcome(model_type, "a part", remark=line_of(error))
    except Exception as error:  # noqa: BLE001 (the architecture cannot be compared)
        return Outcome(model_type, "not tried", remark=line_of(error))
    name = type(eager).__name__
    calls = []
    plain = attend.transformers.attention

    def counting(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return plain(*arguments, **options)

    attend.transformers.attention = counting
    try:
        models = {"eager": eager, "attend": twin(eager, "attend")}
        same, different = differences(models)
    except attend.Error as error:
        return Outcome(model_type, "refused", name, remark=line_of(error, with_type=False))
    except Exception as error:  # noqa: BLE001 (an exception that attend did not raise on purpose is a fault)
        return Outcome(model_type, "differs", name, remark=line_of(error))
    finally:
        attend.transformers.attention = plain
    if different:
        return Outcome(model_type, "differs", name, ", ".join(same), "; ".join(different))
    return Outcome(model_type, "same" if calls else "no attention", name, ", ".join(same))


def line_of(error: BaseException, with_type: bool = True) -> str:
    first = str(error).strip().partition("\n")[0][:150]
    return f"{type(error).__name__}: {first}" if with_type else first


def examine_quietly(model_type: str) -> Outcome:
    """Examines the architecture in a separate process, with a time limit."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        import transformers

        transformers.logging.set_verbosity(transformers.logging.CRITICAL)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return examine(model_type)
    except TimeoutError as error:
        return Outcome(model_type, "not tried", remark=str(error))
    finally:
        signal.alarm(0)


def examine_all(model_types: list[str], workers: int) -> list[Outcome]:
    """Examines the architectures in `workers` processes. If a process dies, for example for lack of memory, only its
    architecture fails.
    """
    found: dict[str, Outcome] = {}
    context = multiprocessing.get_context("spawn")
    while left := [name for name in model_types if name not in found]:
        with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
            tasks = {name: pool.submit(examine_quietly, name) for name in left}
            for name, task in tasks.items():
                try:
                    found[name] = task.result()
                except concurrent.futures.process.BrokenProcessPool:
                    found[name] = Outcome(name, "not tried", remark="its process or the other process ended early")
                    break
                print(f"{name}: {found[name].verdict} {found[name].remark}", file=sys.stderr, flush=True)
    return [found[name] for name in model_types]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_types", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found = examine_all(options.model_types or sorted(CONFIG_MAPPING_NAMES), options.workers)
    found = [outcome for outcome in found if outcome.verdict != "a part"]
    text = table_of(found)
    if options.write:
        TABLE.write_text(text)
    else:
        print(text)
    return int(any(outcome.verdict == "differs" for outcome in found))


HEADING = """# Hugging Face architectures with `attn_implementation="attend"`

`attend.transformers.register()` makes attend an attention implementation of transformers. For each architecture below,
a script made a small model (two layers, 32 channels, random weights) and ran it on the CPU in float32, once with
transformers' `eager` attention and once with attend. The script compared the two results without padding, with padding
on the left, with padding on the right, and in `generate` if the model has it.
`python python/tests/architectures.py --write` writes this page; it used torch {torch} and transformers {transformers}.

- **same**: in all cases that were tried, the results differ by at most {tolerance:g} of the largest magnitude, and
  attend was called. In some cases torch's `sdpa` differs from `eager`; attend then gives the result of `sdpa`.
- **refused**: attend raises a one-line `attend.Error`, because the model computes attention in its own code or needs an
  option that attend does not support.
- **no attention**: the model has no attention layer that could call attend.
- **not tried**: the script could not make a small model of the architecture, or does not have the inputs that it needs.

[serving.md](serving.md#hugging-face) describes `generate_batch`, the continuous batching of transformers.

Models with attention sinks, such as `gpt_oss`, pass them as `s_aux`. attend computes them as the option `sinks`, with
their gradient.

"""


def table_of(found: list[Outcome]) -> str:
    import torch
    import transformers

    lines = [HEADING.format(torch=torch.__version__, transformers=transformers.__version__, tolerance=TOLERANCE)]
    count = collections.Counter(outcome.verdict for outcome in found)
    words = {"same": "are the same", "not tried": "were not tried", "refused": "are refused"}
    counts = [f"{n} {words.get(verdict, verdict)}" for verdict, n in count.most_common()]
    lines[0] += f"Architectures: {', '.join(counts)}.\n"
    lines.append("| architecture | verdict | class | agrees in | remark |\n|---|---|---|---|---|")
    for outcome in (x for x in found if x.verdict != "not tried"):
        remark = outcome.remark.replace("|", "/")
        if "computes attention in its own code" in remark:
            remark = remark.partition(" with ")[2].partition(",")[0] + " computes attention in its own code"
        cells = (f"`{outcome.model_type}`", outcome.verdict, outcome.class_name, outcome.cases, remark)
        lines.append(f"| {' | '.join(cells)} |")
    left = ", ".join(f"`{x.model_type}`" for x in found if x.verdict == "not tried")
    lines += ["", *textwrap.wrap(f"Not tried: {left}.", 120, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def documented() -> Optional[dict[str, str]]:
    """Returns the verdicts of the committed table, except "not tried", or None if there is no table."""
    if not TABLE.exists():
        return None
    rows = [line.split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return {row[0].strip("| `"): row[1] for row in rows}


if __name__ == "__main__":
    sys.exit(main())
