"""What one learns from the measurements: the opening paragraphs of docs/experiments.md."""

import json

import ladder_table
import report

PEERS = report.ROOT / "results" / "h200" / "vs_peers_paper_bf16.json"
LARGE, HALF, SHORT = "8,16,2048,64", "2,16,8192,128", "32,16,512,128"  # (B, H, S, D)

TEXT = """\
On an H200, forward where nothing else is said. Problems are (B, H, S, D).

1. **Tiling saves memory first.** `standard` keeps the scores, 4 B H S² bytes; every later rung keeps what it has for the rows
   alone. At (1,8,8192,64) in float32 that is 2 GiB against 16 MiB of results: whether a length fits is decided here, not by
   speed.
2. **Fewer bytes are not yet less time.** At ({LARGE}) in float32 the first kernel that keeps no scores, `naive`, takes {naive} ms
   and `standard` {standard}; the first tiled ones, `fa1` ({fa1}) and `flash_2d` ({flash_2d}), hardly win. What wins is reuse: `fa2`,
   8 x 8 scores of a thread in registers, takes {fa2}.
3. **Who gets a block matters as much.** `flash_2d` gives a block to each head; `fa2_naive` computes the same products with a block
   for each tile of rows, {fa2_naive} ms: with fewer heads than multiprocessors most of the GPU would wait. That is
   FlashAttention-2's first point.
4. **Tensor cores are worth what feeds them.** In bfloat16 at ({HALF}) `mma` takes {mma} ms. Without bank conflicts (`mma_swizzle`)
   it is {mma_swizzle}, with copies in the background (`mma_qreg_async`) {mma_qreg_async}, with Hopper's warpgroups and a warp
   that only loads (`wgmma_specialized`) {wgmma_specialized}, as a product with every option (`sm90_forward`) {sm90_forward}:
   {best} TFLOP/s, beside {product} of a large matrix product.
5. **Short problems are another sport.** At ({SHORT}), causal, bfloat16, attend reaches {short} TFLOP/s and the best of its peers
   {short_peer}, of {long} at S = 8192: tiles on the diagonal are half empty, and each block fills and drains its pipeline for few keys.
6. **Backward is five products for two, and the harder half.** At ({HALF}) in bfloat16 `sm90_backward` reaches {backward} TFLOP/s,
   {behind} % less than forward."""


def speeds(row):
    """attend's, and the best of the others."""
    others = [x for name, x in row["tflops"].items() if name in ("fa3", "fa4", "fa2", "cudnn", "efficient")]
    return row["tflops"]["attend"], max(others)


def text():
    rungs = {(r["compute"], r["mode"]): r for r in json.loads(ladder_table.FILE.read_text())["rungs"]}
    products = json.loads(ladder_table.FILE.read_text())["matrix_products"]
    (product,) = (m["tflops"] for m in products if m["dtype"] == "bf16" and m["beside"] == "forward")
    causal = {r["S"]: r for r in json.loads(PEERS.read_text())["rows"] if r["D"] == 128 and r["causal"] and r["mode"] == "fwd"}
    short, short_peer = speeds(causal[512])
    best, backward = rungs["sm90_forward", "forward"]["tflops"], rungs["sm90_backward", "backward"]["tflops"]
    names = ("naive", "standard", "fa1", "flash_2d", "fa2", "fa2_naive", "mma", "mma_swizzle", "mma_qreg_async",
             "wgmma_specialized", "sm90_forward")
    return TEXT.format(
        LARGE=LARGE, HALF=HALF, SHORT=SHORT, **{name: f"{rungs[name, 'forward']['ms']:.3g}" for name in names},
        best=f"{best:.0f}", product=f"{product:.0f}", short=f"{short:.0f}", short_peer=f"{short_peer:.0f}",
        long=f"{speeds(causal[8192])[0]:.0f}", backward=f"{backward:.0f}", behind=f"{100 * (1 - backward / best):.0f}",
    )  # fmt: skip


def sections():
    command = "attend ladder --json results/h200/ladder.json"
    parts = ("kernels/common", "kernels/ladder", "kernels/sm90")
    return [report.Section(report.DOCS / "experiments.md", "conclusions", (ladder_table.FILE, PEERS), parts, text, command)]
