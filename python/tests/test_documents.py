"""Tests that the documentation contains exactly the text that its scripts write, and that its formulas are right."""

import importlib
import math
import pathlib
import re
import runpy

import attend
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def script(monkeypatch):
    """Returns a module of bench/ by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


def test_the_conclusions_have_the_figures_of_the_results(script):
    text = script("conclusions").text()
    assert len(re.findall(r"^\d\. \*\*", text, flags=re.MULTILINE)) == 6
    assert text in (DOCS / "experiments.md").read_text()


def test_the_pictures_are_what_their_script_draws(script):
    page = (DOCS / "what_is_flash_attention.md").read_text()
    for name, draw in script("draw_flash_attention").PICTURES.items():
        file = f"flash_attention_{name}.svg"
        assert (DOCS / file).read_text() == draw().svg() and f"]({file})" in page


def test_the_picture_of_masks_is_what_the_library_says(script):
    """Checks each panel of the picture. Its visible pairs must match a condition written in NumPy."""
    masks = script("draw_masks")
    page = (DOCS / "custom_scores.md").read_text()
    assert f"]({masks.PICTURE})" in page
    recipes = dict(masks.recipes())
    assert all(f"```mask\n{text}\n```" in page for text in recipes.values())
    assert len(recipes) == page.count("```mask\n") >= 19
    shown = masks.pixels((DOCS / masks.PICTURE).read_text())
    assert shown == masks.pixels(masks.draw().svg())
    assert shown.count("<image") == len(recipes) and "base64" not in shown
    q, k = np.ogrid[: masks.TOKENS, : masks.TOKENS]
    near = (abs(q // 16 - k // 16) <= 3) & (abs(q % 16 - k % 16) <= 3)
    name = "Neighbours in an image"
    assert (masks.pairs(name, recipes[name]) == near).all()
    assert shown.count(b"".join(b"\0" + np.packbits(row).tobytes() for row in near).hex()) == 1


def test_the_loop_of_the_page_is_right_and_that_of_the_paper_is_not(script):
    drawing = script("draw_flash_attention")
    _, exact = drawing.online_softmax()

    def o(factor):
        m, total, o = drawing.SCORES[0][0], 0.0, 0.0  # starts with a finite maximum, because -inf - (-inf) is NaN
        for scores, values in zip(drawing.SCORES, drawing.VALUES):
            new = max(m, *scores)
            p = [math.exp(s - new) for s in scores]
            total = total * math.exp(m - new) + sum(p)
            o = o * factor(m - new) + sum(x * v for x, v in zip(p, values))
            m = new
        return o / total

    assert o(math.exp) == pytest.approx(exact, rel=1e-12)
    assert abs(o(lambda difference: 1 / math.exp(difference)) - exact) > 1


@pytest.mark.parametrize("page", ["what_is_flash_attention.md", "experiments.md", "serving.md", "jax.md"])
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", (DOCS / page).read_text()):
        assert (DOCS / target).exists(), target


def test_the_page_of_names_has_every_alias():
    page = (DOCS / "names.md").read_text()
    found = [(alias, backend["name"]) for backend in attend.backends() for alias in backend["aliases"]]
    assert {"kernel_mma_swizzle", "kernel_mma_qreg", "kernel_mma_qreg_async"} <= {alias for alias, _ in found}
    for alias, name in found:
        (line,) = [x for x in page.splitlines() if f"`{alias}`" in x or f"`{alias.replace('_', '-')}`" in x]
        assert f"`{name}`" in line, alias


def test_a_call_takes_an_alias():
    q = np.zeros((1, 1, 2, 4), np.float32)
    with pytest.raises(ValueError, match="mma_swizzle|kernel_mma_swizzle"):
        attend.attention(q, q, q, compute="kernel_mma_swizzle")  # this kernel needs a GPU


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_examples_of_serving_run(poisoned_numpy, tmp_path):
    parts = blocks("serving.md", "python")
    assert len(parts) == 3
    program = tmp_path / "serving.py"
    program.write_text("\n".join(parts))
    names = runpy.run_path(str(program))
    assert names["o"].shape == (2, 8, 1, 64) and np.isfinite(names["o"]).all()


def test_the_page_of_serving_shows_the_program_that_is_built():
    (part,) = blocks("serving.md", "cpp")
    assert part == (ROOT / "examples" / "cpp" / "serving.cpp").read_text()
