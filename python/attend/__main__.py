"""The commands `python -m attend info`, which describes this build and this machine, and `python -m attend cache`,
which describes the compiled GPU kernels on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable

from attend import _cache, _core, _info
from attend._errors import Error


def cache_text(action: str, as_json: bool) -> str:
    """Returns the output of `attend cache`. The action `clear` first removes the files."""
    if action == "clear":
        removed = _cache.cache_clear()
        return json.dumps(removed) if as_json else f"removed {removed['files']} files, {removed['bytes']} bytes"
    return json.dumps(_cache.cache_info(), indent=2) if as_json else _core.cache_text(action == "limit").rstrip("\n")


def info_text(as_json: bool) -> str:
    return json.dumps(_info.report(), indent=2) if as_json else _info.text()


def show(text: Callable[[], str]) -> int:
    """Prints the text and returns the exit status 0. If attend raises an error, prints one line on stderr and returns
    2.
    """
    try:
        print(text(), flush=True)
    except Error as error:
        print(f"attend: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has closed the pipe
        # Without this, the interpreter would report a failed flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m attend", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", allow_abbrev=False, help="version, SIMD target, GPUs and backends")
    info.add_argument("--json", action="store_true", help="the same as JSON")
    cache = commands.add_parser("cache", allow_abbrev=False, help="the compiled GPU kernels on disk")
    cache.add_argument("action", nargs="?", default="show", choices=["show", "clear", "limit"])
    cache.add_argument("--json", action="store_true", help="the same as JSON")
    options = parser.parse_args(arguments)
    if options.command == "cache":
        return show(lambda: cache_text(options.action, options.json))
    return show(lambda: info_text(options.json))


if __name__ == "__main__":
    sys.exit(main())
