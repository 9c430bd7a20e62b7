"""python -m attend info: what this build and this machine can do; cache: the compiled GPU kernels on disk."""

from __future__ import annotations

import argparse
import json
import sys

from attend import _cache, _core, _info
from attend._errors import Error


def show_cache(action: str, as_json: bool) -> int:
    """What `attend cache` of the command line does."""
    try:
        if action == "clear":
            removed = _cache.cache_clear()
            print(json.dumps(removed) if as_json else f"removed {removed['files']} files, {removed['bytes']} bytes")
        else:
            print(json.dumps(_cache.cache_info(), indent=2) if as_json else _core.cache_text(action == "limit"), end="")
    except Error as error:
        print(f"attend: {error}", file=sys.stderr)
        return 2
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
        return show_cache(options.action, options.json)
    print(json.dumps(_info.report(), indent=2) if options.json else _info.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
