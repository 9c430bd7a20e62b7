"""Tests of the programs in examples/. Each program runs in a small size, and each must detect wrong attention."""

import contextlib
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import types

import attend
import pytest

pytest.importorskip("numpy")

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TINY_TRAINING = ["--steps", "40", "--batch_size", "2", "--num_heads", "1", "--seq_len", "32", "--num_layers", "1"]
# A text that does not change when a page is edited.
TINY_TRAINING += ["--lr", "4e-3", "--text", str(EXAMPLES.parent / "LICENSE")]
TINY_MODEL = ["--num_layers", "1", "--seq_len", "12", "--new_tokens", "3"]


def run(name, *words):
    """Runs the example in a separate process and returns its lines. The process must exit with 0."""
    line = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def module(name):
    """Loads the example as a module of this process, so that a test can break something in it."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def hugging_face(torch):
    pytest.importorskip("transformers", reason="examples/hugging_face.py needs transformers")
    return module("hugging_face")


@pytest.mark.parametrize(
    "name, missing",
    [
        ("numpy_only", "numpy"),
        ("train_char_transformer", "torch"),
        ("train_gpt2", "torch"),
        ("ring_training", "torch"),
        ("hugging_face", "torch"),
        ("hugging_face", "transformers"),
        ("jax_attention", "jax"),
        ("onnx_attention", "onnxruntime"),
        ("xformers_attention", "torch"),
        ("diffusers_models", "diffusers"),
        ("cupy_attention", "cupy"),
    ],
)
def test_a_missing_package_ends_with_2_and_one_line(name, missing):
    code = f"import sys, runpy; sys.modules[{missing!r}] = None; sys.argv = ['x', '--help']; "
    code += f"runpy.run_path({str(EXAMPLES / name) + '.py'!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    if missing in ("transformers", "diffusers") and done.stderr.startswith("torch is not"):
        pytest.skip("torch is missing already")
    line = f"{missing} is not installed, which this example needs: pip install "
    assert done.returncode == 2 and done.stderr.startswith(line) and done.stderr.count("\n") == 1


def test_numpy_only():
    lines = run("numpy_only.py").splitlines()
    assert len(lines) == 7 and all(line.endswith("  ok") for line in lines)


def test_jax_attention():
    jax = pytest.importorskip("jax", reason="examples/jax_attention.py needs JAX")
    lines = run("jax_attention.py").splitlines()
    assert len(lines) == (8 if hasattr(jax, "shard_map") else 6) and all(line.endswith("  ok") for line in lines)


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_jax_attention_notices(wrong, monkeypatch, capsys):
    pytest.importorskip("jax", reason="examples/jax_attention.py needs JAX")
    example = module("jax_attention")
    monkeypatch.setattr(example, "check_ring", lambda *_: None)  # calls another function, and compiles for long
    plain = example.attention
    monkeypatch.setattr(example, "attention", lambda q, k, v: plain(q, k, v) * wrong)
    assert example.main([]) == 1
    assert capsys.readouterr().out.count("FAILED") == 5


def test_onnx_attention():
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason="examples/onnx_attention.py needs ONNX and ONNX Runtime")
    assert run("onnx_attention.py").splitlines()[-1] == "onnx example: ok"


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_onnx_attention_notices(wrong, monkeypatch, capsys):
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason="examples/onnx_attention.py needs ONNX and ONNX Runtime")
    example = module("onnx_attention")
    plain = example.formula
    monkeypatch.setattr(example, "formula", lambda q, k, v: plain(q, k, v) * wrong)
    assert example.main([]) == 1
    assert capsys.readouterr().out.count("WRONG") == 2


def test_xformers_attention(device, capsys):
    assert module("xformers_attention").main(["--device", device]) == 0
    assert capsys.readouterr().out.count("  ok\n") == 5


@pytest.mark.parametrize("wrong", [1.05, float("nan")])
def test_xformers_attention_notices(wrong, device, monkeypatch, capsys):
    example = module("xformers_attention")
    plain = example.xops.memory_efficient_attention
    monkeypatch.setattr(example.xops, "memory_efficient_attention", lambda *a, **o: plain(*a, **o) * wrong)
    assert example.main(["--device", device]) == 1
    assert capsys.readouterr().out.count("FAILED") == 4  # all checks fail except the check of merged parts


@pytest.fixture
def diffusers_models(torch):
    pytest.importorskip("diffusers", reason="examples/diffusers_models.py needs diffusers")
    return module("diffusers_models")


def test_diffusers_models(diffusers_models, device, capsys):
    assert diffusers_models.main(["--device", device]) == 0
    assert capsys.readouterr().out.count("  ok\n") == 6


@pytest.mark.parametrize("wrong", [1.05, float("nan")])
def test_diffusers_models_notices(wrong, diffusers_models, torch, device, monkeypatch, capsys):
    from attend.torch import _activate

    plain = _activate.fill_forward

    def spoiled(q, k, v, o, *rest):
        plain(q, k, v, o, *rest)
        o *= wrong

    monkeypatch.setattr(_activate, "fill_forward", spoiled)
    assert diffusers_models.main(["--device", device]) == 1
    assert capsys.readouterr().out.count("FAILED") == 4
    monkeypatch.undo()
    if hasattr(torch.nn.attention, "current_flash_attention_impl"):
        monkeypatch.setattr(attend, "activate", lambda: None)
        assert diffusers_models.main(["--device", device]) == 1
        assert capsys.readouterr().out.count("backward  FAILED") == 2


@pytest.fixture(params=["cupy", "numpy"])
def cupy_attention(request, monkeypatch):
    """Returns the example with CuPy, or with NumPy under CuPy's name, so that its checks are tested without a GPU."""
    if request.param == "cupy":
        pytest.importorskip("cupy", reason="examples/cupy_attention.py needs CuPy")
        return module("cupy_attention")
    import numpy

    runtime = types.SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
    stand_in = types.ModuleType("cupy")
    stand_in.__dict__.update(
        vars(numpy) | {"cuda": types.SimpleNamespace(runtime=runtime, Stream=contextlib.nullcontext)}
    )
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    return module("cupy_attention")


