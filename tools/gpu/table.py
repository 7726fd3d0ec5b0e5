#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins what bench_kernels (and the rivals' script) measured in one run into a Markdown table.

usage: table.py DIR    reads DIR/kernels.json and, where it is there, DIR/flashinfer_anchor.json
"""
import json
import pathlib
import sys


def lines(path):
    for line in path.read_text().splitlines():
        if line.strip():
            yield json.loads(line)


def rivals(path):
    """{(case, shape): [(us, name)]} from the rivals' records, whatever else the file holds."""
    found = {}
    if not path.exists():
        return found
    text = path.read_text()
    try:
        data = json.loads(text)
        records = next((v for v in data.values() if isinstance(v, list) and v and isinstance(v[0], dict)), []) if isinstance(data, dict) else data
    except ValueError:
        records = [json.loads(line) for line in text.splitlines() if line.strip()]
    for r in records:
        if not r.get("ok", True) or "us" not in r or "B" not in r:
            continue
        page = f", {r['page']}-token pages" if "page" in r else ", contiguous"
        kind = "e4m3" if r.get("dtype") == "e4m3" else "dense"
        if r.get("frac", 1.0) < 1:
            kind = "30 %" if kind == "dense" else "e4m3 30 %"
        found.setdefault((f"attend {kind}", f"{r['B']}x{r['S'] // 1024}K"), []).append((r["us"], r["backend"] + page))
    return found


def main():
    folder = pathlib.Path(sys.argv[1])
    best = {}  # (case, shape): record
    for r in lines(folder / "kernels.json"):
        # What a caller gets who tunes nothing: the first variant of each case.
        best.setdefault((r["name"], r["shape"]), r)
    others = rivals(folder / "flashinfer_anchor.json")
    print("| kernel | batch | µs | % of ceiling | best rival, paged, same run | best rival, contiguous |")
    print("|---|---|---|---|---|---|")
    for key, r in best.items():
        cells = {"paged": "", "contiguous": ""}
        for us, name in sorted(others.get(key, [])):
            slot = "contiguous" if name.endswith("contiguous") else "paged"
            if slot == "paged" and "16-token" not in name:
                continue
            cells[slot] = cells[slot] or f"{us:.0f} ({name})"
        print(f"| {r['name']} | {r['shape']} | {r['us']:.1f} | {r['percent_of_ceiling']:.1f} | {cells['paged']} | {cells['contiguous']} |")


if __name__ == "__main__":
    main()
