#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lehr command from outside: figures that must agree, and bad input of every kind.

usage: cli_test.py LEHR DATA_DIR
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

LEHR, DATA = sys.argv[1], pathlib.Path(sys.argv[2])
TRACE = str(DATA / "longdoc-cut.safetensors.zst")
REQUESTS = str(DATA / "conversation-cut.jsonl.zst")


def lehr(*arguments, **options):
    return subprocess.run([LEHR, *arguments], capture_output=True, text=True, timeout=240, **options)


def trace_file(rows=((0,),), **metadata):
    """An attention trace of one layer and head, with a row of mass codes for each step; the smallest if not told
    otherwise. Metadata can be overridden."""
    mass = bytes(code for row in rows for code in row)
    known = {"format": "lehr.attention-trace", "version": "1", "model": "m", "workload": "w", "page_tokens": "16",
             "q_heads": "1", "kv_heads": "1", "head_dim": "8", "kv_bytes_per_element": "2", "layers": "1",
             "layer_ids": "0", "prompt_tokens": "8", "steps": "1", "mass_encoding": "log2_u8_8", **metadata}
    header = json.dumps({"__metadata__": known,
                         "mass": {"dtype": "U8", "shape": [len(rows), 1, 1, len(rows[0])],
                                  "data_offsets": [0, len(mass)]}}).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + mass


