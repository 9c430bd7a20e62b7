"""Tests that the annotations of the public functions match their arguments and that two type checkers accept them."""

import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys

import attend
import pytest
from attend import _serving, _types

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINT = ROOT / "tools" / "lint.sh"
# The arguments before **options in the overloads of each function.
NAMED = {
    attend.attention: ({"return_lse"}, _types.AttentionOptions),
    attend.attention_qkvpacked: ({"return_lse"}, _types.VarlenOptions),
    attend.attention_varlen: ({"return_lse"}, _types.VarlenOptions),
    attend.decode: ({"return_lse"}, _serving.DecodeOptions),
    attend.append: ({"q", "q_out"}, _serving.CacheOptions),
}


@pytest.mark.parametrize("function", NAMED, ids=lambda function: function.__name__)
def test_the_overloads_name_the_keywords_of(function):
    named, options = NAMED[function]
    keywords = {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert named | set(options.__annotations__) == keywords


def test_forward_and_backward_name_the_options_that_they_take(rng):
    """Each option in the annotations is accepted, or refused because of its value. Only a name that does not exist
    raises a TypeError.
    """
    q = rng.standard_normal((1, 1, 2, 8), "f")
    for name in _types.PassOptions.__annotations__:
        try:
            attend.forward(q, q, q, **{name: None})
        except TypeError as error:
            assert "unexpected keyword" not in str(error), name
        except attend.Error:
            pass


def test_the_type_checkers_accept_the_package_and_its_examples():
    if not LINT.exists():
        pytest.skip("the tests are not in the repository")
    if not (ROOT / ".venv-lint").exists():
        pytest.skip("no .venv-lint: make lint installs the type checkers")
    lacking = [name for name in ("numpy", "torch", "jax", "onnx") if importlib.util.find_spec(name) is None]
    if lacking or pathlib.Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip(f"this is not .venv with all that the types need: {', '.join(lacking) or sys.prefix}")
    environment = {**os.environ, "NODE_OPTIONS": "--max-old-space-size=4096"}
    done = subprocess.run([LINT, "types"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and "left out" not in done.stderr, done.stdout + done.stderr
