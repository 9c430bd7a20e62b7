"""Compares attend with its peers by the commands python -m attend.bench compare, decode, memory and roofline. The
command `visualize` draws their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from attend._measure import apart, errors
from attend._measure.arguments import Parser
from attend.bench import compare, decode, memory, roofline, visualize

COMMANDS = {
    "compare": (compare, "latency and throughput over a grid, to JSON"),
    "decode": (decode, "a few query rows over a cache: latency and GB/s over batch and length"),
    "memory": (memory, "peak memory over the sequence length, to JSON"),
    "roofline": (roofline, "the machine's ceilings and the kernels below them, to JSON"),
    "visualize": (visualize, "pictures from those JSON files"),
}


def parser() -> Parser:
    result = Parser(prog="python -m attend.bench", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    for name, (module, summary) in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=summary, description=module.__doc__))
    return result


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Returns the exit status: 0 if all results were right, 1 if a result was wrong, 2 if the usage was wrong or a
    requirement is missing, and 130 after Ctrl-C or SIGTERM.

    Results that were measured before an error are kept.
    """
    options = parser().parse_args(arguments)
    return errors.run(lambda: COMMANDS[options.command][0].run(options))


if __name__ == "__main__":
    apart.end(main())
