#!/usr/bin/env python3
"""Rewrites every section of README.md and docs/ that is generated from results/*.json. The script measures nothing and
needs about a second.

    python3 bench/documents.py             after a measurement, or when the code of kernels/ or src/cpu has changed
    python3 bench/documents.py --check     changes nothing; prints what is out of date and exits with 1

The line below the figures of a section contains their date, and states whether the code has changed since then
(report.Section). Old figures are therefore never presented as the speed of the present code. After a change of the
code, only this line changes, and nothing has to be measured again. To update the figures, run the command that made the
result file, then this script.

The metadata of a picture contains the names of the files from which it was drawn. --check finds pictures whose files
have changed.
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

# Pictures that show no measurement. bench/draw_flash_attention.py and bench/draw_masks.py draw them.
DRAWN_BY_FORMULA = ("flash_attention_*.svg", "custom_masks.svg")


def sections():
    modules = (
        cpu_tables,
        cpu_memory,
        gpu_tables,
        ladder_table,
        profile_tables,
        conclusions,
        experiment_tables,
        compile_tables,
    )
    return [section for module in modules for section in module.sections()]


def stale():
    """Returns one line for each section and picture that does not match the result files and the present code."""
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
    """Returns one line for each fault of a picture. `where` contains the sections that show it."""
    name = f"docs/{path.name}"
    sources = report.style().sources_of(path.read_text())
    if not sources:
        return [f"{name} does not name its data: draw it again"]
    lines = []
    for source in sources:
        file = report.ROOT / source["file"]
        if not file.exists():
            lines.append(f"{name} was drawn from {source['file']}, which does not exist: remove it")
        elif report.style().source_line(file) != source:
            lines.append(f"{name} was drawn from another version of {source['file']}: draw it again")
        if not all(file in section.files for section in where):
            lines.append(f"{name} stands in a section that does not give the age of {source['file']}")
    if not where:
        lines.append(f"{name} is not shown in a generated section, which would give its age")
    return lines


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        for section in sections():
            section.write()
    found = stale()
    print("\n".join(found) if found else "every generated section and picture matches the results")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
