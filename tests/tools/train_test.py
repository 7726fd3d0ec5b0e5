#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lehr-train and lehr experiment predictors from outside: weights that fit, fine-tuning, and bad input of every kind.

usage: train_test.py LEHR LEHR_TRAIN DATA_DIR
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

LEHR, TRAIN, DATA = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
SHIPPED = DATA / "predictors.safetensors"
PAGES, STEPS, LAYERS, HEADS = 24, 48, 2, 2


def run(*arguments):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=240)


def small_trace(steps=STEPS, peak=True, tokens=True):
    """Pages that come and go in turn; the others have next to no mass."""
    rng = random.Random(7)
    prompt = PAGES * 16 - steps
    mass = bytearray()
    for step in range(steps):
        there = (prompt + step) // 16 + 1
        for _ in range(LAYERS * HEADS):
            for page in range(PAGES):
                read = (step // 4 + page) % 3 == 0
                mass.append(255 if page >= there else rng.randrange(24, 40) if read else rng.randrange(90, 150))
    known = {"format": "lehr.attention-trace", "version": "1", "model": "SmolLM2-small", "workload": "w",
             "page_tokens": "16", "q_heads": str(HEADS), "kv_heads": str(HEADS), "head_dim": "8",
             "kv_bytes_per_element": "2", "layers": str(LAYERS), "layer_ids": "0,1",
             "prompt_tokens": str(prompt), "steps": str(steps), "mass_encoding": "log2_u8_8"}
    tensors, data = {"__metadata__": known}, bytearray()

    def add(name, kind, shape, values):
        tensors[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data.extend(values)

    if tokens:
        ids = [32 + i % 10 if i // 16 % 5 == 0 else 100 for i in range(PAGES * 16)]
        add("tokens", "I32", [len(ids)], struct.pack(f"<{len(ids)}i", *ids))
    add("mass", "U8", [steps, LAYERS, HEADS, PAGES], mass)
    if peak:
        add("peak", "U8", [steps, LAYERS, HEADS, PAGES], mass)
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + bytes(data)


def read_weights(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8:8 + size]), bytearray(raw[8 + size:])


def write_weights(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


def losses(text):
    """Log losses by model of the first pass that lehr-train prints."""
    words = next(line for line in text.splitlines() if line.startswith("stage 1/")).split()
    return {name: float(words[words.index(name) + 1]) for name in ("logistic", "net", "gru")}


class WithFiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = pathlib.Path(self.folder.name)

    def file(self, name, content):
        path = self.dir / name
        path.write_bytes(content)
        return path

    def refused(self, done, *naming, code=1):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for word in naming:
            self.assertIn(word, done.stderr)


class Training(WithFiles):
    def train(self, *more, trace=None):
        trace = trace or self.file("own.safetensors", small_trace())
        self.out = self.dir / "mine.safetensors"
        return run(TRAIN, trace, "--out", self.out, "--samples", 400, "--epochs", 1, "--select", "mass:0.95", *more)

    def test_fine_tuning_goes_on_from_the_shipped_weights(self):
        tuned = self.train("--from", "shipped")
        self.assertEqual(tuned.returncode, 0, tuned.stderr)
        header, data = read_weights(self.out)
        shipped_header, shipped = read_weights(SHIPPED)
        self.assertEqual({n: t["shape"] for n, t in header.items() if n != "__metadata__"},
                         {n: t["shape"] for n, t in shipped_header.items() if n != "__metadata__"})
        self.assertNotEqual(bytes(data), bytes(shipped))
        self.assertIn("--from shipped", header["__metadata__"]["command"])
        scratch = self.train()
        self.assertEqual(scratch.returncode, 0, scratch.stderr)
        for model, loss in losses(tuned.stdout).items():
            self.assertLess(loss, losses(scratch.stdout)[model], model)  # it knew something before

    def test_tuned_weights_serve_the_command(self):
        self.assertEqual(self.train("--from", "shipped").returncode, 0)
        done = run(LEHR, "experiment", "predictors", self.dir / "own.safetensors", "--weights", self.out,
                   "--predictors", "net,gru", "--no-replay", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads(done.stdout)["rows"]:
            cell = row["judged"][0]["cells"][3]
            self.assertEqual(cell["layers"], "all")
            self.assertGreater(cell["recall"], 0.2)

    def test_a_trace_too_short_is_named(self):
        short = self.file("short.safetensors", small_trace(steps=3))
        self.refused(self.train(trace=short), "short.safetensors", "3 steps", "more than 3")

    def test_a_trace_held_out_is_none_that_is_learnt_from(self):
        copy = self.file("copy.safetensors", small_trace())
        self.refused(self.train("--held", copy), "copy.safetensors", "own.safetensors", "learnt from")
        other = self.file("other.safetensors", small_trace(steps=40))
        self.assertEqual(self.train("--held", other).returncode, 0)
        self.assertIn("other.safetensors", read_weights(self.out)[0]["__metadata__"]["held_out_log_loss"])

    def test_bad_weights_to_go_on_from(self):
        header, data = read_weights(SHIPPED)
        where = header["net.b1"]["data_offsets"][0]
        bad = self.dir / "bad.safetensors"

        def refused(*naming):
            self.refused(self.train("--from", bad), *naming)

        write_weights(bad, {**header, "__metadata__": {**header["__metadata__"], "version": "9"}}, data)
        refused("bad.safetensors", 'version "9"')
        write_weights(bad, {**header, "__metadata__": {"format": "other"}}, data)
        refused("bad.safetensors", "lehr.predictor-weights")
        nan = bytearray(data)
        nan[where:where + 4] = struct.pack("<f", float("nan"))
        write_weights(bad, header, nan)
        refused("net.b1", "element 0", "nan")
        turned = dict(header)
        turned["net.w1"] = {**header["net.w1"], "shape": header["net.w1"]["shape"][::-1]}
        write_weights(bad, turned, data)
        refused("net.w1", "[19,16]", "expected [16,19]")
        half = dict(header)
        half["net.b1"] = {**header["net.b1"], "dtype": "F16", "shape": [32]}
        write_weights(bad, half, data)
        refused("net.b1", "F32")
        self.refused(self.train("--from", self.dir / "none.safetensors"), "none.safetensors")


class Experiment(WithFiles):
    def judge(self, trace, *more):
        return run(LEHR, "experiment", "predictors", trace, "--no-replay", *more)

    def rows(self, trace, *more):
        done = self.judge(trace, "--json", "-", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {row["predictor"]: row["judged"][0] for row in json.loads(done.stdout)["rows"]}

    def test_without_peak_and_tokens_all_predictors_answer_and_numbers_are_not_told(self):
        full = self.rows(self.file("full.safetensors", small_trace()))
        bare = self.rows(self.file("bare.safetensors", small_trace(peak=False, tokens=False)))
        self.assertEqual(full.keys(), bare.keys())
        for name in full:
            self.assertIn("number_pages_recall", full[name])
            self.assertNotIn("number_pages_recall", bare[name])
            # The peak is the mean here: nothing else may change.
            self.assertAlmostEqual(full[name]["cells"][3]["recall"], bare[name]["cells"][3]["recall"], 6)

    def test_without_masses_predictors_go_by_what_was_read(self):
        trace = self.file("own.safetensors", small_trace())
        for name, judged in self.rows(trace, "--masses", "none").items():
            self.assertGreater(judged["cells"][3]["recall"], 0.2, name)
        self.assertEqual(self.judge(trace, "--masses", "some").returncode, 2)

    def test_the_table_has_layers_steps_ahead_bytes_and_cost(self):
        trace = self.file("own.safetensors", small_trace())
        done = run(LEHR, "experiment", "predictors", trace, "--predictors", "ema,net", "--hbm", "30%")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        head = next(line for line in lines if "recall: early" in line)
        for word in ("ahead", "middle", "late", "all", "precision: early", "Brier: early", "calibration: early"):
            self.assertIn(word, head)
        ahead = [line.split() for line in lines if len(line.split()) == 17 + line.startswith(("ema", "net"))]
        self.assertEqual([row[-17] for row in ahead], ["1", "2", "3", "1", "2", "3"])
        for word in ("ms/step", "gh200 30%", "h200-pcie5 30%", "useful MB", "wasted MB"):
            self.assertIn(word, done.stdout)

    def test_reliability_adds_up_to_the_calibration_error(self):
        for name, judged in self.rows(self.file("own.safetensors", small_trace())).items():
            for cell in judged["cells"]:
                if cell["layers"] != "all":
                    continue
                bins = cell["reliability"]
                self.assertEqual(sum(b["pages"] for b in bins), cell["pages"], name)
                off = sum(b["pages"] * abs(b["mean_odds"] - b["share_read"]) for b in bins) / cell["pages"]
                self.assertAlmostEqual(off, cell["calibration_error"], 9, name)

    def test_a_trace_too_short_and_weights_that_are_none(self):
        short = self.file("short.safetensors", small_trace(steps=19))
        self.refused(self.judge(short), "short.safetensors", "19 steps", "more than 19")
        trace = self.file("own.safetensors", small_trace())
        self.refused(self.judge(trace, "--weights", self.file("w.safetensors", b"nothing")), "w.safetensors")
        self.refused(self.judge(trace, "--predictors", "oracle"), "oracle", "persistence", code=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
