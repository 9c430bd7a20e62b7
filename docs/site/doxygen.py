"""Runs Doxygen on the public headers.

`python doxygen.py OUTPUT` writes XML below OUTPUT. It prints each symbol without a comment, and exits with status 1 if
there is such a symbol.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOXYFILE = """\
PROJECT_NAME = attend
INPUT = {headers}
RECURSIVE = YES
FILE_PATTERNS = *.hpp *.h
EXCLUDE = {headers}/export.hpp
STRIP_FROM_PATH = {headers}/..
INPUT_FILTER = "{python} {root}/docs/site/headers.py"
FILTER_SOURCE_FILES = YES
OUTPUT_DIRECTORY = {output}
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = NO
EXTRACT_STATIC = NO
TYPEDEF_HIDES_STRUCT = YES
SORT_MEMBER_DOCS = NO
SORT_BRIEF_DOCS = NO
HIDE_UNDOC_MEMBERS = NO
JAVADOC_AUTOBRIEF = YES
MULTILINE_CPP_IS_BRIEF = NO
MARKDOWN_SUPPORT = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = ATTEND_API= __cplusplus
EXCLUDE_SYMBOLS = attend::core attend::core::* State
QUIET = YES
WARNINGS = YES
WARN_IF_UNDOCUMENTED = YES
WARN_IF_DOC_ERROR = YES
WARN_IF_INCOMPLETE_DOC = NO
WARN_LOGFILE = {output}/warnings.txt
"""


def run(output: Path, headers: Path = ROOT / "include" / "attend") -> list[str]:
    """Writes XML of the headers below `output`. Returns Doxygen's warnings, one for each symbol without a comment."""
    output.mkdir(parents=True, exist_ok=True)
    doxyfile = output / "Doxyfile"
    doxyfile.write_text(DOXYFILE.format(root=ROOT, headers=headers, output=output, python=sys.executable))
    subprocess.run(["doxygen", str(doxyfile)], check=True)
    # Removes the namespace from names, because each page states that all names are in namespace attend.
    for path in (output / "xml").glob("*.xml"):
        text = path.read_text()
        path.write_text(re.sub(r"(<compoundname>|<innerclass [^>]*>)attend::", r"\1", text))
    return [line for line in (output / "warnings.txt").read_text().splitlines() if line.strip()]


if __name__ == "__main__":
    complaints = run(Path(sys.argv[1]).resolve())
    print("\n".join(complaints))
    sys.exit(bool(complaints))
