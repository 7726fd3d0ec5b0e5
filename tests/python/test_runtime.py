# SPDX-License-Identifier: Apache-2.0
"""The step level from Python, against float64; refusals as exceptions with a reason."""
import ctypes
import ctypes.util
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lehr
from lehr import _library

LAYERS, HEADS, Q_HEADS, DIM, PAGE = 2, 2, 4, 16, 8


def runtime(hbm="200 pages", pages=400, **step):
    return lehr.Runtime({"machine": "host", "profile": "h200-pcie5", "policy": {"name": "lru"},
                         "geometry": {"layers": LAYERS, "kv_heads": HEADS, "q_heads": Q_HEADS, "head_dim": DIM,
                                      "page_tokens": PAGE, "dtype": "f32"},
                         "step": {"contents": "kv", **step},
                         "capacity": {"hbm": hbm, "host": f"{pages} pages", "nvme": 0}})


class Story:
    """K, V and Q of one sequence, and what attention over them is."""

    def __init__(self, seed, tokens=160):
        rng = np.random.default_rng(seed)
        self.k, self.v = (rng.normal(size=(LAYERS, 1, HEADS, tokens, DIM)).astype(np.float32) for _ in range(2))
        self.q = rng.normal(size=(LAYERS, 1, Q_HEADS, tokens, DIM)).astype(np.float32)

    def expected(self, layer, begin, end, chosen=None):
        out = np.empty((1, Q_HEADS, end - begin, DIM))
        shares = np.zeros((HEADS, -(-end // PAGE)))
        for h in range(Q_HEADS):
            k, v = (x[layer, 0, h * HEADS // Q_HEADS, :end].astype(np.float64) for x in (self.k, self.v))
            logits = self.q[layer, 0, h, begin:end].astype(np.float64) @ k.T / np.sqrt(DIM)
            seen = np.arange(end)[None] <= np.arange(begin, end)[:, None]
            weights = np.where(seen, np.exp(logits - logits.max(1, keepdims=True)), 0)
            weights /= weights.sum(1, keepdims=True)
            out[0, h] = weights @ v
            for page in range(shares.shape[1]):
                shares[h * HEADS // Q_HEADS, page] += weights[-1, page * PAGE:(page + 1) * PAGE].sum() * HEADS / Q_HEADS
        return out, shares


def step(rt, sequence, story, tokens, codes=False, selection=lehr.Selection()):
    begin = len(sequence)
    rt.begin([sequence], [tokens])
    outs, masses = [], []
    for layer in range(LAYERS):
        at = np.s_[layer, :, :, begin:begin + tokens]
        rt.append(layer, story.k[at], story.v[at])
        out = np.full((1, Q_HEADS, tokens, DIM), np.nan, np.float32)
        mass = np.empty((1, HEADS, -(-(begin + tokens) // PAGE)), np.uint8) if codes else None
        rt.attend(layer, story.q[at], out, mass=mass, selection=selection)
        outs.append(out)
        masses.append(mass)
    rt.end()
    return outs, masses


def test_attention_is_that_of_float64():
    with runtime("20 pages") as rt:
        sequence, story = rt.sequence(), Story(1)
        for tokens in (29, 1, 1, 12, *[1] * 20):
            begin = len(sequence)
            outs, masses = step(rt, sequence, story, tokens, codes=True)
            for layer in range(LAYERS):
                out, shares = story.expected(layer, begin, begin + tokens)
                np.testing.assert_allclose(outs[layer], out, atol=2e-6)
                assert np.abs(masses[layer][0].astype(int) - lehr.codes_of(shares)).max() <= 1
        assert rt.moved().moved_pages > 0 and rt.statistics()["step_reads"] > 0
        assert any("verified" in line for line in rt.notes())


def test_forks_rollbacks_and_gather():
    with runtime("40 pages") as rt:
        sequence, story = rt.sequence(), Story(2)
        step(rt, sequence, story, 45)
        fork = sequence.fork()
        other = Story(3)
        for name in "kvq":  # a fork has its parent's past
            getattr(other, name)[:, :, :, :45] = getattr(story, name)[:, :, :, :45]
        for _ in range(12):
            for s, t in ((sequence, story), (fork, other)):
                begin = len(s)
                outs, _ = step(rt, s, t, 1)
                np.testing.assert_allclose(outs[1], t.expected(1, begin, begin + 1)[0], atol=2e-6)
        fork.truncate(20)
        assert len(fork) == 20 and len(sequence) == 57
        k, v = (np.empty((2, HEADS, 60, DIM), np.float32) for _ in range(2))
        rt.gather(1, [sequence, fork], k, v)
        for i, (t, n) in enumerate(((story, 57), (other, 20))):
            np.testing.assert_array_equal(k[i, :, :n], t.k[1, 0, :, :n])
            np.testing.assert_array_equal(v[i, :, :n], t.v[1, 0, :, :n])
            assert not k[i, :, n:].any()
        rt.reorder([sequence, fork], [1, 1])
        assert len(sequence) == 20
        outs, _ = step(rt, sequence, other, 1)
        np.testing.assert_allclose(outs[0], other.expected(0, 20, 21)[0], atol=2e-6)


def test_a_dropped_sequence_gives_its_pages_back():
    with runtime("16 pages") as rt:
        for seed in range(6):
            step(rt, rt.sequence(), Story(seed), 40)
        assert rt.statistics()["step_reads"] >= 0


@pytest.mark.parametrize("text", ["", "topk", "topk:0", "topk:1.5", "count:0", "count:1.5", "mass:-1", "mass:nan",
                                  "best:3", "topk:1e9", "all:1"])
def test_selections_that_are_none(text):
    with pytest.raises(lehr.LehrError) as e:
        lehr.Selection.parse(text)
    assert e.value.reason == "out_of_range"


def test_selections_that_are():
    assert lehr.Selection.parse("topk:30%") == lehr.Selection(2, 0.3)
    assert lehr.Selection.parse("mass:.95").amount == 0.95
    assert lehr.Selection.parse("count:64") == lehr.Selection(1, 64)


def test_refusals_have_reasons_and_leave_no_trace():
    with runtime() as rt:
        sequence = rt.sequence()
        good = np.zeros((1, HEADS, 1, DIM), np.float32)
        with pytest.raises(lehr.LehrError, match="no step"):
            rt.append(0, good, good)
        rt.begin([sequence], [1])
        for bad, reason in ((good.astype(np.float64), "layout_mismatch"), (good.astype(np.float16), "layout_mismatch"),
                            (good[0], "layout_mismatch"), (np.zeros((1, 9, 1, DIM), np.float32), "layout_mismatch"),
                            (np.zeros((1, HEADS, 1, 2 * DIM), np.float32)[..., ::2], "none"), ([1, 2], "none"),
                            (good.astype(">f4"), "layout_mismatch"), (None, "none")):
            with pytest.raises(lehr.LehrError) as e:
                rt.append(0, bad, good)
            assert e.value.reason == reason
        with pytest.raises(lehr.LehrError, match="uint8"):
            rt.attend(0, good, good, mass=np.zeros((1, HEADS, 4)))
        with pytest.raises(lehr.LehrError) as e:
            rt.begin([sequence], [1])
        assert e.value.kind == "invalid" and e.value.status < 0
        rt.abandon()
        assert len(sequence) == 0
    with pytest.raises(lehr.LehrError) as e:
        rt.sequence()
    assert e.value.kind == "stale"


def test_a_wrong_configuration_names_the_key():
    with pytest.raises(lehr.LehrError, match="geometri"):
        lehr.Runtime("[geometri]\nlayers = 1\n")
    with pytest.raises(lehr.LehrError, match="cuda") as e:
        lehr.Runtime({"machine": "cuda", "geometry": {"layers": 1, "kv_heads": 1, "head_dim": 8},
                      "step": {"contents": "kv"}, "capacity": {"hbm": "4 pages", "host": "4 pages", "nvme": 0}})
    assert e.value.kind == "unsupported"
    with pytest.raises(lehr.LehrError, match="head_dim"):
        lehr.Runtime({"machine": "host", "geometry": {"layers": 1, "kv_heads": 1, "head_dim": 9, "dtype": "f32"},
                      "step": {"contents": "kv"}, "capacity": {"hbm": "4 pages", "host": "4 pages", "nvme": 0}})


def test_dlpack_is_taken():
    class Other:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    with runtime() as rt:
        sequence, story = rt.sequence(), Story(4)
        rt.begin([sequence], [3])
        for layer in range(LAYERS):
            rt.append(layer, Other(story.k[layer, :, :, :3].copy()), Other(story.v[layer, :, :, :3].copy()))
        rt.end()
        k = np.empty((1, HEADS, 3, DIM), np.float32)
        rt.gather(0, [sequence], k, k.copy())
        np.testing.assert_array_equal(k[0], story.k[0, 0, :, :3])


def test_other_threads_run_during_a_call():
    """The interpreter lock is let go: a counter goes on while a chunk is attended."""
    with runtime("900 pages", pages=900) as rt:
        sequence, story = rt.sequence(), Story(5, 1500)
        stop, counted = threading.Event(), [0]

        def count():
            while not stop.is_set():
                counted[0] += 1
                time.sleep(0)  # the counter lets go of the lock each time; this thread only inside the call

        rt.begin([sequence], [1500])
        rt.append(0, story.k[0], story.v[0])
        out = np.empty((1, Q_HEADS, 1500, DIM), np.float32)
        thread = threading.Thread(target=count)
        sys.setswitchinterval(30)
        try:
            thread.start()
            before = counted[0]
            rt.attend(0, story.q[0], out)
            during = counted[0] - before
        finally:
            stop.set()
            sys.setswitchinterval(0.005)
            thread.join()
        assert during > 0
        rt.abandon()


def fresh(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True,
                          text=True)


SOURCE = f"import sys; sys.path[:0] = {sys.path!r}\n"


def test_a_missing_or_foreign_library_is_said(tmp_path):
    try_it = SOURCE + "import lehr\ntry: lehr.build_info()\nexcept lehr.LibraryError as e: print('said', e)"
    done = fresh(try_it, LEHR_LIBRARY="/nowhere/liblehr.so")
    assert "said" in done.stdout and "/nowhere/liblehr.so" in done.stdout, done.stderr
    (tmp_path / "liblehr.so").write_bytes(b"no ELF")
    assert "said" in fresh(try_it, LEHR_LIBRARY=str(tmp_path / "liblehr.so")).stdout
    zstd = ctypes.util.find_library("zstd") or "libzstd.so.1"
    assert "no liblehr.so" in fresh(try_it, LEHR_LIBRARY=zstd).stdout


def test_another_version_is_refused(monkeypatch):
    class Fake:
        class lehr_version:
            restype = None

            def __call__(self):
                return 2_000_000

        def __init__(self):
            self.lehr_version = Fake.lehr_version()

    with pytest.raises(lehr.LibraryError, match="version 2.0.0"):
        _library._declare(Fake(), "x.so")


def test_a_forked_child_is_refused():
    code = SOURCE + """
import os, lehr
rt = lehr.Runtime("[geometry]\\nlayers = 1\\nkv_heads = 1\\nhead_dim = 8\\n")
pid = os.fork()
if pid == 0:
    try: lehr.Runtime("[geometry]\\nlayers = 1\\nkv_heads = 1\\nhead_dim = 8\\n")
    except lehr.LehrError as e: os._exit(7 if e.reason == "forked" else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = fresh(code)
    assert done.stdout.strip() == "7", done.stderr
