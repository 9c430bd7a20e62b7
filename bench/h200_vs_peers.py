#!/usr/bin/env python3
"""Times attend and its peers on this machine's GPU, through the Python package, in one process and in turns.

    python3 bench/h200_vs_peers.py                        # every grid in bf16 and f16: results/h200/vs_peers_*.json
    python3 bench/h200_vs_peers.py --grid paper --dtype bf16 --compute sm80_forward,sm80_backward

The grid `own` measures custom scores and masks, compared with FlexAttention and with attend's built-in options. The
grid `corners` measures few heads, few rows, very long sequences and large head_dim.

The peers are PyTorch's cuDNN, FlashAttention-2 (fa2) and memory-efficient backends, FlexAttention for masks, and, if
they are importable, FlashAttention-3 (fa3: flash_attn_interface) and FlashAttention-4 (fa4: flash_attn.cute of the
package flash-attn-4). The script needs attend's package, torch and NumPy, but no build of the repository.

The comparison is fair for these reasons:
  * All sides read the same tensors of random normal numbers, and their results are compared before anything is timed.
  * Samples of the sides alternate, and the order of the sides changes from round to round. A sample is a series of
  calls that fills four milliseconds,
    timed by CUDA events. Other work keeps the GPU busy while Python launches the first call. Python's time therefore
    counts only if it exceeds the time of the kernels. The script reports the median.
  * Forward runs without autograd. Backward is autograd.grad of a graph built before the clock starts.

Forward has 4 D operations for each visible pair of a row and a key, where D is head_dim. Backward has 2.5 times that
number. Each line of results is saved at once. The exit status is 1 if the results of a peer differ from attend's, or if
attend refuses a problem.
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import gc
import importlib.metadata
import pathlib
import sys

import attend
import corner_cases
import own_peer_cases
import peer_cases
import peer_tables
import report
import torch
from attend._measure import files, timing
from attend._measure.differences import (
    LARGEST_DIFFERENCE,
    LARGEST_DIFFERENCE_F32,
    first_line,
    relative_difference,
)
from attend._measure.implementations import Prepared

GRIDS = {**peer_cases.GRIDS, "corners": corner_cases.corners, "own": own_peer_cases.own}
RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results" / "h200"
PRODUCT_SIZE = 8192


@contextlib.contextmanager
def kept_busy(device, wants_gradient):
    """Keeps the GPU busy at the start of a sample, until the first event of the clock is in the queue."""
    if device == "cuda":
        torch.cuda._sleep(timing.BUSY_CYCLES)
    with torch.set_grad_enabled(wants_gradient):
        yield


def calls_of(case, mode, errors):
    """Returns {side: timed call}. A call returns a tuple of tensors. If a side refuses the case, its error is added to
    `errors`.
    """
    found = {}
    for name, side in case.sides.items():
        try:
            found[name] = forward_call(side, case) if mode == "fwd" else backward_call(side, case)
        except Exception as error:  # noqa: BLE001 - any exception of a peer is recorded as its result
            errors[name] = first_line(error)
    for name in case.computes:
        has_mode = ("backward" in name) == (mode == "bwd")
        if has_mode:
            found[name] = backend_call(name, case, mode)
    return found


def forward_call(side, case):
    inputs = [x.detach() for x in case.leaves]
    return lambda: (side(*inputs),)


def backward_call(side, case):
    leaves = [x for x in case.leaves if x.requires_grad]
    o = side(*case.leaves)
    dout = same_gradient(o)
    return lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True)


def backend_call(name, case, mode):
    """Returns the timed call of a backend of attend. Gradients use the forward results of attend's default backend."""
    q, k, v = (x.detach() for x in case.leaves)
    options = {"layout": "bshd", "causal": case.row["causal"]}
    if mode == "fwd":
        return lambda: (attend.attention(q, k, v, compute=name, **options),)
    o, lse = attend.forward(q, k, v, **options)
    dout = same_gradient(o)
    return lambda: attend.backward(dout, q, k, v, o, lse, compute=name, **options)


def same_gradient(o):
    """Returns the gradient of o: the same numbers for every side, with the strides of the side's o."""
    generator = torch.Generator(o.device).manual_seed(1)
    drawn = torch.randn(o.shape, generator=generator, device=o.device, dtype=torch.float32)
    return torch.empty_like(o).copy_(drawn)


def compare(calls, errors):
    """Returns {side: relative norm of the difference from attend}. If a call has several results, the largest norm
    counts. Drops sides that raise.
    """
    results, found = {}, {}
    for name in list(calls):
        try:
            results[name] = calls[name]()
        except Exception as error:  # noqa: BLE001
            errors[name] = first_line(error)
            del calls[name]
            continue
        if name == "attend" or "attend" not in results:
            continue
        pairs = zip(results.pop(name), results["attend"])
        found[name] = max(relative_difference(their.detach(), our.detach()) for their, our in pairs)
    return found


