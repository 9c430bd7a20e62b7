"""Tests of the code that the measuring commands share (attend._measure): the catalogue, files, tables, and the fused
softmax.
"""

import pathlib

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tqdm")

import attend
from attend._measure import catalogue, errors, files, implementations, tables
from attend._measure.measurement import Row
from attend.bench import peers


def test_a_full_disk_leaves_no_file(tmp_path, monkeypatch):
    kept = tmp_path / "kept.json"
    kept.write_text("before")
    plain = pathlib.Path.write_text

    def full(path, text):
        plain(path, text[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    for path in (kept, tmp_path / "new.json"):
        with pytest.raises(errors.UsageError, match="No space left on device"):
            files.write_text(path, "much more than fits")
    assert [p.name for p in tmp_path.iterdir()] == ["kept.json"] and kept.read_text() == "before"


def test_names_that_users_know_are_aliases():
    names = set(catalogue.catalogue())
    assert set(catalogue.ALIASES.values()) <= names and not set(catalogue.ALIASES) & names
    assert catalogue._known("naive-attn", names, "--kernel") == "naive"
    assert catalogue._known("kernel_mma_swizzle", names, "--kernel") == "mma_swizzle"
    assert [x.name for x in peers.ours(["kernel-mma-qreg"], "cuda", "bf16")] == ["mma_qreg"]


def test_what_cannot_be_written_is_told_in_one_line(tmp_path):
    blocked = tmp_path / "file" / "below"
    (tmp_path / "file").write_text("kept")
    for call in (
        lambda: files.prepare_folder("--output-dir", blocked),
        lambda: files.prepare_file("--output", blocked),
        lambda: files.prepare_file("--output", tmp_path),
        lambda: files.write_text(blocked, "x"),
        lambda: files.write_csv(blocked, ["a"], []),
    ):
        with pytest.raises(errors.UsageError, match="allowed a (file|folder) that can be written to") as caught:
            call()
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    files.prepare_file("--output", tmp_path / "file")
    files.prepare_file("--output", tmp_path / "new" / "file")
    files.prepare_folder("--output-dir", tmp_path / "new")
    assert (tmp_path / "file").read_text() == "kept" and list((tmp_path / "new").iterdir()) == []


def test_in_half_leaves_out_float32_and_the_cpu():
    half = implementations.OnTorch("mma", "attend", "cuda", "bf16")
    others = [implementations.OnTorch(name, "attend", *where) for name, where in
              {"cpu": ("cpu", "bf16"), "fa2": ("cuda", "f32")}.items()]  # fmt: skip
    assert catalogue.in_half([half, *others], "--x") == [half]


def test_means_are_over_what_was_timed():
    figures = {"ms": 1.0, "tflops": 8.0, "gbps": 4.0, "speedup": 1.0}
    rows = [Row("seed", "a", "attend", "cpu", "f32", "forward", 1, 1, s, 8, False, **figures) for s in (8, 16)]
    rows[1].ms, rows[1].tflops, rows[1].speedup = 4.0, 2.0, 4.0
    rows.append(Row("seed", "b", "attend", "cpu", "f32", "forward", 1, 1, 8, 8, False, remark="left out"))
    header, lines = tables.means(rows)
    assert header[3:] == ["configurations", "ms", "TFLOP/s", "GB/s", "speed-up"]
    assert lines == [
        ["a", "cpu", "f32", "2/2", "2.50", "5.00", "4.00", "2.00"],
        ["b", "cpu", "f32", "0/2", "", "", "", ""],
    ]


def test_the_path_with_a_fused_softmax(torch, monkeypatch):
    """The kernel needs a GPU and is tested in test_cuda.py. This test replaces the kernel by its formula, with the same
    arguments.
    """
    from attend._measure import fused_softmax

    def launch(source, p, target, scale, causal):
        if p is None:
            hidden = torch.ones(source.shape[1:], dtype=torch.bool).triu(1) if causal else torch.zeros(1, 1).bool()
            target.copy_((scale * source).masked_fill(hidden, -torch.inf).softmax(-1))
        else:
            target.copy_(scale * p * (source - (source * p).sum(-1, keepdim=True)))

    monkeypatch.setattr(fused_softmax, "_launch", launch)
    for causal in (False, True):
        leaves = [torch.randn(2, 3, 16, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        theirs = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        ours = fused_softmax.attention(*leaves, causal)
        dout = torch.randn_like(ours)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        gradients = (torch.autograd.grad(o, leaves, dout) for o in (ours, theirs))
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_the_fused_softmax_is_for_gpus(torch):
    from attend._measure import fused_softmax

    q = torch.zeros(1, 1, 8, 8)
    with pytest.raises(NotImplementedError, match="fused_softmax: torch.float32 on cpu, allowed f16 and bf16 on a GPU"):
        fused_softmax.attention(q, q, q, False)


def test_every_gpu_backend_is_in_the_catalogue():
    names = set(catalogue.catalogue())
    assert {b["name"] for b in attend.backends() if b["device"] == "cuda"} <= names
    assert {"torch_math", "torch_efficient", "torch_flash", "torch_cudnn", "unfused_gpu", "unfused_bf16"} <= names
    assert {"fused_softmax", "auto"} <= names


def test_figures_are_written_as_people_do():
    assert [files.number(x) for x in (None, 0, 123.456, 1.23456, 0.0123456, 1e-9)] == [
        "", "0", "123", "1.23", "0.0123", "1e-09"
    ]  # fmt: skip
    assert files.aligned(["a", "bb"], [["ccc", "d"]]) == ["a    bb", "ccc   d"]
    assert tables.geometric_mean([2.0, 8.0]) == pytest.approx(4.0) and tables.geometric_mean([]) is None
    assert files.finite({"x": [float("nan"), 1.0]}) == {"x": [None, 1.0]}


def test_a_result_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"kind": "other"}')
    with pytest.raises(errors.UsageError, match="kind 'other', allowed experiments"):
        files.read_json(path, ["experiments"])
