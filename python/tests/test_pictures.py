"""python -m attend.bench visualize: what is drawn from result files, and files that make no sense."""

import json

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")
pytest.importorskip("seaborn")

from attend._measure import plotting
from attend.bench import __main__ as bench
from result_files import KINDS, MACHINE


def test_every_kind_is_drawn(tmp_path):
    paths = []
    for kind, data in KINDS.items():
        paths.append(tmp_path / f"{kind}.json")
        paths[-1].write_text(json.dumps({"kind": kind, "machine": MACHINE, "notes": [], **data}))
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        out = tmp_path / suffix
        assert bench.main(["visualize", *map(str, paths), "--output-dir", str(out), "--format", suffix]) == 0
        names = {f"{name}.{suffix}" for name in (*KINDS, "compare_latency", "compare_speedup", "compare_scaling")}
        assert {p.name for p in out.iterdir()} == names
        assert all(p.read_bytes().startswith(start) for p in out.iterdir())


def test_lines_are_of_the_peers_and_the_best_few():
    figures = {f"ours{i}": float(i) for i in range(9)} | {"torch": 100.0}
    best = {f"ours{i}" for i in range(plotting.BEST)}
    assert plotting.worth_a_line(figures, {"torch"}, best_is_low=True) == {"torch"} | best
    assert "ours8" in plotting.worth_a_line(figures, {"torch"}, best_is_low=False)


def test_colours_of_a_gpu_are_its_own():
    shares = plotting._share_of_range([[1.0, 10.0], [1e4, None], [1e6, 1e5]], ["cpu", "cuda", "cuda"])
    assert shares[0] == [0.0, 1.0] and shares[1][0] == 0.0 and np.isnan(shares[1][1])
    assert shares[2] == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lacks", ["everything", "rows", "a column", "sense"])
def test_a_file_without_sense_is_one_line(kind, lacks, tmp_path, capsys):
    data = json.loads(json.dumps(KINDS[kind]))
    if lacks == "rows":
        del data["rows"]
    elif lacks == "a column":
        del data["rows"][0]["implementation"]
    elif lacks == "sense":
        data["rows"] = 3
    path = tmp_path / f"{kind}.json"
    path.write_text(json.dumps({"kind": kind, **({} if lacks == "everything" else {"machine": MACHINE, **data})}))
    assert bench.main(["visualize", str(path), "--output-dir", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and str(path) in captured.err and captured.out == ""


def test_the_roofline_shows_the_best_of_each_pass():
    """A kernel that is slow forward may be the fastest there is backward."""
    from attend.bench import visualize

    row = {"library": "attend", "mode": "forward"}
    rows = [row | {"implementation": f"k{i}", "tflops": 100.0 - i} for i in range(9)]
    rows.append(row | {"implementation": "k8", "mode": "backward", "tflops": 1.0})
    assert visualize._fastest(rows, "forward", False) == {f"attend k{i}" for i in range(plotting.BEST)}
    assert visualize._fastest(rows, "backward", False) == {"attend k8"}


def test_a_name_looks_the_same_in_every_panel():
    plt, _ = plotting.toolkit()
    figure, axes = plt.subplots(1, 2)
    palette = plotting.colors(["a", "b", "c"])
    plotting.log_lines(axes[0], {name: [(1, 1.0), (2, 2.0)] for name in palette}, palette)
    plotting.log_lines(axes[1], {"c": [(1, 1.0), (2, 2.0)]}, palette)
    first, second = axes[0].get_lines()[2], axes[1].get_lines()[0]
    for look in ("get_color", "get_marker", "get_linestyle"):
        assert getattr(first, look)() == getattr(second, look)()
    plt.close(figure)
