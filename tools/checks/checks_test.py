#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each check is shown to fail: a check that cannot fail is worse than none."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import capi_doc
import exports
import layers

GOOD = """
/*
 * Does a thing.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none. Since: 0.1. Stability: stable.
 */
LEHR_API int lehr_thing(int a,
                        int b);
"""


class CapiDoc(unittest.TestCase):
    def test_a_labelled_declaration_passes(self):
        self.assertEqual(capi_doc.check(GOOD), [])
        self.assertIn("lehr_thing", capi_doc.page(GOOD))

    def test_each_missing_label_is_named(self):
        for label in capi_doc.LABELS:
            text = GOOD.replace(f"{label}: ", f"{label.lower()} ")
            self.assertTrue(any(label in problem for problem in capi_doc.check(text)), label)

    def test_wrong_values_no_comment_and_no_header(self):
        self.assertTrue(capi_doc.check(GOOD.replace("Stability: stable", "Stability: sure")))
        self.assertTrue(capi_doc.check(GOOD.replace("Since: 0.1", "Since: ever")))
        self.assertTrue(capi_doc.check(GOOD.replace("Does a thing.", "")))
        self.assertTrue(capi_doc.check("LEHR_API int lehr_bare(void);"))
        self.assertTrue(capi_doc.check("int nothing;"))

    def test_a_comment_of_another_declaration_does_not_count(self):
        self.assertTrue(capi_doc.check(GOOD + "LEHR_API int lehr_bare(void);"))


class Exports(unittest.TestCase):
    MAP = "LEHR_0.1 { global: lehr_thing; local: *; };"

    def test_equal_sets_pass(self):
        self.assertEqual(exports.problems({"lehr_thing"}, GOOD, self.MAP), [])

    def test_both_directions_fail(self):
        self.assertIn("not exported", exports.problems(set(), GOOD, self.MAP)[0])
        self.assertIn("not declared in", exports.problems({"lehr_thing", "leak"}, GOOD, self.MAP)[0])
        self.assertIn("not in the version script", exports.problems({"lehr_thing"}, GOOD, "")[0])
        self.assertIn("not declared", exports.problems({"lehr_thing"}, GOOD, self.MAP + "lehr_old;")[0])
        self.assertTrue(exports.problems(set(), "", ""))


class Layers(unittest.TestCase):
    def tree(self, path, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for name in ("kernels/base/ids.hpp", "kernels/reference/attend.hpp", "placement/model.hpp",
                     "predictors/predictor.hpp", "transfer/engine.hpp", "transfer/os/fd.hpp",
                     "transfer/movers/queue.hpp", "runtime/runtime.hpp", "tools/lehr/table.hpp"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        return layers.check(root)

    def test_downwards_through_interfaces_passes(self):
        self.assertEqual(self.tree("runtime/a.cpp", '#include "transfer/engine.hpp"\n#include "placement/model.hpp"\n'), [])
        self.assertEqual(self.tree("placement/a.cpp", '#include "kernels/base/ids.hpp"\n#include <vector>\n'), [])
        self.assertEqual(self.tree("runtime/a.cpp", '#include "transfer/os/fd.hpp"\n'), [])

    def test_upwards_sideways_and_inside_fail(self):
        for path, text in (("placement/a.cpp", '#include "runtime/runtime.hpp"'),
                           ("placement/a.cpp", '#include "predictors/predictor.hpp"'),
                           ("predictors/a.cpp", '#include "transfer/engine.hpp"'),
                           ("kernels/a.cpp", '#include "placement/model.hpp"'),
                           ("runtime/a.cpp", '#include "transfer/movers/queue.hpp"'),
                           ("transfer/a.cpp", '#include "kernels/reference/attend.hpp"'),
                           ("runtime/a.cpp", '#include "tools/lehr/table.hpp"'),
                           ("runtime/a.cpp", '#include "runtime.hpp"'),
                           ("runtime/a.cpp", '#include "runtime/gone.hpp"')):
            self.assertTrue(self.tree(path, text), text)

    def test_pure_layers_use_no_threads_files_clocks_or_cuda(self):
        for header in ("thread", "fstream", "chrono", "cuda_runtime.h"):
            self.assertTrue(self.tree("placement/a.cpp", f"#include <{header}>"), header)
            self.assertEqual(self.tree("transfer/a.cpp", f"#include <{header}>"), [], header)

    def test_an_empty_tree_is_no_success(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertTrue(layers.check(pathlib.Path(folder)))


class Tidy(unittest.TestCase):
    """In a tree of its own: the script, the project's rules, one source and a header."""

    def tidy(self, source, *arguments, header="#pragma once\n"):
        here = pathlib.Path(__file__).resolve().parent
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            (root / "tools/checks").mkdir(parents=True)
            (root / "transfer").mkdir()
            (root / "build").mkdir()
            shutil.copy(here / "tidy", root / "tools/checks/tidy")
            shutil.copy(here.parents[1] / ".clang-tidy", root / ".clang-tidy")
            (root / "transfer/a.hpp").write_text(header)
            (root / "transfer/b.cpp").write_text('#include "transfer/a.hpp"\n' + source)
            command = {"directory": str(root / "build"), "file": str(root / "transfer/b.cpp"),
                       "command": f"c++ -std=c++20 -I{root} -c {root}/transfer/b.cpp"}
            (root / "build/compile_commands.json").write_text(json.dumps([command]))
            run = subprocess.run([sys.executable, str(root / "tools/checks/tidy"), *(str(root / a) for a in arguments)],
                                 env=os.environ | {"BUILD": str(root / "build")}, capture_output=True, text=True)
            return run.returncode, run.stdout + run.stderr

    def test_a_clean_source_passes(self):
        self.assertEqual(self.tidy("int twice(int x) { return 2 * x; }\n")[0], 0)

    def test_a_finding_fails_and_is_shown(self):
        code, text = self.tidy("int Twice(int x) { return 2 * x; }\n")
        self.assertEqual(code, 1)
        self.assertIn("invalid case style for function 'Twice'", text)

    def test_a_header_is_seen_through_a_source(self):
        code, text = self.tidy("", "transfer/a.hpp", header="#pragma once\ninline int Bad() { return 1; }\n")
        self.assertEqual(code, 1)
        self.assertIn("a.hpp:2", text)

    def test_a_file_that_no_source_shows_is_refused(self):
        self.assertIn("c.hpp", self.tidy("", "transfer/c.hpp")[1])


if __name__ == "__main__":
    unittest.main()
