#!/usr/bin/env python3
"""Draw sentences of the project's prose at random, for a reader to rate; or count the ratings.

    tools/sample_sentences.py --seed 1 > sample.tsv       draw 200 sentences (--count)
    tools/sample_sentences.py --ratings sample.tsv        count the ratings that a reader has put in

The prose consists of the README, the other pages, the `//` comments of C++ and CUDA, and the comments and docstrings of
Python. results/notes and CHANGELOG.md are records and are left out. The sample has one sentence a line: rating, place
and sentence, separated by tabs. The reader writes the rating 1 if one reading was enough, and 2 otherwise. Every
sentence has the same probability. A seed always draws the same sentences from the same text.
"""

import argparse
import ast
import collections
import csv
import inspect
import io
import pathlib
import random
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = re.compile(r"(README|CONTRIBUTING|SECURITY)\.md|docs/.*\.md")
C_LIKE = (".hpp", ".cpp", ".cuh", ".cu", ".h", ".c")
FEWEST_WORDS = 4
SENTENCE_END = re.compile(r"(?<=[.!?])[\s]+(?=[A-Z`\"'(\[0-9])")
WORD = re.compile(r"[A-Za-z]{2,}")


def sentences_of(text):
    """Returns the sentences of a paragraph that have at least FEWEST_WORDS words."""
    whole = " ".join(text.split())
    return [s for s in SENTENCE_END.split(whole) if len(WORD.findall(s)) >= FEWEST_WORDS]


def paragraphs_of_page(text):
    """Yields (line, text) of each paragraph, list item and table cell of a Markdown page, without code."""
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    is_code, start, lines = False, 0, []
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped.startswith(("```", ":::")):
            is_code = stripped.startswith("```") and not is_code
            stripped = ""
        elif is_code or stripped.startswith("#"):
            stripped = ""
        begins = re.match(r"([-*+]|\d+\.)\s|\|", stripped)
        if lines and (not stripped or begins):
            yield start, " ".join(lines)
            lines = []
        if stripped.startswith("|"):
            for cell in stripped.strip("|").split("|"):
                yield number, cell
        elif stripped:
            start = start if lines else number
            lines.append(re.sub(r"^([-*+]|\d+\.)\s+", "", stripped))
    if lines:
        yield start, " ".join(lines)


def paragraphs_of_c(text):
    """Yields (line, text) of each comment. A comment continues on the next line if a comment begins there in the same
    column.
    """
    start, column, lines = 0, -1, []
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"(?:[^\"]|\"[^\"]*\")*?(?<!:)(//[/!]?<?)\s?(.*)", line)  # not inside a string
        words = found.group(2) if found and not found.group(2).startswith(("NOLINT", "namespace")) else ""
        tag = re.match(r"@(t?param\s+\w+|throws\s+[\w:]+|returns?|p\s+\w+|brief)\s*", words)
        goes_on = found and found.start(1) == column and not line[:column].strip()
        if lines and (not words or tag or not goes_on or words.startswith("- ")):
            yield start, " ".join(lines)
            lines = []
        if words:
            start, column = (start if lines else number), found.start(1)
            lines.append(words[tag.end() :] if tag else words)


def paragraphs_of_docstring(docstring, first_line):
    """Yields (line, text) of each paragraph and of the description of each argument."""
    lines = inspect.cleandoc(docstring).split("\n")
    start, found, is_code = 0, [], False
    for number, line in enumerate([*lines, ""]):
        is_argument = re.match(r" {4}[\w, *]+: ", line)
        if found and (not line.strip() or is_argument):
            if not is_code:
                yield first_line + start, " ".join(found)
            found = []
        if line.strip() and not re.fullmatch(r"\w+:", line):
            if not found:
                start, is_code = number, bool(re.match(r"\s*(>>>|\.\. )| {4}", line)) and not is_argument
            found.append(line.strip())


def paragraphs_of_python(text):
    """Yields (line, text) of each paragraph of a docstring and of each comment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield from paragraphs_of_docstring(docstring, node.body[0].lineno)
    start, last, lines = 0, -1, []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            is_alone = not token.line[: token.start[1]].strip()
            if lines and (token.start[0] != last + 1 or not is_alone):
                yield start, " ".join(lines)
                lines = []
            start = start if lines else token.start[0]
            lines.append(token.string.lstrip("#! "))
            last = token.start[0] if is_alone else -1
    if lines:
        yield start, " ".join(lines)


def all_sentences():
    """Yields (group, place, sentence) for the sentences of all tracked files, in a fixed order."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in sorted(listed.stdout.split()):
        if PAGES.fullmatch(name):
            group, split = "pages", paragraphs_of_page
        elif name.endswith(C_LIKE):
            group, split = name.split("/")[0], paragraphs_of_c
        elif name.endswith(".py"):
            group, split = "Python", paragraphs_of_python
        else:
            continue
        for line, paragraph in split((ROOT / name).read_text(encoding="utf-8")):
            for sentence in sentences_of(paragraph):
                yield group, f"{name}:{line}", sentence


def draw(count, seed):
    sentences = list(all_sentences())
    groups = collections.Counter(group for group, _, _ in sentences)
    print(f"{len(sentences)} sentences: {dict(groups)}", file=sys.stderr)
    out = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
    for _, place, sentence in random.Random(seed).sample(sentences, min(count, len(sentences))):
        out.writerow(["", place, sentence.replace("\t", " ")])


def count_ratings(path):
    """Prints the share of sentences with rating 2 for each folder and for all. Exits with an error if a sentence has no
    rating.
    """
    with open(path, encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
    unrated = [number for number, row in enumerate(rows, 1) if row[0] not in ("1", "2")]
    if unrated:
        sys.exit(f"{path}: line {unrated[0]} does not begin with 1 or 2")
    groups = collections.defaultdict(list)
    for rating, place, _ in rows:
        groups["docs" if place.split(":")[0].endswith(".md") else place.split("/")[0]].append(rating == "2")
    for group, twice in sorted(groups.items()):
        print(f"{group:10} {sum(twice):3} of {len(twice):3} read twice")
    twice = sum(sum(values) for values in groups.values())
    print(f"{'all':10} {twice:3} of {len(rows):3} read twice: {100 * twice / len(rows):.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="sentences to draw (200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (1)")
    parser.add_argument("--ratings", metavar="SAMPLE", help="count the ratings in this file instead")
    options = parser.parse_args()
    if options.ratings:
        count_ratings(options.ratings)
    else:
        draw(options.count, options.seed)


if __name__ == "__main__":
    main()
