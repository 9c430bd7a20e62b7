"""python -m attend info: what this build and this machine can do."""

from __future__ import annotations

import argparse
import json
import sys

from attend import _info


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m attend", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", allow_abbrev=False, help="version, SIMD target, GPUs and backends")
    info.add_argument("--json", action="store_true", help="the same as JSON")
    options = parser.parse_args(arguments)
    print(json.dumps(_info.report(), indent=2) if options.json else _info.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
