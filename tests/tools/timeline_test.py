#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu/timeline_check.py: copies inside layers pass, one that leaves its layer is found out."""
import json
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
import timeline_check  # noqa: E402  (its folder is the first argument)


def timeline(copies):
    def track(tid, name):
        return {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}

    def slice_of(tid, begin, end):
        return {"ph": "X", "pid": 1, "tid": tid, "name": "s", "ts": begin, "dur": end - begin}

    events = [track(2, "layers"), track(5, "movers: host and hbm")]
    events += [slice_of(2, b, b + 100) for b in (0, 100, 300)]
    events += [slice_of(5, b, e) for b, e in copies]
    return json.dumps({"traceEvents": events})


class Timeline(unittest.TestCase):
    def test_copies_inside(self):
        self.assertEqual(timeline_check.check(timeline([(10, 90), (100.5, 200.5), (300, 400)])), (3, 3, 0))

    def test_copies_outside(self):
        for copy in ((90, 110), (210, 290), (390, 410), (500, 510)):
            with self.subTest(copy=copy):
                self.assertEqual(timeline_check.check(timeline([(10, 20), copy])), (3, 2, 1))

    def test_no_copies(self):
        self.assertEqual(timeline_check.check(timeline([])), (3, 0, 0))


if __name__ == "__main__":
    unittest.main()