def trace_with_contents(prompt=320, steps=48, dim=64, seed=7):
    """One layer, one head, with queries, K and V of which later tokens matter as much as earlier ones."""
    draw = random.Random(seed)
    tokens, pages = prompt + steps, -(-(prompt + steps) // 16)
    halves = {"q": (steps, 1, 1, dim), "k": (1, 1, tokens, dim), "v": (1, 1, tokens, dim)}
    known = {"format": "lehr.attention-trace", "version": "1", "model": "m", "workload": "w", "page_tokens": "16",
             "q_heads": "1", "kv_heads": "1", "head_dim": str(dim), "kv_bytes_per_element": "2", "layers": "1",
             "layer_ids": "0", "prompt_tokens": str(prompt), "steps": str(steps), "mass_encoding": "log2_u8_8"}
    rows = [[32 if 16 * p <= prompt + t else 255 for p in range(pages)] for t in range(steps)]
    header, data = {"__metadata__": known}, b""
    tensors = [("mass", "U8", (steps, 1, 1, pages), bytes(code for row in rows for code in row))]
    for name, shape in halves.items():
        count = shape[0] * shape[2] * dim
        tensors.append((name, "F16", shape, struct.pack(f"<{count}e", *(draw.gauss(0, 1) for _ in range(count)))))
    for name, dtype, shape, raw in tensors:
        data += b"\0" * (-len(data) % 8)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


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

    def test_no_policy_beats_the_bound_where_home_is_full(self):
        # Two pages become full, home has room for one of them: the other's write-back waits beyond the last step.
        steps, prompt = 40, 17
        pages = -(-(prompt + steps) // 16)
        rows = [[64 if 16 * p <= prompt + t else 255 for p in range(pages)] for t in range(steps)]
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "small.safetensors"
            trace.write_bytes(trace_file(rows, prompt_tokens=str(prompt), steps=str(steps)))
            cells = {}
            for host in ("2 pages", "4 pages"):
                done = lehr("compare", str(trace), "--hbm", "100%", "--host", host, "--warmup", "0", "--json", "-")
                self.assertEqual(done.returncode, 0, done.stderr)
                cells[host] = json.loads(done.stdout)["cells"][0]
                left_out = "bounds and oracle leave out what the tiers below it cost"
                self.assertEqual(left_out in done.stdout, host == "2 pages")
        for host, cell in cells.items():
            for policy in cell["policies"]:
                if policy["policy"] != "unlimited":
                    self.assertGreaterEqual(policy["over_bound"], 0, (host, policy["policy"]))
        lru = {host: next(p for p in cell["policies"] if p["policy"] == "lru") for host, cell in cells.items()}
        self.assertEqual([lru[host]["all"]["written_back"] for host in cells], [1, 2])
        self.assertLess(*(cells[host]["best_bound"]["seconds"] for host in cells))

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

    def test_totals_add_up_with_and_without_warmup(self):
        for cell in self.report["cells"]:
            for p in cell["policies"]:
                every, warm = p["all"], p["warm"]
                self.assertEqual(every["steps"], warm["steps"] + self.report["warmup_steps"])
                for key in ("page_reads", "page_misses", "predicted_seconds", "written_back"):
                    self.assertGreaterEqual(every[key], warm[key], (p["policy"], key))

    def test_table_and_report_agree(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            done = lehr("compare", TRACE, "--profile", "gh200", "--hbm", "10%", "--policies", "lru", "min", "--json",
                        str(report))
            self.assertEqual(done.returncode, 0, done.stderr)
            cell = json.loads(report.read_text())["cells"][0]
        rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
        self.assertIn("predicted", done.stdout)
        for p in cell["policies"]:
            row, warm = rows[p["policy"]], p["warm"]
            self.assertIn(f" {warm['predicted_tokens_per_second']:.1f} ", row)
            self.assertIn(f" {100 * warm['byte_hit_rate']:.2f}% ", row)
            for key in ("step_p50_ms", "step_p99_ms"):
                self.assertIn(f" {float(f'{1e3 * warm[key]:.3g}'):g} us", row, key)
            self.assertIn(f" {100 * p['over_bound_without_warmup']:+.1f}% ", row)
            self.assertIn(f" {100 * p['over_oracle_without_warmup']:+.1f}%", row)

    def test_a_warmup_longer_than_the_trace_leaves_all_steps(self):
        for command in (("compare", "--policies", "lru"), ("bound",), ("replay",)):
            done = lehr(command[0], TRACE, *command[1:], "--warmup", "1000")
            self.assertEqual(done.returncode, 0, done.stderr)
        done = lehr("compare", TRACE, "--policies", "lru", "--warmup", "1000")
        self.assertIn("predicted, steps 0 to 95", done.stdout)
        self.assertNotIn("bound LB2 0 a step", done.stdout)

    def test_the_published_window_scheme_is_an_upper_estimate_that_only_a_replay_can_run(self):
        done = lehr("compare", TRACE, "--profile", "gh200", "--hbm", "10%", "--policies", "sa-window", "static", "--json",
                    "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        window, fixed = json.loads(done.stdout)["cells"][0]["policies"]
        self.assertTrue(window["full_knowledge"])
        self.assertFalse(fixed["full_knowledge"])
        self.assertGreaterEqual(window["over_bound"], 0)
        self.assertGreater(window["all"]["promoted"], 0)
        self.assertLess(window["all"]["page_misses"], fixed["all"]["page_misses"])
        self.assertIn("sa-window (upper estimate)", lehr("compare", TRACE, "--policies", "sa-window").stdout)
        refused = lehr("replay", TRACE, "--policy", "sa-window", "--machine", "host")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("knows the whole replay", refused.stderr)

    def test_the_ablation_has_every_row_and_its_parts_agree(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "ablation.json"
            done = lehr("experiment", "ablation", TRACE, "--hbm", "10%", "--select", "mass:0.95", "--seeds", "2",
                        "--mixed", "0", "--json", str(file))
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text())
        self.assertEqual({(c["hbm"], c["profile"]) for c in report["cells"]}, {("10%", "gh200"), ("10%", "h200-pcie5")})
        changed = {v["variant"] for v in report["variants"]}
        for feature in ("fill on read", "write-back once", "prefetch", "importance (mass)", "budget of promotions"):
            self.assertIn(f"table without {feature}", changed)
        self.assertLessEqual({"histogram without its threshold", "sa without annealing"}, changed)
        for cell in report["cells"]:
            self.assertLessEqual(cell["bound_seconds"], cell["oracle_seconds"])
            seconds = {p["policy"]: p["seconds"] for p in cell["policies"]}
            seeds = 2 if cell["profile"] == "gh200" else 1
            self.assertEqual({len(seconds["sa"]), len(seconds["sa-adaptive"])}, {seeds})
            # An order is replayed once for both profiles: the second's times must be its own.
            lru = json.loads(lehr("compare", TRACE, "--profile", cell["profile"], "--hbm", "10%", "--policies", "lru",
                                  "--json", "-").stdout)["cells"][0]["policies"][0]["warm"]["predicted_seconds"]
            self.assertAlmostEqual(seconds["lru"][0] / lru, 1, places=9)
            self.assertGreaterEqual(min(min(s) for s in seconds.values()), cell["bound_seconds"])
        self.assertIn("oracle (full knowledge) over the best certified bound", done.stdout)

    def test_lists_of_policies_take_commas_blanks_and_parameters(self):
        for listed in (("lru", "lfu:ageing=16", "arc"), ("lru,lfu:ageing=16,arc",), ("lru,lfu:ageing=16", "arc")):
            done = lehr("compare", TRACE, "--policies", *listed, "--json", "-")
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [(p["policy"], p["parameters"]) for p in json.loads(done.stdout)["cells"][0]["policies"]]
            self.assertEqual(rows, [("lru", {}), ("lfu", {"ageing": 16}), ("arc", {})])
        done = lehr("compare", TRACE, "--policies", "lru,,arc")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("no policy ''", done.stderr)

    def test_inspect_reports_as_the_other_commands_do(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            shown = lehr("inspect", REQUESTS, "--json", str(report)).stdout
            self.assertIn("working set", shown)
            self.assertIn("LRU with room for, of the blocks read", shown)  # not of all of them, as --hbm is
            written = json.loads(report.read_text())
        for arguments in ((REQUESTS, "--json"), (REQUESTS, "--json", "-"), ("--json", REQUESTS)):
            with self.subTest(arguments):
                self.assertEqual(json.loads(lehr("inspect", *arguments).stdout), written)

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

    def test_the_engine_goes_by_the_movers_of_the_profile(self):
        text = lehr("profiles", "h200-pcie5").stdout
        with tempfile.TemporaryDirectory() as folder:
            for fast, slow in (("file_pread", "file_uring"), ("file_uring", "file_pread")):
                profile = pathlib.Path(folder) / "p.toml"
                movers = "".join(f'[[mover]]\nlink = "{link}"\nname = "{name}"\nlatency_us = 1\ngbps = {gbps}\n'
                                 for link in ("nvme_read", "nvme_write") for name, gbps in ((fast, 9), (slow, 1)))
                profile.write_text(text + movers)
                done = lehr("replay", TRACE, "--machine", "host", "--policy", "lru", "--profile", str(profile),
                            "--hbm", "5%", "--host", "50%", "--json", "-")
                self.assertEqual(done.returncode, 0, done.stderr)
                notes = json.loads(done.stdout)["cells"][0]["notes"]
                if fast == "file_uring" and any("files are read with pread" in n for n in notes):
                    continue  # io_uring is refused here
                self.assertTrue(any(f"moved by {fast}" in n for n in notes), notes)
                self.assertFalse(any(f"moved by {slow}" in n for n in notes), notes)

    def test_a_request_trace_of_few_blocks_is_compared_by_default(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "few.jsonl"
            trace.write_text(2 * '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n')
            done = lehr("compare", str(trace), "--json", "-")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(json.loads(done.stdout)["cells"]), 3)
            for size in ("0%", "-1%", "0", "101%"):
                self.assertEqual(lehr("compare", str(trace), "--cache", size).returncode, 2)

    def test_request_traces(self):
        done = lehr("compare", REQUESTS, "--cache", "5%", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {p["policy"]: p["all"] for p in json.loads(done.stdout)["cells"][0]["policies"]}
        for row in rows.values():
            self.assertLessEqual(row["block_hit_ratio"], rows["min"]["block_hit_ratio"])
            self.assertLessEqual(row["prefix_block_hit_ratio"], row["block_hit_ratio"])


class Gpus(unittest.TestCase):
    """lehr replay --gpus: one workload over several devices that all serve it."""

    def replay(self, *arguments, policy="lru"):
        done = lehr("replay", TRACE, "--policy", policy, "--steps", "64", "--json", "-", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["cells"][0]

    def test_devices_read_between_them_what_one_reads(self):
        one = self.replay("--hbm", "100%")
        for split in ("heads", "layers", "tokens"):
            cell = self.replay("--hbm", "30%", "--gpus", "3", "--split", split)
            devices = cell["group"]["devices"]
            self.assertEqual(len(devices), 3)
            for count in ("page_reads", "tail_reads", "written_back"):
                self.assertEqual(sum(d["all"][count] for d in devices), one["all"][count], (split, count))
                self.assertEqual(cell["all"][count], one["all"][count], (split, count))
            slowest = max(d["all"]["predicted_seconds"] for d in devices)
            self.assertGreater(cell["all"]["predicted_seconds"], slowest)

    def test_rebalancing_helps_an_uneven_group(self):
        uneven = ("--hbm", "25%", "--gpus", "2", "--split", "layers", "--budget", "1,3")
        control = self.replay(*uneven, policy="sa")
        cell = self.replay(*uneven, "--rebalance", "8", "--rebalance-units", "2", policy="sa")
        self.assertEqual(control["group"]["migrations"], [])
        self.assertGreater(len(cell["group"]["migrations"]), 0)
        self.assertLess(cell["all"]["predicted_seconds"], control["all"]["predicted_seconds"])
        self.assertEqual(cell["all"]["page_reads"], control["all"]["page_reads"])
        for move in cell["group"]["migrations"]:
            self.assertEqual(sum(move["units_before"]), sum(move["units_after"]))
            self.assertLess(move["expected_seconds"], move["slowest_part_seconds"])
        first = cell["group"]["devices"][0]
        self.assertLess(first["units"], first["units_at_first"])

    def test_real_bytes_are_verified_on_every_device(self):
        cell = self.replay("--machine", "host", "--hbm", "20%", "--gpus", "2", "--budget", "1,3", "--page-bytes", "256",
                           "--deal", "2,1", "--rebalance", "16", "--rebalance-gain", "0")
        for device in cell["group"]["devices"]:
            self.assertTrue(any("verified" in note for note in device["notes"]), device["notes"])
        self.assertIn("measured_step_p50_ms", cell)

    def test_memory_below_hbm_is_shared_by_what_each_holds(self):
        # Of three KV heads the first device has two: half of 40 and 90 % would not hold them.
        cell = self.replay("--hbm", "25%", "--host", "40%", "--nvme", "90%", "--gpus", "2")
        self.assertEqual([d["units"] for d in cell["group"]["devices"]], [2, 1])


class Precision(unittest.TestCase):
    """Pages that may take a lower precision."""

    LOWERS = ("--precision", "e4m3", "--precision-mass", "0.05")

    def cell(self, *arguments):
        done = lehr("replay", TRACE, "--hbm", "10%", "--json", "-", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["cells"][0]

    def test_the_mass_on_lowered_pages_is_what_is_allowed_and_they_cross_smaller(self):
        without = self.cell("--policy", "sa")
        self.assertNotIn("lowering", without)
        before = 0
        for mass in (0.01, 0.05):
            cell = self.cell("--policy", "sa", "--precision", "e4m3", "--precision-mass", str(mass))
            lowering = cell["lowering"]
            self.assertGreater(cell["all"]["lowered"], before)
            self.assertLessEqual(lowering["most_mass_share"], mass)
            self.assertLessEqual(lowering["mean_mass_share"], lowering["most_mass_share_of_a_step"])
            self.assertGreater(lowering["saved_to_hbm_bytes"], lowering["written_home_bytes"])
            self.assertLess(cell["all"]["predicted_seconds"], without["all"]["predicted_seconds"])
            before = cell["all"]["lowered"]
        # Control: allowed all, the same trace goes over that.
        free = self.cell("--policy", "sa", "--precision", "e4m3", "--precision-mass", "1")
        self.assertGreater(free["lowering"]["most_mass_share"], 0.05)

    def test_not_allowed_is_as_ever_and_so_is_a_policy_that_lowers_none(self):
        for policy in ("sa", "table", "lru"):
            plain = self.cell("--policy", policy)["all"]
            if policy == "sa":
                same = self.cell("--policy", policy, "--precision", "e4m3", "--precision-mass", "0")["all"]
            else:
                same = self.cell("--policy", policy, *self.LOWERS)["all"]
            for key in plain:
                if key != "mass_seen":
                    self.assertEqual(plain[key], same[key], (policy, key))

    def test_host_does_what_sim_decides_and_verifies_every_form_below_home_too(self):
        arguments = ("--policy", "sa", "--host", "60%", *self.LOWERS)
        sim, host = (self.cell("--machine", machine, *arguments) for machine in ("sim", "host"))
        for key in ("page_reads", "lowered", "lowered_crossings", "lowered_hits", "links", "staged"):
            self.assertEqual(sim["all"][key], host["all"][key], key)
        self.assertGreater(host["all"]["lowered"], 0)
        self.assertGreater(host["all"]["staged"], 0)
        # The conversions look at what they convert.
        reads = host["all"]["page_reads"] + host["all"]["lowered"]
        self.assertTrue(any(f"verified {reads} page reads" in n for n in host["notes"]), host["notes"])

    def test_attention_of_lowered_pages_is_a_little_off_and_what_that_is_is_told(self):
        errors = {}
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "qkv.safetensors"
            trace.write_bytes(trace_with_contents())
            for precision in ("none", "int8", "e4m3"):
                done = lehr("replay", str(trace), "--machine", "host", "--attend", "--hbm", "10 pages", "--json", "-",
                            "--precision", precision, "--precision-mass", "0.3")
                self.assertEqual(done.returncode, 0, done.stderr)
                cell = json.loads(done.stdout)["cells"][0]
                errors[precision] = cell["output_error"]["most"]
                self.assertEqual(cell["output_error"]["rows"], 48)
                self.assertEqual(cell["all"].get("lowered", 0) > 0, precision != "none", cell["notes"])
        self.assertLess(errors["none"], 1e-5)
        self.assertGreater(errors["int8"], errors["none"])
        self.assertGreater(errors["e4m3"], errors["none"])
        self.assertLess(errors["e4m3"], 0.05)

    def test_figures_by_bytes_count_lowered_pages_as_they_are(self):
        done = lehr("replay", TRACE, "--hbm", "10%", "--json", "-", "--policy", "sa", *self.LOWERS)
        report = json.loads(done.stdout)
        self.assertEqual((report["precision"], report["precision_mass"]), ("e4m3", 0.05))
        whole, lowered = report["page_bytes"], report["lowered_page_bytes"]
        done = report["cells"][0]["all"]
        saved = whole - lowered
        hits = whole * done["page_hits"] - saved * done["lowered_hits"]
        misses = whole * done["page_misses"] - saved * done["lowered_crossings"]
        self.assertAlmostEqual(done["byte_hit_rate"], hits / (hits + misses))
        self.assertNotAlmostEqual(done["byte_hit_rate"], done["page_hits"] / done["page_reads"], 3)  # control
        crossed = done["links"]["h2d"]["bytes"]
        useful = whole * (done["page_misses"] + done["promoted_used"]) - saved * done["lowered_crossings"]
        self.assertAlmostEqual(done["useful_share"], useful / crossed)
        self.assertLessEqual(useful, crossed)

    def test_several_gpus_say_what_they_lowered(self):
        there = ("replay", TRACE, "--hbm", "10%", "--policy", "sa", "--gpus", "2")
        done = lehr(*there, *self.LOWERS)
        self.assertRegex(done.stdout, r"lowered pages +[1-9]\d*, to e4m3; \d")
        self.assertNotIn("lowered pages", lehr(*there).stdout)

    def test_a_budget_that_was_passed_is_said(self):
        # The budget of one page in a tiny trace, whose masses rise a thousandfold in the middle.
        rows = [[0] + [104] * 31 + [120] * 8 + [255] * 9 if t < 40 else [24] * 32 + [24] * 8 + [255] * 9 for t in range(80)]
        for t, row in enumerate(rows):
            rows[t] = [code if 16 * p <= 640 + t else 255 for p, code in enumerate(row[:45])]
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "rises.safetensors"
            trace.write_bytes(trace_file(rows, prompt_tokens="640", steps="80"))
            done = lehr("replay", str(trace), "--select", "all", "--hbm", "3 pages", "--policy", "sa:box=100", "--json", "-",
                        "--precision", "e4m3", "--precision-mass", "0.01")
        self.assertEqual(done.returncode, 0, done.stderr)
        cell = json.loads(done.stdout)["cells"][0]
        self.assertGreater(cell["lowering"]["most_mass_share"], 0.01)
        self.assertTrue(any("more than allowed" in note for note in cell["notes"]), cell["notes"])
        within = self.cell("--policy", "sa", *self.LOWERS)
        self.assertFalse(any("more than allowed" in note for note in within["notes"]), within["notes"])

    def test_no_policy_beats_the_bound(self):
        done = lehr("compare", TRACE, "--profile", "gh200", "--hbm", "10%", "--policies", "sa,table,min", "--json", "-",
                    "--precision", "int8", "--precision-mass", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        lowered = json.loads(done.stdout)["cells"][0]
        for policy in lowered["policies"]:
            self.assertGreaterEqual(policy["over_bound"], 0, policy["policy"])

    def test_hostile_values(self):
        for option, value in (("--precision", "fp4"), ("--precision", ""), ("--precision-mass", "-0.1"),
                              ("--precision-mass", "1.5"), ("--precision-mass", "nan"), ("--precision-mass", "inf"),
                              ("--precision-mass", "a lot")):
            with self.subTest((option, value)):
                done = lehr("replay", TRACE, "--precision", "e4m3", option, value)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn("--precision", done.stderr)


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

    def test_numbers(self):
        for option, value in (("--weights-gb", "nan"), ("--weights-gb", "-1"), ("--weights-gb", "inf"),
                              ("--page-bytes", "1"), ("--sequences", "1000000"), ("--hbm", "")):
            with self.subTest((option, value)):
                self.one_line("replay", TRACE, option, value, code=2, naming=(option,))
        for value in ("-1", "18446744073709551615"):
            self.one_line("replay", TRACE, "--seed", value, code=2, naming=("lehr replay: ", "--seed"))
        for option, value in (("--weights-gb", "abc"), ("--sinks", "-1"), ("--recent", "4294967296"), ("--steps", "x\ny")):
            with self.subTest((option, value)):
                self.one_line("replay", TRACE, option, value, code=2, naming=("lehr replay: ", option))

    def test_groups(self):
        for arguments, word in ((("--gpus", "4"), "KV heads"), (("--gpus", "2", "--budget", "1"), "--budget"),
                                (("--gpus", "2", "--budget", "1,-1"), "--budget"), (("--gpus", "2", "--deal", "0,1"), "--deal"),
                                (("--gpus", "2", "--split", "pages"), "--split"), (("--gpus", "0"), "--gpus"),
                                (("--gpus", "65"), "--gpus"), (("--rebalance", "4"), "--gpus"),
                                (("--gpus", "2", "--policy", "sa-window"), "sa-window")):
            with self.subTest(arguments):
                self.one_line("replay", TRACE, *arguments, naming=(word,))

    def test_options_that_would_change_nothing(self):
        for option in (("--gpu", "0"), ("--donor", "1"), ("--check-reads",), ("--trace-kernels",), ("--spare-pages", "4"),
                       ("--faults", "read#1=eio")):
            for machine in ("sim", "host"):
                with self.subTest((machine, option)):
                    self.one_line("replay", TRACE, "--machine", machine, *option, code=2, naming=(option[0], "--machine cuda"))
        for option in (("--select", "topk:10%"), ("--sinks", "2"), ("--recent", "0")):
            with self.subTest(option):
                self.one_line("replay", TRACE, "--machine", "host", "--attend", *option, code=2,
                              naming=(option[0], "every page"))
        done = lehr("replay", TRACE, "--policy", "lru", "--plan-every", "4", "--steps", "4")
        self.assertIn("lru ranks no pages", done.stdout)
        self.assertNotIn("ranks no pages", lehr("replay", TRACE, "--plan-every", "4", "--steps", "4").stdout)  # control

    def test_attention_without_foresight(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "qkv.safetensors"
            trace.write_bytes(trace_with_contents())
            there = ("replay", str(trace), "--machine", "host", "--attend", "--hbm", "10 pages", "--steps", "4")
            for policy in ("min", "sa-window"):
                self.one_line(*there, "--policy", policy, naming=(policy, "in advance"))
            done = lehr(*there)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("page reads", done.stdout)  # what the machine says is passed on

    def test_starts_that_no_clock_counts(self):
        # 2^31 twice is 0 in 32 bits: all sequences would start at once.
        for stagger in ("4294967295", "2147483648", "100000000"):
            with self.subTest(stagger):
                self.one_line("replay", TRACE, "--sequences", "3", "--stagger", stagger, code=2, naming=("--stagger",))

    def test_tiers_of_nothing(self):
        self.one_line("replay", TRACE, "--host", "0", naming=("host",))
        self.one_line("replay", TRACE, "--host", "50%", "--nvme", "0", naming=("below HBM",))

    def test_usage_and_failure_are_told_apart(self):
        self.refused("replay", TRACE, "--select", "best", code=2)
        self.refused("replay", TRACE, "--policy", "clairvoyant", code=2)
        self.refused("replay", TRACE, "--shape", "gpt-7", code=2)
        self.refused("replay", "absent.safetensors", code=1)

    def test_options_of_another_kind_of_trace(self):
        self.one_line("compare", REQUESTS, "--hbm", "25%", code=2, naming=("--hbm", "attention"))
        self.one_line("compare", TRACE, "--cache", "5%", code=2, naming=("--cache", "request"))
        self.one_line("compare", REQUESTS, "--policies", "table", code=2, naming=("table", "lru"))
        for several in ((REQUESTS, REQUESTS, "--cache", "5%"), (TRACE, REQUESTS), (REQUESTS, TRACE)):
            self.one_line("compare", *several, code=2, naming=(f"{REQUESTS}: is a request trace",))
        for command in ("replay", "bound"):
            self.one_line(command, REQUESTS, naming=(f"{REQUESTS}: is a request trace",))
        self.one_line("replay", TRACE, TRACE, "--sequences", "1", naming=("--sequences 1", "2 traces"))

    def test_text_of_a_file_commands_no_terminal(self):
        hostile = "\x1b[31mred\n\u009bJ"
        with tempfile.TemporaryDirectory() as folder:
            there = pathlib.Path(folder)
            (there / "shown.safetensors").write_bytes(trace_file(model=hostile, note=hostile))
            (there / "bad.safetensors").write_bytes(trace_file(format=hostile))
            shown = lehr("inspect", str(there / "shown.safetensors"))
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertEqual(shown.stdout.count("\\x1b[31mred\\x0a\\x9bJ"), 2, shown.stdout)
            self.one_line("inspect", str(there / "bad.safetensors"), code=1, naming=("\\x1b[31mred\\x0a\\x9bJ",))

    def test_names(self):
        self.one_line("replay", TRACE, "--policy", "clairvoyant", naming=("lru",))
        self.one_line("replay", TRACE, "--policy", "lru:depth=3", naming=("depth",))
        for parameters in ("depth", "depth=", "=1", "depth=nan", "depth=1,", "", "a=1,a=2"):
            with self.subTest(parameters):
                self.one_line("replay", TRACE, "--policy", f"lru:{parameters}", code=2, naming=("policy 'lru:",))
        # Nothing of a name gets into the configuration that the command writes.
        self.one_line("replay", TRACE, "--policy", "lru:x]\n[policy=1", code=2, naming=("no parameter",))
        self.one_line("replay", TRACE, "--profile", "b200")
        self.one_line("replay", TRACE, "--shape", "gpt-7", naming=("llama-3.1-8b",))
        self.one_line("replay", TRACE, "--machine", "abacus", code=2)
        self.one_line("replay", code=2)
        self.one_line("frobnicate", code=2)
        self.one_line(code=2)

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
        # Before the work, not after it: nothing of the table has been printed.
        done = lehr("compare", TRACE, "--policies", "lru", "--json", "/proc/nowhere/report.json")
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_a_full_standard_output(self):
        many = ",".join(f"{n}%" for n in range(10, 60))
        for arguments in (("replay", TRACE), ("replay", TRACE, "--json", "-"), ("inspect", TRACE), ("bound", TRACE),
                          ("profiles",), ("profiles", "gh200"), ("inspect", TRACE, "--json"),
                          ("replay", TRACE, "--hbm", many), ("compare", REQUESTS)):
            with self.subTest(arguments), open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([LEHR, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=240)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn("standard output", done.stderr)

    def test_a_file_name_that_is_not_unicode(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(os.fsencode(folder), b"\xff.safetensors.zst")
            os.symlink(os.path.abspath(TRACE), name)
            done = subprocess.run([LEHR, "replay", name, "--json", "-"], capture_output=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stderr)
            json.loads(done.stdout)

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
        for option in ("--perfetto", "--calibrated"):
            self.one_line("replay", TRACE, option, "x.json", naming=("--machine cuda",))
        self.one_line("experiment", "nvlink-decode", TRACE, "--profile", "gh200", naming=("expected peer",))

    def test_no_folder_for_temporary_files(self):
        nowhere = {**os.environ, "TMPDIR": "/nowhere"}
        done = lehr("replay", TRACE, "--policy", "lru", "--steps", "2", env=nowhere)  # needs none
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.one_line("replay", TRACE, "--policy", "lru", "--steps", "2", "--machine", "host", "--host", "50%", "--nvme",
                      "100%", code=1, naming=("nvme", "TMPDIR"), env=nowhere)

    def test_a_control_that_passes(self):
        done = lehr("replay", TRACE, "--policy", "lru", "--hbm", "25%")
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
