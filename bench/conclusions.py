"""Writes the first paragraphs of docs/experiments.md, which are conclusions from the measurements."""

import json

import ladder_table
import report

PEERS = report.ROOT / "results" / "h200" / "vs_peers_paper_bf16.json"
LARGE, HALF, SHORT = "8,16,2048,64", "2,16,8192,128", "32,16,512,128"  # (B, H, S, D)

TEXT = """\
On an H200. Figures are for the forward pass unless stated otherwise. Problems are (B, H, S, D).

1. **Tiling saves memory first.** `standard` keeps the scores, 4 B H S² bytes. Every later rung keeps only a few values for each
   row. At (1,8,8192,64) in float32 the scores take 2 GiB and the results 16 MiB. The first effect of
   tiling is therefore that longer sequences fit into memory.
2. **Less memory does not mean less time.** At ({LARGE}) in float32 `naive`, the first kernel without stored scores, takes {naive} ms
   and `standard` {standard} ms. The first tiled kernels, `fa1` ({fa1} ms) and `flash_2d` ({flash_2d} ms), gain little. Only reuse
   of registers makes a large difference. In `fa2` each thread keeps 8 x 8 scores in registers, and the kernel takes {fa2} ms.
3. **The division into blocks matters as much.** `flash_2d` has one block for each head. `fa2_naive` computes the same products with
   one block for each tile of rows and takes {fa2_naive} ms. With few heads, one block for each head would leave most of the GPU
   idle. This is the first point of the FlashAttention-2 paper.
4. **Operands limit the tensor cores.** In bfloat16 at ({HALF}) `mma` takes {mma} ms. `mma_swizzle`
   has no bank conflicts and takes {mma_swizzle} ms. `mma_qreg_async` copies in the background and takes {mma_qreg_async} ms.
   `wgmma_specialized` uses Hopper's warpgroups and a warp that only loads, and takes {wgmma_specialized} ms. The production kernel, `sm90_forward`,
   takes {sm90_forward} ms. That is {best} TFLOP/s, compared with {product} of a large matrix product.
5. **Short sequences are a different problem.** At ({SHORT}), causal, bfloat16, attend reaches {short} TFLOP/s and the best of its
   peers {short_peer}. At S = 8192 attend reaches {long}. With few keys, many tiles lie on the diagonal and are half empty, and each
   block fills and drains its pipeline for little work.
6. **Backward is the harder half.** It has five products, and forward has two. At ({HALF}) in bfloat16 `sm90_backward` reaches
   {backward} TFLOP/s, {behind} % less than forward."""


def speeds(row):
    """Returns attend's speed and the speed of its best peer."""
    others = [x for name, x in row["tflops"].items() if name in ("fa3", "fa4", "fa2", "cudnn", "efficient")]
    return row["tflops"]["attend"], max(others)


def text():
    rungs = {(r["compute"], r["mode"]): r for r in json.loads(ladder_table.FILE.read_text())["rungs"]}
    products = json.loads(ladder_table.FILE.read_text())["matrix_products"]
    (product,) = (m["tflops"] for m in products if m["dtype"] == "bf16" and m["beside"] == "forward")
    causal = {
        r["S"]: r for r in json.loads(PEERS.read_text())["rows"] if r["D"] == 128 and r["causal"] and r["mode"] == "fwd"
    }
    short, short_peer = speeds(causal[512])
    best, backward = rungs["sm90_forward", "forward"]["tflops"], rungs["sm90_backward", "backward"]["tflops"]
    names = (
        "naive",
        "standard",
        "fa1",
        "flash_2d",
        "fa2",
        "fa2_naive",
        "mma",
        "mma_swizzle",
        "mma_qreg_async",
        "wgmma_specialized",
        "sm90_forward",
    )
    return TEXT.format(
        LARGE=LARGE, HALF=HALF, SHORT=SHORT, **{name: f"{rungs[name, 'forward']['ms']:.3g}" for name in names},
        best=f"{best:.0f}", product=f"{product:.0f}", short=f"{short:.0f}", short_peer=f"{short_peer:.0f}",
        long=f"{speeds(causal[8192])[0]:.0f}", backward=f"{backward:.0f}", behind=f"{100 * (1 - backward / best):.0f}",
    )  # fmt: skip


def sections():
    command = "attend ladder --json results/h200/ladder.json"
    parts = ("kernels/common", "kernels/ladder", "kernels/sm90")
    return [
        report.Section(report.DOCS / "experiments.md", "conclusions", (ladder_table.FILE, PEERS), parts, text, command)
    ]
