#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what liblehr.so exports with lehr.h and the version script, both ways.

  exports.py LIBRARY [HEADER [MAP]]
"""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import capi_doc

ROOT = capi_doc.ROOT


def exported(library):
    """Names of defined dynamic symbols; version nodes (type A) are no symbols of ours."""
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    names = set()
    for line in listing.stdout.splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind != "A":
            names.add(name.split("@")[0])
    return names


def problems(symbols, header, version_script):
    declared = {name for name, _, _ in capi_doc.functions(header)}
    mapped = set(re.findall(r"\b(lehr_\w+);", version_script))
    out = [f"{name}: declared in lehr.h, not exported" for name in sorted(declared - symbols)]
    out += [f"{name}: exported, not declared in lehr.h" for name in sorted(symbols - declared)]
    out += [f"{name}: declared in lehr.h, not in the version script" for name in sorted(declared - mapped)]
    out += [f"{name}: in the version script, not declared" for name in sorted(mapped - declared)]
    return out if declared else ["lehr.h declares nothing: is this the header?"]


def main():
    library = sys.argv[1]
    header = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "runtime/include/lehr.h"
    script = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else ROOT / "runtime/capi/liblehr.map"
    found = problems(exported(library), header.read_text(), script.read_text())
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
