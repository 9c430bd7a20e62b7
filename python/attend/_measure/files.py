"""Reads and writes result files, and formats results: JSON, CSV, and aligned text."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import os
import pathlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attend._measure.errors import UsageError


def prepare_folder(option: str, folder: pathlib.Path) -> None:
    """Makes the folder and checks that files can be written there, before anything is measured.

    Raises:
        UsageError if files cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{option}: {folder}: {_reason(error)}, allowed a folder that can be written to") from error


def prepare_file(option: str, path: pathlib.Path) -> None:
    """Makes the file's folder and checks that the file can be written, before anything is measured. Changes no file.

    Raises:
        UsageError if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with path.open("a"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise UsageError(f"{option}: {path}: {_reason(error)}, allowed a file that can be written to") from error


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes the file's folder and yields a temporary path, which is renamed to `path` when writing is complete.

    After an interruption or on a full disk, `path` is therefore the previous file or does not exist.

    Raises:
        UsageError if the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        unfinished.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: {_reason(error)}, allowed a file that can be written to") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def new_run(folder: pathlib.Path, about: str) -> pathlib.Path:
    """Makes a subfolder of `folder` for one run, named by the time and the subject `about`. `folder`/latest becomes a
    link to it.
    """
    stem = f"{time.strftime('%Y-%m-%d_%H%M%S')}_{about}"
    names = itertools.chain([stem], (f"{stem}_{i}" for i in itertools.count(2)))
    name = stem
    for name in names:
        try:
            (folder / name).mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"{folder}: {_reason(error)}, allowed a folder that can be written to") from error
    pointer = folder / f".latest.{os.getpid()}"
    # If the system has no symbolic links, the names still show which run is the latest.
    with contextlib.suppress(OSError):
        pointer.symlink_to(name, target_is_directory=True)
        pointer.replace(folder / "latest")
    return folder / name


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def write_json(path: pathlib.Path, value: Any) -> None:
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def write_csv(path: pathlib.Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Writes one line for each row. The cell of a value that was not measured is empty."""
    with writing(path) as unfinished, unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(finite(row) for row in rows)


def write_text(path: pathlib.Path, text: str) -> None:
    with writing(path) as unfinished:
        unfinished.write_text(text)


def read_json(path: pathlib.Path, kinds: Sequence[str]) -> dict[str, Any]:
    """Returns the content of a result file of one of these kinds.

    Raises:
        UsageError if the file is not such a result file.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}, allowed a JSON file that this package wrote") from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in kinds:
        raise UsageError(f"{path}: kind {kind!r}, allowed {', '.join(kinds)}")
    return dict(data)


@contextlib.contextmanager
def understanding(path: pathlib.Path) -> Iterator[None]:
    """Converts errors from missing or invalid fields of a result file into a UsageError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        first_line = str(error).partition("\n")[0]
        reason = f"{type(error).__name__}: {first_line}"
        raise UsageError(f"{path}: {reason}, allowed a JSON file that this package wrote") from error


def finite(value: Any) -> Any:
    """Returns `value` with None in place of numbers that JSON cannot represent (NaN and infinity)."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(x) for key, x in value.items()}
    return [finite(x) for x in value] if isinstance(value, (list, tuple)) else value


def number(value: Any, digits: int = 3) -> str:
    """Formats a number for a table with the given significant digits, without an exponent for common magnitudes."""
    if value is None:
        return ""
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits}g}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table as text, with the first column left-aligned and the others right-aligned."""
    widths = [max(len(row[i]) for row in (header, *lines)) for i in range(len(header))]
    left = [row[0].ljust(widths[0]) for row in (header, *lines)]
    right = [[cell.rjust(width) for cell, width in zip(row[1:], widths[1:])] for row in (header, *lines)]
    return ["  ".join([first, *rest]) for first, rest in zip(left, right)]