def skip_without_gpu(status, capsys):
    if status == 77:
        pytest.skip(capsys.readouterr().out.strip())


def test_cupy_attention(cupy_attention, capsys):
    status = cupy_attention.main([])
    skip_without_gpu(status, capsys)
    assert status == 0 and capsys.readouterr().out.count("  ok\n") == 6


@pytest.mark.parametrize("wrong", [1.05, float("nan")])
def test_cupy_attention_notices(wrong, cupy_attention, monkeypatch, capsys):
    plain = cupy_attention.formula
    monkeypatch.setattr(cupy_attention, "formula", lambda *x: (plain(*x)[0] * wrong, *plain(*x)[1:]))
    status = cupy_attention.main([])
    skip_without_gpu(status, capsys)
    assert status == 1 and capsys.readouterr().out.count("FAILED") == 6


@pytest.mark.parametrize("cupy_attention", ["numpy"], indirect=True)
def test_cupy_attention_without_a_gpu(cupy_attention, monkeypatch, capsys):
    def no_driver():
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    for count, reason in ((lambda: 0, "CuPy counts none"), (no_driver, "cudaErrorNoDevice")):
        monkeypatch.setattr(cupy_attention.cp.cuda.runtime, "getDeviceCount", count)
        assert cupy_attention.main([]) == 77
        assert f"SKIPPED, there is no GPU here: {reason}" in capsys.readouterr().out


def test_ring_training(torch, capsys):
    lines = run("ring_training.py", "--steps", 3, "--seq_len", 33, "--sharding", "striped").splitlines()
    assert len(lines) == 2 and lines[-1].endswith("  ok")
    example = module("ring_training")
    assert example.are_alike([4.0, 3.0], [4.0, 3.0001])
    for wrong in (3.001, float("nan")):
        assert not example.are_alike([4.0, 3.0, 2.0], [4.0, wrong, 2.0])
    assert capsys.readouterr().out.count("FAILED") == 2


