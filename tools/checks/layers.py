#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes follow the layers: downwards only, through a layer's interface only.

  layers.py [ROOT]

A layer may use its own files, the roots of the layers below it, and kernels/base. A folder's root holds
its interface; its sub-folders are its own affair. Pure layers may not use threads, files, clocks or CUDA.
"""
import pathlib
import re
import sys

BELOW = {
    "kernels": {"kernels"},
    "placement": {"placement"},
    "predictors": {"predictors"},
    "transfer": {"transfer", "kernels"},
    "runtime": {"runtime", "predictors", "placement", "transfer", "kernels"},
}
PURE = {"placement", "predictors"}
BANNED_IN_PURE = {"thread", "mutex", "shared_mutex", "condition_variable", "future", "atomic", "fstream", "filesystem",
                  "iostream", "chrono", "ctime", "unistd.h", "fcntl.h", "pthread.h"}
CODE = {".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".def"}


def problem_of(layer, included):
    """Why a file of `layer` may not include "included" (from the repository root), or None."""
    parts = included.split("/")
    target = parts[0]
    if target not in BELOW:
        return f"'{included}' is not of a layer below"
    if included.startswith("kernels/base/") or target == layer:
        return None
    if target not in BELOW[layer]:
        return f"{layer} may not use {target}"
    # Owners of operating-system resources (transfer/os) serve the runtime, too.
    if len(parts) > 2 and not (layer == "runtime" and included.startswith("transfer/os/")):
        return f"'{included}' is inside {target}: only {target}/*.hpp is its interface"
    return None


def check(root):
    problems = []
    files = 0
    for layer in BELOW:
        for path in sorted((root / layer).rglob("*")):
            if path.suffix not in CODE or not path.is_file():
                continue
            files += 1
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
                if match is None:
                    continue
                where = f"{path.relative_to(root)}:{number}"
                if match[1] == '"':
                    why = problem_of(layer, match[2])
                    if why is None and not (root / match[2]).exists():
                        why = f"'{match[2]}' is not there from the repository root"
                elif layer in PURE and (match[2] in BANNED_IN_PURE or "cuda" in match[2]):
                    why = f"<{match[2]}> in a pure layer"
                else:
                    why = None
                if why is not None:
                    problems.append(f"{where}: {why}")
    if files == 0:
        problems.append(f"{root}: no layer found")
    return problems


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
    found = check(root)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