def measure(case, mode, device, limits):
    """Returns one line of the result file. If a side has no `ms`, `errors` contains the reason."""
    errors = {}
    with torch.set_grad_enabled(mode == "bwd"):
        calls = calls_of(case, mode, errors)
        difference = compare(calls, errors)
    prepared = {
        name: Prepared(lambda i, call=call: call(), lambda: kept_busy(device, mode == "bwd"))
        for name, call in calls.items()
    }
    rough = {name: timing.rough_ms(one, device, 1) for name, one in prepared.items()}
    taken = timing.in_turns(prepared, rough, device, limits)
    factor = 2.5 if mode == "bwd" else 1.0
    row = {
        **case.row,
        "mode": mode,
        "ms": {name: t.ms for name, t in taken.items()},
        "tflops": {name: factor * case.flops / t.ms / 1e9 for name, t in taken.items()},
    }
    if case.bytes_moved:
        row["gbps"] = {name: case.bytes_moved / t.ms / 1e6 for name, t in taken.items()}
    if case.comparable:
        row["difference"] = difference
    return {**row, "errors": errors}


def wrong(row):
    """Returns the sides whose results differ from attend's or have NaN, and attend if it has no result."""
    limit = LARGEST_DIFFERENCE_F32 if row["dtype"] == "f32" else LARGEST_DIFFERENCE
    differing = [name for name, x in row.get("difference", {}).items() if not x <= limit]
    return differing + ["attend"] * ("attend" not in row["ms"])


def about(device):
    """Returns the fields at the beginning of every result file: machine, versions and options."""
    versions = {
        "attend": attend.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **{name: version_of(name, module) for name, module in peer_cases.flash_attention_modules().items()},
    }
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "kind": peer_tables.KIND,
        "device_name": name,
        "driver": driver_version(),
        "versions": versions,
        "matrix_product_tflops": matrix_product(device),
        **report.provenance(),
    }


def version_of(name, module):
    """Returns the version of a peer's package, if it has one."""
    if name == "fa4":
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version("flash-attn-4")
    return getattr(module, "__version__", "no version")


def driver_version():
    """Returns the version of the NVIDIA driver, or None."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(80)
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, len(text)):
        return None
    return text.value.decode()


def matrix_product(device, size=PRODUCT_SIZE):
    """Returns the TFLOP/s of a large bfloat16 matrix product, the best of a few runs, as a measure of this GPU's
    present speed.
    """
    if device != "cuda":
        return None
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    prepared = Prepared(lambda i: torch.matmul(a, b), contextlib.nullcontext)
    return 2.0 * size**3 / timing.rough_ms(prepared, device, 10) / 1e9


def compile_all(dtype, device, modes, **sizes):
    """Compiles attend's kernels for the grid `paper` on all cores. If they were compiled one after the other, they
    would take minutes.
    """

    def prepare(call):
        *shape, causal, backward = call
        with contextlib.suppress(attend.Error):  # the measurement raises the same error again and records it
            attend.prepare(*shape, dtype=dtype, layout="bshd", causal=causal, backward=backward, device=device)

    calls = [(*shape, mode == "bwd") for shape in peer_cases.paper_shapes(**sizes) for mode in modes]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return len(list(pool.map(prepare, calls)))


def run(grid, dtype, options, head):
    """Measures one grid in one dtype and writes its result file. Returns the lines of the result file in which the
    results of a side differ."""
    path = options.output_dir / f"vs_peers_{grid}_{dtype}.json"
    more = {"computes": tuple(filter(None, options.compute.split(",")))} if grid == "paper" else {}
    limits = timing.Limits(options.rounds, seconds=options.max_seconds, sample_ms=options.sample_ms)
    rows = []
    if grid == "paper":
        compile_all(dtype, "cuda", options.mode)
    for case in GRIDS[grid](dtype, "cuda", **more):
        for mode in case.modes:
            if mode in options.mode:
                rows.append(measure(case, mode, "cuda", limits))
                files.write_json(path, {**head, "grid": grid, "dtype": dtype, "rows": rows})
                print(peer_tables.line(rows[-1]), flush=True)
        del case
        gc.collect()
        torch.cuda.empty_cache()
    print("\n" + peer_tables.text(rows) + f"\nwrote {path}\n", flush=True)
    return [f"{peer_tables.line(row)}: {', '.join(wrong(row))}" for row in rows if wrong(row)]


def names(allowed):
    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r}, allowed {', '.join(allowed)}")
        return chosen

    return parse


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    grids = list(GRIDS)
    parser.add_argument("--grid", type=names(grids), default=grids, help=f"comma-separated, from {', '.join(grids)} (all)")
    parser.add_argument("--dtype", type=names(["bf16", "f16", "f32"]), default=["bf16", "f16"],
                        help="bf16,f16; f32 only with --grid corners")
    parser.add_argument("--mode", type=names(["fwd", "bwd"]), default=["fwd", "bwd"], help="fwd,bwd")
    parser.add_argument("--compute", default="", metavar="NAME,NAME",
                        help="further backends of attend to time on the grid paper")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sample-ms", type=float, default=4.0)
    parser.add_argument("--max-seconds", type=float, default=3.0, help="time limit for one side of one row (3)")
    parser.add_argument("--output-dir", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    if "f32" in options.dtype and options.grid != ["corners"]:
        parser.error("--dtype f32: only allowed with --grid corners")
    return options


def main():
    options = arguments()
    if not torch.cuda.is_available():
        print("torch finds no GPU, which this script requires", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    head = about("cuda")
    print(peer_tables.title(head), flush=True)
    differing = [line for grid in options.grid for dtype in options.dtype for line in run(grid, dtype, options, head)]
    for line in differing:
        print(f"DIFFERS {line}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