@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="no list of threads here")
def test_ring_training_ends_the_threads_of_its_groups(torch):
    """The example must end the threads of its groups, because threads that still run when Python exits may abort the
    process.
    """
    code = f"""
import argparse, pathlib, sys, tempfile
sys.path.insert(0, {str(EXAMPLES)!r})
import ring_training
names = lambda: [x.read_text() for x in pathlib.Path("/proc/self/task").glob("*/comm")]
destroy = ring_training.dist.destroy_process_group
seen = []
ring_training.dist.destroy_process_group = lambda *group: seen.extend(names()) or destroy(*group)
args = argparse.Namespace(ranks=1, sharding="zigzag", device="cpu", steps=1, seq_len=16)
with tempfile.TemporaryDirectory() as folder:
    ring_training.rank_main(0, args, folder)
assert any("gloo" in name for name in seen), seen
assert not any("gloo" in name for name in names()), names()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("wrong", [lambda x: x + 1e-3, lambda x: x * float("nan")])
def test_numpy_only_notices(wrong, monkeypatch, capsys):
    plain = attend.backward
    monkeypatch.setattr(attend, "backward", lambda *a, **k: tuple(wrong(x) for x in plain(*a, **k)))
    if "torch" in sys.modules:  # the example asserts that torch is not imported, but another test may have imported it
        monkeypatch.delitem(sys.modules, "torch")
    assert module("numpy_only").main([]) == 1
    assert capsys.readouterr().out.count("FAILED") == 3


def test_training(torch, tmp_path):
    run("train_char_transformer.py", *TINY_TRAINING, "--output", tmp_path)
    record = json.loads((tmp_path / "losses.json").read_text())
    assert record["failures"] == [] and record["settings"]["steps"] == 40
    assert all(len(values) == 40 for values in record["losses"].values())
    assert 0 <= record["largest_difference"] <= record["tolerance"]
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "losses.svg").stat().st_size > 1000 and (tmp_path / "losses.png").stat().st_size > 1000


TINY_GPT2 = "--device cpu --dtype f32 --steps 40 --batch_size 4 --seq_len 32 --num_layers 1 --num_heads 2"


def test_gpt2(torch, tmp_path):
    run("train_gpt2.py", *TINY_GPT2.split(), "--vocabulary", "61", "--lr", "3e-3", "--output", tmp_path)
    record = json.loads((tmp_path / "gpt2.json").read_text())
    assert record["failures"] == [] and record["largest_difference"] <= record["tolerance"]
    assert all(len(values) == 40 for values in record["losses"].values())
    assert all(record["ms_per_step"][name] > 0 for name in ("attend", "torch"))


def test_gpt2_notices_wrong_attention(torch, tmp_path, monkeypatch, capsys):
    """The example must detect a fault that the loss curves do not show: in bfloat16, a scale that is wrong by 3 %."""
    example = module("train_gpt2")
    monkeypatch.setattr(example, "plot", lambda *_: None)
    words = [*TINY_GPT2.replace("f32", "bf16").replace("40", "11").split(), "--vocabulary", "61"]
    words += ["--output", str(tmp_path)]
    for options in (dict(), dict(causal=True, scale=1.03 / 8)):
        wrong = lambda qkv, options=options: attend.attention_qkvpacked(qkv, **options)
        monkeypatch.setitem(example.ATTENTIONS, "attend", wrong)
        assert example.main(words) == 1
        assert "FAILED step 0: the gradients of q's weights are" in capsys.readouterr().err
        record = json.loads((tmp_path / "gpt2.json").read_text())
        assert any("gradients of k's" in line for line in record["failures"])
    monkeypatch.setitem(example.ATTENTIONS, "attend", example.small.attend_attention)
    example.main(words)
    assert "gradients of" not in capsys.readouterr().err


def test_gpt2_judges_curves_until_torchs_own_part(torch):
    example = module("train_gpt2")
    falling = [4.0 - 0.1 * i for i in range(30)]
    later = lambda by, since=0: [x + by if i >= since else x for i, x in enumerate(falling)]
    alike = [{"step": 0, "attend": [1e-2] * 3, "torch_other": [1e-2] * 3}]
    for ours, other, count in (
        (later(0.04), falling, 0), (later(0.06), falling, 1), (later(0.06), later(0.02), 0),
        (later(0.06, 5), later(0.02, 6), 1), (later(0.06, 6), later(0.02, 6), 0), (later(math.nan, 9), falling, 2),
        (later(math.nan, 9), later(0.02, 6), 1), (later(0.04), later(math.nan, 9), 1),
    ):  # fmt: skip
        losses = {"torch": falling, "attend": ours, "torch_other": other}
        assert len(example.judge(losses, alike, "bf16")[1]) == count


def test_gpt2_judges_gradients_by_what_torchs_own_are_apart(torch):
    judge = module("train_gpt2").judge_gradients
    for ours, others, least, count in (
        (1e-2, 1e-2, 0, 0), (4e-2, 1e-2, 0, 3), (math.nan, 1e-2, 0, 3), (1e-4, 0, 2e-3, 0), (1e-4, 0, 1e-5, 3)
    ):  # fmt: skip
        assert len(judge([{"step": 0, "attend": [ours] * 3, "torch_other": [others] * 3}], least)) == count


def test_gpt2_times_more_steps_than_it_warms_up(torch, capsys):
    with pytest.raises(SystemExit, match="2"):
        module("train_gpt2").main(["--device", "cpu", "--steps", "10"])
    assert "--steps: 10, allowed a number above 10" in capsys.readouterr().err


def test_training_notices_wrong_attention(torch, tmp_path, monkeypatch, capsys):
    example = module("train_char_transformer")
    monkeypatch.setattr(example, "plot", lambda *_: None)
    words = [*TINY_TRAINING, "--output", str(tmp_path)]
    monkeypatch.setattr(example, "attend_attention", lambda qkv: attend.attention_qkvpacked(qkv))
    assert example.main(words) == 1
    assert "FAILED the curves are" in capsys.readouterr().err
    assert "curves" in json.loads((tmp_path / "losses.json").read_text())["failures"][0]


def test_training_notices_a_loss_that_does_not_fall(torch, tmp_path, capsys):
    example = module("train_char_transformer")
    assert example.judge({"attend": [4.0] * 30, "torch": [4.0] * 30}, 1.0)[1][0].startswith(
        "attend: the loss went from"
    )
    broken = {"attend": [4.0, 1.0, float("nan")], "torch": [4.0, 1.0, 1.0]}
    assert len(example.judge(broken, 1.0)[1]) == 2  # the loss did not fall, and the curves were not close
    falling = [4.0 - 0.1 * i for i in range(30)]
    assert example.judge({"attend": falling, "torch": falling}, 1e-9)[1] == []


def test_training_says_what_attend_lacks(torch, tmp_path, monkeypatch, capsys):
    example = module("train_char_transformer")
    monkeypatch.setattr(example, "attend_attention", lambda x: attend.attention_qkvpacked(x, compute="nobody"))
    assert example.main([*TINY_TRAINING, "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("attend: compute: 'nobody', allowed")


def test_hugging_face(hugging_face, capsys):
    assert hugging_face.main(TINY_MODEL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("  ok") for line in lines) == 4


def test_hugging_face_notices_wrong_attention(hugging_face, monkeypatch, capsys):
    plain = attend.transformers.attention

    def blind(*arguments, mask=None, **options):
        return plain(*arguments, **options)

    monkeypatch.setattr(attend.transformers, "attention", blind)
    assert hugging_face.main(TINY_MODEL) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("FAILED")]
    assert len(failed) == 2 and all("padding" in line for line in failed)


def test_hugging_face_tells_what_was_not_run(hugging_face, monkeypatch, capsys):
    plain = attend.transformers.attention

    def lacks_masks(*arguments, mask=None, **options):
        if mask is not None:
            raise attend.UnsupportedError("mask: given, allowed none")
        return plain(*arguments, **options)

    monkeypatch.setattr(attend.transformers, "attention", lacks_masks)
    assert hugging_face.main(TINY_MODEL) == 2
    assert "NOT RUN, left padding: mask: given" in capsys.readouterr().out
    assert hugging_face.main([*TINY_MODEL, "--no-padding"]) == 0


WRONG = [["--steps", "0"], ["--dtype", "f8"], ["--device", "cuda"], ["--device", "foo"], ["--device", "meta"]]
WRONG += [["--seed", "-1"], ["--seed", "99999999999999999999"]]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_usage(words, torch, capsys):
    if words[1] == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(SystemExit) as caught:
        module("train_char_transformer").main(words)
    assert caught.value.code == 2 and words[0] in capsys.readouterr().err


@pytest.mark.parametrize("words", [w for w in WRONG if w[0] in ("--device", "--seed")], ids=" ".join)
def test_wrong_usage_of_hugging_face(words, torch, hugging_face, capsys):
    if words[1] == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(SystemExit) as caught:
        hugging_face.main(words)
    assert caught.value.code == 2 and words[0] in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("words", [["--text", "/nonexist"], ["--output", "/proc/x"], ["--text", "BYTES"]], ids=" ".join)
def test_training_starts_only_where_it_can_end(words, torch, tmp_path, monkeypatch, capsys):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    example = module("train_char_transformer")
    monkeypatch.setattr(example, "train", lambda *_: pytest.fail("it was trained"))
    words = [words[0], words[1].replace("BYTES", str(tmp_path / "bytes"))]
    assert example.main(["--output", str(tmp_path), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{words[0]}: ") and ", allowed " in line
