#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every declaration of lehr.h carries its labels, and writes the reference page.

  capi_doc.py [HEADER]               check only
  capi_doc.py [HEADER] --write FILE  check, then write the page as Markdown
"""
import argparse
import pathlib
import re
import sys

LABELS = ("Thread", "Stream", "Blocks", "Errors", "Since", "Stability")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def functions(text):
    """Yields (name, declaration, comment or None) of each LEHR_API declaration, in order."""
    pattern = re.compile(r"(?P<comment>/\*(?:(?!\*/).)*\*/\s*)?^LEHR_API\s+(?P<decl>[^;]+);", re.S | re.M)
    for match in pattern.finditer(text):
        declaration = " ".join(match["decl"].split())
        name = re.search(r"(\w+)\s*\(", declaration)
        if name is None:
            continue
        comment = match["comment"]
        if comment is not None:
            lines = [line.strip().lstrip("*").strip() for line in comment.strip()[2:-2].split("\n")]
            comment = " ".join(" ".join(lines).split())
        yield name[1], declaration, comment


def labels_of(comment):
    """Splits a comment into its prose and its labels; the labels come last and in a fixed order."""
    places = [(m.start(), m[1]) for m in re.finditer(r"\b(%s): " % "|".join(LABELS), comment)]
    found = {}
    for i, (start, label) in enumerate(places):
        end = places[i + 1][0] if i + 1 < len(places) else len(comment)
        found[label] = comment[start + len(label) + 2 : end].strip().rstrip(".")
    prose = comment[: places[0][0]].strip() if places else comment
    return prose, found


def check(text):
    problems = []
    seen = 0
    for name, _, comment in functions(text):
        seen += 1
        if comment is None:
            problems.append(f"{name}: no comment")
            continue
        prose, found = labels_of(comment)
        if not prose:
            problems.append(f"{name}: no description")
        missing = [label for label in LABELS if not found.get(label)]
        if missing:
            problems.append(f"{name}: no {', '.join(missing)}")
        if found.get("Stability") not in (None, "stable", "experimental"):
            problems.append(f"{name}: Stability is {found['Stability']!r}, expected stable or experimental")
        if "Since" in found and not re.fullmatch(r"\d+\.\d+", found["Since"]):
            problems.append(f"{name}: Since is {found['Since']!r}, expected MAJOR.MINOR")
    if seen == 0:
        problems.append("no declaration found: is this the header?")
    return problems


def page(text):
    out = ["# The C interface", ""]
    for name, declaration, comment in functions(text):
        prose, found = labels_of(comment)
        out += [f"## `{name}`", "", "```c", declaration + ";", "```", "", prose, ""]
        out += ["| " + " | ".join(LABELS) + " |", "|" + "---|" * len(LABELS)]
        out += ["| " + " | ".join(found[label] for label in LABELS) + " |", ""]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("header", nargs="?", default=str(ROOT / "runtime/include/lehr.h"))
    parser.add_argument("--write", metavar="FILE")
    args = parser.parse_args()
    text = pathlib.Path(args.header).read_text()
    problems = check(text)
    for problem in problems:
        print(f"{args.header}: {problem}", file=sys.stderr)
    if problems:
        return 1
    if args.write:
        pathlib.Path(args.write).write_text(page(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
