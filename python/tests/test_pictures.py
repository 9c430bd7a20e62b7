"""Tests of python -m attend.bench visualize: pictures from result files, and invalid files."""

import itertools
import json

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")
pytest.importorskip("seaborn")

from attend._measure import plotting, style
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
        more = ("compare_latency", "compare_speedup", "compare_scaling", "decode_grid")
        names = {f"{name}.{suffix}" for name in (*KINDS, *more)}
        assert {p.name for p in out.iterdir()} == names
        assert all(p.read_bytes().startswith(start) for p in out.iterdir())


def test_lines_are_eight_at_most_half_of_them_of_the_peers():
    figures = {f"ours{i}": 1.0 + i for i in range(9)} | {f"torch{i}": 100.0 + i for i in range(9)}
    peers = {name for name in figures if name.startswith("torch")}
    few = plotting.worth_a_line([figures], peers, best_is_low=True)
    assert few == [*(f"ours{i}" for i in range(4)), *(f"torch{i}" for i in range(4))]
    both = plotting.worth_a_line([figures, {"ours8": 5e3}], peers, True)
    # The limit is for all panels together; ours8 is the best of the second panel.
    assert len(both) == style.MOST_LINES and "ours8" in both
    assert "ours8" in plotting.worth_a_line([figures], peers, best_is_low=False)
    # With one peer, the best others use the remaining places.
    assert len(plotting.worth_a_line([figures], {"torch0"}, True)) == style.MOST_LINES
    assert set(plotting.worth_a_line([figures], peers, True, None)) == set(figures)


def test_lines_differ_in_colour_mark_and_dash():
    for part in zip(*style.looks([f"line{i}" for i in range(style.MOST_LINES)]).values()):
        assert len(set(map(str, part))) == style.MOST_LINES
    assert len(set(style.looks([f"line{i}" for i in range(60)]).values())) == 60


def test_labels_keep_their_distance_and_their_order():
    found = style.spread([0.5, 0.5, 0.52, 0.0, 0.99, 1.0], 0.1, 0.0, 1.0)
    ranked = sorted(found)
    assert all(b - a > 0.1 - 1e-9 for a, b in itertools.pairwise(ranked)) and ranked[0] >= 0 and ranked[-1] <= 1
    assert found[3] < found[0] < found[2] < found[4] < found[5]
    assert style.spread([0.2, 0.8], 0.1, 0.0, 1.0) == [0.2, 0.8]
    assert len(style.spread([0.5] * 40, 0.1, 0.0, 1.0)) == 40


def test_a_heat_maps_label_ends_under_its_own_column():
    plt, _ = plotting.toolkit()
    figure, axis = plt.subplots(figsize=(6, 3))
    columns = ["1,1,128,64", "8,16,2048,64", "2"]
    plotting.log_heatmap(axis, ["a"], columns, [[1.0, 2.0, 3.0]], True, ["cpu"])
    figure.canvas.draw()
    width = axis.transData.transform((1, 0))[0] - axis.transData.transform((0, 0))[0]
    for i, label in enumerate(axis.get_xticklabels()):
        middle = axis.transData.transform((i + 0.5, 0))[0]
        assert abs(label.get_window_extent().x1 - middle) < 0.1 * width, label.get_text()
    plt.close(figure)


def test_a_picture_names_the_files_that_it_shows(tmp_path):
    plt, _ = plotting.toolkit()
    source = tmp_path / "results" / "a.json"
    source.parent.mkdir()
    source.write_text("{}")
    path = plotting.save(plt.subplots()[0], tmp_path / "a.svg", [source])
    (named,) = style.sources_of(path.read_text())
    assert named == style.source_line(source) and named["file"] == "results/a.json" and len(named["sha256"]) == 16
    source.write_text("[]")
    assert named["sha256"] != style.source_line(source)["sha256"]


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
    """A kernel that is slow in forward may be the fastest in backward."""
    from attend.bench import visualize

    row = {"library": "attend", "mode": "forward", "ms": 1.0, "intensity": 5.0}
    rows = [row | {"implementation": f"k{i}", "tflops": 100.0 - i} for i in range(12)]
    rows.append(row | {"implementation": "k11", "mode": "backward", "tflops": 1.0})
    data = {"rows": rows, "ceilings": KINDS["roofline"]["ceilings"]}
    forward, backward = visualize.draw_roofline(data, False)[""].axes

    def lines(axis):
        return {line.get_label() for line in axis.get_lines() if line.get_label().startswith("attend")}

    assert lines(forward) == {f"attend k{i}" for i in (*range(7), 11)} and lines(backward) == {"attend k11"}


def test_a_name_looks_the_same_in_every_panel():
    plt, _ = plotting.toolkit()
    figure, axes = plt.subplots(1, 2)
    looks = style.looks(["a", "b", "c"])
    plotting.log_lines(axes[0], {name: [(1, 1.0), (2, 2.0)] for name in looks}, looks)
    plotting.log_lines(axes[1], {"c": [(1, 1.0), (2, 2.0)]}, looks)
    first, second = axes[0].get_lines()[2], axes[1].get_lines()[0]
    for look in ("get_color", "get_marker", "get_linestyle"):
        assert getattr(first, look)() == getattr(second, look)()
    assert [text.get_text() for text in axes[1].texts] == ["c"]
    plt.close(figure)
