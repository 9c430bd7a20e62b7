"""What one learns from the experiments: the opening paragraphs of docs/experiments.md, with figures from results/h200.

    python3 bench/conclusions.py
"""

import json

import report

RESULTS = report.ROOT / "results" / "h200" / "experiments"
LARGE, MIDDLE, SMALL, MANY, LONG = "8,16,2048,64", "2,8,512,64", "1,1,128,64", "32,16,512,128", "1,8,8192,64"

TEXT = """\
On an H200; problems are (B, H, S, D), milliseconds of the forward pass where nothing else is said.

1. **Tiling saves memory first.** At ({LONG}) in float32 the unfused path takes {unfused_mib} MiB beyond its inputs, `fa2`
   {fa2_mib}; with backward {unfused_both_mib} and {fa2_both_mib}. One grows with S², the other with S: whether a length fits
   is decided here, not by speed.
2. **Fewer bytes are not yet less time.** At ({LARGE}) in float32 the first fused kernels, `fa1` ({fa1}) and `flash_2d`
   ({flash_2d}), lose to the unfused path and its library's matrix products ({unfused_gpu}). What wins is reuse: `fa2`, 8 x 8
   scores of a thread in registers, takes {fa2}.
3. **Who gets a block matters as much.** `flash_2d` gives a block to each head: at ({MIDDLE}) 16 of 132 multiprocessors work,
   {flash_2d_middle}. `fa2_naive` computes the same products with a block for each tile of rows: {fa2_naive_middle}. That is
   FlashAttention-2's first point.
4. **Tensor cores are worth what feeds them.** In bfloat16 at ({LARGE}) `mma` takes {mma}, about what float32 takes on CUDA
   cores. Without bank conflicts (`mma_swizzle`) it is {mma_swizzle}, with copies in the background (`mma_qreg_async`)
   {mma_qreg_async}, with Hopper's warpgroups and a warp that only loads (`wgmma_specialized`) {wgmma_specialized}:
   {best_tflops} TFLOP/s, {share} % of what a large matrix product reaches.
5. **Small and short problems are another sport.** At ({SMALL}) good kernels of all kinds take {least_us} to {most_us} us: that
   is Python and the launch. At ({MANY}), causal, bfloat16, attend's best of that day ({short}) is behind cuDNN
   ({short_cudnn}): tiles on the diagonal are half empty, and each block fills and drains its pipeline for few keys.
6. **Backward is five products for two, and the harder half.** At ({LARGE}) in float32 `fa2` takes {fa2_backward}, PyTorch's
   memory-efficient kernel {efficient_backward}. In bfloat16 CUDA cores (`simt`, {simt_backward}) are no match for tensor
   cores (cuDNN, {cudnn_backward}); these results are older than `sm90_backward` in `auto`."""


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def figure(rows, field, name, problem, mode="forward"):
    """The one figure of an implementation on a problem; those of the experiment over lengths are not looked at."""
    (found,) = (r[field] for r in rows
                if (r["implementation"], r["mode"], f"{r['B']},{r['H']},{r['S']},{r['D']}") == (name, mode, problem)
                and r.get("experiment") != "seqlen")
    return found


def text():
    results, used, causal = (load(name)["rows"] for name in ("results", "bench_memory", "bench_compare_bf16_causal"))
    product = load("bench_roofline")["ceilings"]["product_tflops"]["bf16"]

    def ms(name, problem=LARGE, mode="forward", rows=results):
        return f"{figure(rows, 'ms', name, problem, mode):.3g}"

    def mib(name, mode):
        return f"{figure(used, 'peak_mib', name, LONG, mode):.0f}"

    best = figure(results, "tflops", "wgmma_specialized", LARGE)
    small = [1e3 * figure(results, "ms", name, SMALL)
             for name in ("fa2", "wgmma_specialized", "torch_efficient", "torch_flash")]
    kernels = ("fa1", "flash_2d", "unfused_gpu", "fa2", "mma", "mma_swizzle", "mma_qreg_async", "wgmma_specialized")
    return TEXT.format(
        LARGE=LARGE, MIDDLE=MIDDLE, SMALL=SMALL, MANY=MANY, LONG=LONG, **{name: ms(name) for name in kernels},
        unfused_mib=mib("unfused", "forward"), unfused_both_mib=mib("unfused", "backward"),
        fa2_mib=mib("fa2", "forward"), fa2_both_mib=mib("fa2", "backward"),
        flash_2d_middle=ms("flash_2d", MIDDLE), fa2_naive_middle=ms("fa2_naive", MIDDLE),
        best_tflops=f"{best:.0f}", share=f"{100 * best / product:.0f}",
        least_us=f"{min(small):.0f}", most_us=f"{max(small):.0f}",
        short=ms("auto", MANY, rows=causal), short_cudnn=ms("torch_cudnn", MANY, rows=causal),
        fa2_backward=ms("fa2", mode="backward"), efficient_backward=ms("torch_efficient", mode="backward"),
        simt_backward=ms("simt", mode="backward"), cudnn_backward=ms("torch_cudnn", mode="backward"),
    )  # fmt: skip


if __name__ == "__main__":
    report.replace_section(report.DOCS / "experiments.md", "conclusions", text())
