#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lehr command from outside: figures that must agree, and bad input of every kind.

usage: cli_test.py LEHR DATA_DIR
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LEHR, DATA = sys.argv[1], pathlib.Path(sys.argv[2])
TRACE = str(DATA / "longdoc-cut.safetensors.zst")
REQUESTS = str(DATA / "conversation-cut.jsonl.zst")


def lehr(*arguments, **options):
    return subprocess.run([LEHR, *arguments], capture_output=True, text=True, timeout=240, **options)


class Figures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = lehr("compare", TRACE, "--profile", "gh200", "--hbm", "10%,25%", "--json", "-")
        assert done.returncode == 0, done.stderr
        cls.report = json.loads(done.stdout)

    def test_no_policy_beats_the_bound(self):
        for cell in self.report["cells"]:
            for policy in cell["policies"]:
                if policy["policy"] == "unlimited":
                    continue
                self.assertGreaterEqual(policy["over_bound"], 0, policy["policy"])
                self.assertGreaterEqual(policy["over_bound_without_warmup"], 0, policy["policy"])

    def test_unlimited_misses_nothing(self):
        for cell in self.report["cells"]:
            unlimited = next(p for p in cell["policies"] if p["policy"] == "unlimited")
            self.assertEqual(unlimited["all"]["page_misses"], 0)

    def test_min_misses_least(self):
        for cell in self.report["cells"]:
            misses = {p["policy"]: p["all"]["page_misses"] for p in cell["policies"]}
            least = min(m for name, m in misses.items() if name not in ("unlimited", "min"))
            # Prefetching policies may hit what the full-knowledge replacement order reads in place.
            if all(p["all"]["promoted"] == 0 for p in cell["policies"]):
                self.assertLessEqual(misses["min"], least)
            self.assertLessEqual(misses["min"], misses["lru"])

    def test_every_policy_reads_the_same_pages(self):
        for cell in self.report["cells"]:
            self.assertEqual(len({p["all"]["page_reads"] for p in cell["policies"]}), 1)
            for p in cell["policies"]:
                self.assertEqual(p["all"]["page_hits"] + p["all"]["page_misses"], p["all"]["page_reads"])

    def test_bytes_of_a_replacement_policy_are_its_misses(self):
        page = self.report["page_bytes"]
        for cell in self.report["cells"]:
            lru = next(p for p in cell["policies"] if p["policy"] == "lru")
            self.assertEqual(lru["all"]["links"]["h2d"]["bytes"], page * lru["all"]["page_misses"])
            self.assertEqual(lru["all"]["links"]["d2h"]["bytes"], page * lru["all"]["written_back"])

    def test_host_decides_as_sim_does_and_verifies_every_read(self):
        figures = {}
        for machine in ("sim", "host"):
            done = lehr("replay", TRACE, "--machine", machine, "--policy", "lru", "--hbm", "10%", "--json", "-")
            self.assertEqual(done.returncode, 0, done.stderr)
            figures[machine] = json.loads(done.stdout)["cells"][0]
        for key in ("page_hits", "page_misses", "installed", "dropped", "written_back", "links", "predicted_seconds"):
            self.assertEqual(figures["sim"]["all"][key], figures["host"]["all"][key], key)
        reads = figures["host"]["all"]["page_reads"]
        self.assertTrue(any(f"verified {reads} page reads" in n for n in figures["host"]["notes"]),
                        figures["host"]["notes"])

    def test_request_traces(self):
        done = lehr("compare", REQUESTS, "--cache", "5%", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {p["policy"]: p["all"] for p in json.loads(done.stdout)["cells"][0]["policies"]}
        for row in rows.values():
            self.assertLessEqual(row["block_hit_ratio"], rows["min"]["block_hit_ratio"])
            self.assertLessEqual(row["prefix_block_hit_ratio"], row["block_hit_ratio"])


class Refusals(unittest.TestCase):
    def refused(self, *arguments, code=None, naming=(), **options):
        done = lehr(*arguments, **options)
        self.assertNotEqual(done.returncode, 0, arguments)
        self.assertGreater(done.returncode, 0, f"killed by a signal: {arguments}")
        if code is not None:
            self.assertEqual(done.returncode, code, done.stderr)
        lines = [line for line in done.stderr.splitlines() if line]
        self.assertTrue(lines, arguments)
        for word in naming:
            self.assertIn(word, done.stderr)
        return lines

    def one_line(self, *arguments, **kwargs):
        self.assertEqual(len(self.refused(*arguments, **kwargs)), 1, arguments)

    def test_capacities(self):
        for hbm in ("0", "120%", "-5%", "0%", "nan%", "10 parsecs", "900TB", "1 pages", "99999999999999999999"):
            with self.subTest(hbm):
                self.one_line("compare", TRACE, "--hbm", hbm, naming=("--hbm",))

    def test_selections(self):
        for rule in ("", "mass:0", "mass:1.5", "topk:-1", "count:0", "count:x", "best"):
            with self.subTest(rule):
                self.one_line("compare", TRACE, "--select", rule, naming=("--select",))

    def test_names(self):
        self.one_line("replay", TRACE, "--policy", "clairvoyant", naming=("lru",))
        self.one_line("replay", TRACE, "--policy", "lru:depth=3", naming=("depth",))
        self.one_line("replay", TRACE, "--policy", "lru:depth", naming=("KEY=NUMBER",))
        self.one_line("replay", TRACE, "--profile", "b200")
        self.one_line("replay", TRACE, "--shape", "gpt-7", naming=("llama-3.1-8b",))
        self.refused("replay", TRACE, "--machine", "abacus", code=2)
        self.refused("frobnicate", code=2)
        self.refused(code=2)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            there = pathlib.Path(folder)
            (there / "empty.safetensors").touch()
            (there / "short.safetensors.zst").write_bytes(pathlib.Path(TRACE).read_bytes()[:5000])
            (there / "bad.jsonl").write_text('{"timestamp": 0, "input_length": -3, "output_length": 1, "hash_ids": [1]}\n')
            profile = lehr("profiles", "gh200").stdout
            line = profile.splitlines().index("[platform]") + 2
            (there / "bad.toml").write_text(profile.replace("[platform]\n", '[platform]\nspeed = "ludicrous"\n'))
            before = sorted(os.listdir(folder))
            for name in ("empty.safetensors", "short.safetensors.zst", "absent.safetensors", "bad.jsonl"):
                with self.subTest(name):
                    self.one_line("compare", str(there / name), naming=(name,))
                    self.one_line("inspect", str(there / name), naming=(name,))
            self.one_line("replay", TRACE, "--profile", str(there / "bad.toml"), naming=(f"bad.toml:{line}", "speed"))
            self.one_line("compare", folder)
            self.assertEqual(sorted(os.listdir(folder)), before)

    def test_reports_that_cannot_be_written(self):
        self.one_line("replay", TRACE, "--json", "/proc/nowhere/report.json")
        with tempfile.TemporaryDirectory() as folder:
            self.one_line("replay", TRACE, "--json", folder)
            self.assertEqual(os.listdir(folder), [])

    def test_a_gpu_that_is_not_to_be_had(self):
        for command in (
            ["replay", TRACE, "--machine", "cuda"],
            ["experiment", "decode", TRACE],
            ["experiment", "nvlink-decode", TRACE, "--sparsity", "80"],
        ):
            command += ["--shape", "llama-3.1-8b", "--hbm", "25%", "--steps", "2"]
            with self.subTest(command):
                if lehr(*command).returncode == 0:
                    continue  # there is one
                self.one_line(*command, code=1, naming=("machine cuda:",))
        self.one_line("replay", TRACE, "--perfetto", "x.json", naming=("--machine cuda",))
        self.one_line("experiment", "nvlink-decode", TRACE, "--profile", "gh200", naming=("expected peer",))

    def test_a_control_that_passes(self):
        done = lehr("replay", TRACE, "--policy", "lru", "--hbm", "25%")
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
