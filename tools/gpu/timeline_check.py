#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads timelines of the decode step and says whether copies ran inside the layers that they belong to.

    timeline_check.py FILE...        exits 1 where a slice of copies lies outside every layer
"""
import bisect
import json
import sys


def tracks(events):
    """(process, track) by the track's name."""
    return {
        e["args"]["name"]: (e["pid"], e["tid"])
        for e in events
        if e.get("ph") == "M" and e.get("name") == "thread_name"
    }


def slices(events, key):
    """(begin, end) in microseconds, by begin."""
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and (e["pid"], e["tid"]) == key)


def outside(inner, outer, slack=1.0):
    """Those of `inner` that no slice of `outer` holds, a microsecond of rounding allowed."""
    begins = [b for b, _ in outer]
    out = []
    for begin, end in inner:
        at = bisect.bisect_right(begins, begin + slack) - 1
        if at < 0 or end > outer[at][1] + slack:
            out.append((begin, end))
    return out


def check(text):
    """What a timeline holds, and how many copies lie outside the layers."""
    events = json.loads(text)["traceEvents"]
    named = tracks(events)
    layers = slices(events, named["layers"])
    movers = [key for name, key in named.items() if name.startswith("movers")]
    copies = [s for key in movers for s in slices(events, key)]
    return len(layers), len(copies), len(outside(copies, layers))


def main(files):
    bad = 0
    for file in files:
        with open(file, encoding="utf-8") as f:
            layers, copies, lost = check(f.read())
        print(f"{file}: {layers} slices of layers, {copies} of copies, {copies - lost} of them inside a layer")
        bad += lost + (layers == 0)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
