#!/usr/bin/env python3
"""Rewrites every section of README.md and docs/ that is made of results/*.json. Measures nothing; takes a second.

    python3 bench/documents.py             after a measurement, or when the code of kernels/ or src/cpu has changed
    python3 bench/documents.py --check     changes nothing; says what is stale and exits with 1

A section says below its figures when they were measured and whether the code that they depend on has changed since
(report.Section). So a figure never passes for one of the present code when it is not, and nothing has to be measured again
because of a change: the sentence changes, once. To have present figures, run the command that made the file, then this.

Pictures name in their metadata the files that they were drawn from; --check finds those whose files have changed.
"""

import re
import sys

import compile_tables
import conclusions
import cpu_memory
import cpu_tables
import experiment_tables
import gpu_tables
import ladder_table
import profile_tables
import report

# Of no measurement: bench/draw_flash_attention.py and bench/draw_masks.py.
DRAWN_BY_FORMULA = ("flash_attention_*.svg", "custom_masks.svg")


def sections():
    modules = (cpu_tables, cpu_memory, gpu_tables, ladder_table, profile_tables, conclusions, experiment_tables,
               compile_tables)
    return [section for module in modules for section in module.sections()]


def stale():
    """A line for each section and picture that is not what the results and the present code say."""
    lines = []
    shown = {}
    for section in sections():
        text = section.text()
        lines += section.difference(text)
        for picture in re.findall(r"!\[[^]]*\]\((?:docs/)?([^)]+\.svg)\)", text):
            shown.setdefault(picture, []).append(section)
    formulas = {path for pattern in DRAWN_BY_FORMULA for path in report.DOCS.glob(pattern)}
    for path in sorted(set(report.DOCS.glob("*.svg")) - formulas):
        lines += picture_lines(path, shown.get(path.name, []))
    return lines


def picture_lines(path, where):
    """What is wrong with a picture that is shown in these sections."""
    name = f"docs/{path.name}"
    sources = report.style().sources_of(path.read_text())
    if not sources:
        return [f"{name} does not say what it was drawn from: draw it again"]
    lines = []
    for source in sources:
        file = report.ROOT / source["file"]
        if not file.exists():
            lines.append(f"{name} was drawn from {source['file']}, which is not there: remove it")
        elif report.style().source_line(file) != source:
            lines.append(f"{name} was drawn from another {source['file']} than there is: draw it again")
        if not all(file in section.files for section in where):
            lines.append(f"{name} stands in a section that does not say how old {source['file']} is")
    if not where:
        lines.append(f"{name} is shown in no generated section, which would say how old it is")
    return lines


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        for section in sections():
            section.write()
    found = stale()
    print("\n".join(found) if found else "every generated section and picture is what the results say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
