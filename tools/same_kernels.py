#!/usr/bin/env python3
"""Compares the machine code of two builds' kernels, to show whether a change affects GPU code. Needs no GPU.

    export ATTEND_CACHE_DIR=/tmp/before; BEFORE/attend compile --arch sm_90a --compute simt --json /tmp/before.json
    export ATTEND_CACHE_DIR=/tmp/after;  AFTER/attend compile --arch sm_90a --compute simt --json /tmp/after.json
    tools/same_kernels.py /tmp/before.json /tmp/before /tmp/after.json /tmp/after

Kernels are matched by name, Config and architecture. The instruction sections of their cubins must have the same bytes.
Line tables and file names are not compared. The exit status is 1 if a kernel differs or has no counterpart.
"""

import argparse
import json
import pathlib
import re
import struct
import sys

SECTION_OFFSET, SECTION_COUNTS = 0x28, 0x3A  # offsets of these fields in the header of a 64-bit ELF file
SECTION_NAME_SIZE, SECTION_EXTENT = 0, 0x18  # offsets of these fields in a section header


def instructions(entry):
    """Returns the bytes of the .text sections of the cubin in a cache entry."""
    elf = entry[entry.index(b"\x7fELF") :]
    (table,) = struct.unpack_from("<Q", elf, SECTION_OFFSET)
    size, count, of_names = struct.unpack_from("<HHH", elf, SECTION_COUNTS)

    def section(number):
        at = table + number * size
        (name,) = struct.unpack_from("<I", elf, at + SECTION_NAME_SIZE)
        begin, length = struct.unpack_from("<QQ", elf, at + SECTION_EXTENT)
        return name, elf[begin : begin + length]

    names = section(of_names)[1]
    sections = (section(number) for number in range(count))
    return [content for name, content in sections if names[name:].startswith(b".text")]


def with_new_names(text, renamed):
    """Returns the text with each word replaced by its new name, if it has one."""
    return re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), text)


def in_order(config, renamed):
    """Returns the constants of a Config under their new names, sorted, because their order does not affect the code."""
    return ", ".join(sorted(with_new_names(config, renamed).split(", ")))


def kernels(report, cache, renamed):
    """Returns (name, Config, architecture): instructions, for every kernel that `attend compile --json` lists."""
    files = {path.stem.rsplit("-", 1)[-1]: path for path in pathlib.Path(cache).rglob("*.bin")}
    listed = json.loads(pathlib.Path(report).read_text(encoding="utf-8"))

    def identity(kernel):
        return with_new_names(kernel["kernel"], renamed), in_order(kernel["config"], renamed), kernel["arch"]

    return {identity(kernel): instructions(files[kernel["key"]].read_bytes()) for kernel in listed}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for side in ("before", "after"):
        parser.add_argument(side, help="file that attend compile --json wrote")
        parser.add_argument(f"{side}_cache", help="ATTEND_CACHE_DIR of that run")
    what = "kernels, constants and enumerators that were renamed"
    parser.add_argument("--renamed", nargs="*", default=[], metavar="OLD=NEW", help=what)
    options = parser.parse_args()
    before = kernels(options.before, options.before_cache, dict(pair.split("=") for pair in options.renamed))
    after = kernels(options.after, options.after_cache, {})
    alone = [*(before.keys() - after.keys()), *(after.keys() - before.keys())]
    changed = [key for key in before.keys() & after.keys() if before[key] != after[key]]
    for what, keys in (("differs", changed), ("has no counterpart", alone)):
        for name, config, arch in sorted(keys):
            print(f"{name}<{config}> {arch} {what}")
    print(
        f"{len(before.keys() & after.keys()) - len(changed)} kernels are the same, {len(changed)} differ, "
        f"{len(alone)} have no counterpart"
    )
    return 1 if changed or alone else 0


if __name__ == "__main__":
    sys.exit(main())
