# SPDX-License-Identifier: Apache-2.0
"""Traces in Python: what is written is read, by the tool too; nothing hostile gets through."""
import json
import pathlib
import struct
import subprocess
import threading

import numpy as np
import pytest

import lehr
from lehr import simulate
from lehr.trace import write_safetensors

SHAPE = dict(model="m", workload="w", page_tokens=4, q_heads=4, kv_heads=2, head_dim=8, kv_bytes_per_element=2,
             model_layers=5, layer_ids=[1, 4], prompt_tokens=6)


def test_a_command_that_fails_on_a_file_says_so_in_one_line(tmp_path, capsys, monkeypatch):
    from lehr.__main__ import main
    monkeypatch.setattr("lehr.plot._pyplot", lambda: None)  # it is not asked for before the file is open
    assert main(["plot", "mass", str(tmp_path / "absent.safetensors"), str(tmp_path / "out.png")]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "absent.safetensors" in said.err
    assert not list(tmp_path.iterdir())


def made(steps=5, **changes):
    rng = np.random.default_rng(1)
    tokens = SHAPE["prompt_tokens"] + steps
    pages = -(-tokens // 4)
    mass = np.full((steps, 2, 2, pages), 255, np.uint8)
    for t in range(steps):
        here = -(-(6 + t + 1) // 4)
        mass[t, :, :, :here] = rng.integers(0, 60, (2, 2, here))
    return lehr.Trace(**SHAPE, mass=mass, **changes)


def full():
    rng = np.random.default_rng(2)
    t = made()
    t.peak = t.mass.copy()
    t.tokens = np.arange(11, dtype=np.int32)
    t.q = rng.normal(size=(5, 2, 4, 8)).astype(np.float16)
    t.k = rng.normal(size=(2, 2, 11, 8)).astype(np.float16)
    t.v = rng.normal(size=(2, 2, 11, 8)).astype(np.float16)
    t.extra = {"mass_resolution": "exact"}
    t.other = {"more": ("F32", np.ones((2, 3), np.float32))}
    return t


def same(a, b):
    for name in ("mass", "peak", "tokens", "q", "k", "v"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None) and (x is None or (x.dtype == y.dtype and np.array_equal(x, y))), name
    assert a._metadata() == b._metadata()
    assert sorted(a.other) == sorted(b.other)


@pytest.mark.parametrize("ending", ["safetensors", "safetensors.zst"])
def test_what_is_saved_is_opened(tmp_path, ending):
    for trace in (made(), full()):
        path = tmp_path / f"t.{ending}"
        trace.save(path)
        found = lehr.Trace.open(path)
        same(trace, found)
        assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_codes_and_shares_are_inverse():
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(lehr.codes_of(lehr.shares_of(codes)), codes)
    assert lehr.codes_of(np.array([0.0, 1.0, 2.0, 0.5, 1e-30, np.nan])).tolist() == [255, 0, 0, 8, 255, 255]


def test_the_tool_reads_what_python_wrote(tmp_path):
    path = tmp_path / "t.safetensors.zst"
    full().save(path)
    report = lehr.replay(path, hbm="100%", warmup=0)
    assert report["steps"] == 5 and report["page_tokens"] == 4
    done = subprocess.run([simulate.tool(), "inspect", str(path)], capture_output=True, text=True, check=True)
    assert "m" in done.stdout


def test_replay_and_compare_take_objects_and_files(tmp_path):
    trace = full()
    report = lehr.compare(trace, policies=["lru", "static"], hbm=["50%", "100%"], warmup=1)
    assert [cell["hbm"] for cell in report["cells"]] == ["50%", "100%"]
    assert {row["policy"] for row in report["cells"][0]["policies"]} == {"lru", "static"}
    with pytest.raises(lehr.LehrError, match="no-such-policy"):
        lehr.replay(trace, policy="no-such-policy", hbm="100%")
    with pytest.raises(lehr.LehrError):
        lehr.replay(tmp_path / "missing.safetensors")


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setenv("LEHR_TOOL", "/nowhere/lehr")
    with pytest.raises(lehr.LibraryError, match="/nowhere/lehr"):
        lehr.replay(made())


def test_plots_draw_what_reports_say():
    report = lehr.compare(full(), policies=["lru"], hbm=["60%", "100%"], warmup=1)
    from lehr import plot

    series = plot.series_of(report)
    assert set(series) == {"bound", "oracle", "lru"}
    for (_, bound), (_, lru) in zip(series["bound"], series["lru"]):
        assert 0 < bound <= lru * (1 + 1e-9)


# ---- the writer


def record(path, steps=5, **options):
    trace = full()
    with lehr.TraceWriter(path, **SHAPE, with_qkv=True, extra={"mass_resolution": "exact"}, **options) as writer:
        for t in range(steps):
            writer.step(trace.mass[t], trace.peak[t], trace.q[t])
        writer.close(trace.tokens, trace.k, trace.v)
    return trace


@pytest.mark.parametrize("ending", ["safetensors", "safetensors.zst"])
def test_a_streamed_trace_is_the_whole_one(tmp_path, ending):
    path = tmp_path / f"t.{ending}"
    trace = record(path)
    found = lehr.Trace.open(path)
    found.other = trace.other
    same(trace, found)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_nothing_is_visible_before_the_end_or_after_an_interruption(tmp_path):
    path = tmp_path / "t.safetensors"
    path.write_bytes(b"an earlier one")
    trace = full()
    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error):
            with lehr.TraceWriter(path, **SHAPE, with_peak=False) as writer:
                writer.step(trace.mass[0])
                assert path.read_bytes() == b"an earlier one"
                raise error
    assert path.read_bytes() == b"an earlier one" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(lehr.LehrError, match="closed"):
        writer.step(trace.mass[1])


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lehr.trace.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        record(tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_the_writer_refuses_what_a_reader_would(tmp_path):
    path = tmp_path / "t.safetensors"
    trace = full()
    for changes in ({"kv_heads": 3}, {"layer_ids": [4, 1]}, {"layer_ids": [5]}, {"layer_ids": []},
                    {"page_tokens": 0}, {"prompt_tokens": -1}):
        with pytest.raises(lehr.LehrError) as e:
            lehr.TraceWriter(path, **{**SHAPE, **changes})
        assert e.value.kind == "invalid"
    with lehr.TraceWriter(path, **SHAPE) as writer:
        for mass in (trace.mass[0, :1], trace.mass[0].astype(np.int32), trace.mass[0, :, :, :1]):
            with pytest.raises(lehr.LehrError, match="mass"):
                writer.step(mass, trace.peak[0])
        with pytest.raises(lehr.LehrError, match="peak"):
            writer.step(trace.mass[0])
        with pytest.raises(lehr.LehrError, match="at least one step"):
            writer.close()
    with pytest.raises(lehr.LehrError, match="tokens"):
        with lehr.TraceWriter(path, **SHAPE, with_peak=False) as writer:
            writer.step(trace.mass[0])
            writer.close(np.zeros(3, np.int32))
    assert list(tmp_path.iterdir()) == []


# ---- hostile files


def raw(header, body=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def hostile():
    good = full()._metadata()
    yield "empty", b""
    yield "short", b"\0" * 7
    yield "a header past the end", raw(b"{}", size=1 << 40)
    yield "no JSON", raw(b"\xff\xfe")
    yield "no object", raw([1, 2])
    yield "deep", raw(b"[" * 100000)
    yield "another format", raw({"__metadata__": {**good, "format": "x"}})
    yield "another version", raw({"__metadata__": {**good, "version": "2"}})
    yield "metadata of numbers", raw({"__metadata__": {"format": 3}})
    yield "no tensors", raw({"__metadata__": good})
    for key in ("page_tokens", "steps", "kv_heads", "layer_ids", "layers"):
        for value in ("", "-1", "x", "9" * 30, "0", "٣"):
            mass = {"dtype": "U8", "shape": [5, 2, 2, 3], "data_offsets": [0, 60]}
            yield f"{key} is {value!r}", raw({"__metadata__": {**good, key: value}, "mass": mass}, bytes(60))
    for entry in ({"dtype": "U8", "shape": [5, 2, 2, 3], "data_offsets": [0, 61]},
                  {"dtype": "U8", "shape": [5, 2, 2, 3], "data_offsets": [60, 0]},
                  {"dtype": "U8", "shape": [5, 2, 2, 3], "data_offsets": [-60, 0]},
                  {"dtype": "U8", "shape": [5, 2, 2, 4], "data_offsets": [0, 60]},
                  {"dtype": "F99", "shape": [5, 2, 2, 3], "data_offsets": [0, 60]},
                  {"dtype": "U8", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 60]},
                  {"dtype": "U8", "shape": [True, 60], "data_offsets": [0, 60]},
                  {"dtype": "U8", "shape": "x", "data_offsets": [0, 60]},
                  {"dtype": "U8", "shape": [60], "data_offsets": [0, 60]}, 7, {}):
        yield f"mass {entry}", raw({"__metadata__": good, "mass": entry}, bytes(60))


@pytest.mark.parametrize("what, data", list(hostile()), ids=lambda x: x if isinstance(x, str) else "")
def test_hostile_files_are_refused(tmp_path, what, data):
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    with pytest.raises(lehr.TraceError, match="t.safetensors"):
        lehr.Trace.open(path)


def test_compressed_files_are_bounded_and_whole(tmp_path):
    path = tmp_path / "t.safetensors.zst"
    full().save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with pytest.raises(lehr.TraceError, match="too early"):
        lehr.Trace.open(path)
    path.write_bytes(data[:20] + bytes(len(data) - 20))
    with pytest.raises(lehr.TraceError):
        lehr.Trace.open(path)
    import io

    write_safetensors(path, {}, [("zeros", "U8", (64 << 20,), 64 << 20, io.BytesIO(bytes(64 << 20)))])
    assert path.stat().st_size < 1 << 20
    with pytest.raises(lehr.TraceError, match="more than 1048576"):
        lehr.Trace.open(path, limit=1 << 20)


def test_other_folders_files_are_left_alone(tmp_path):
    with pytest.raises(lehr.LehrError, match="no folder"):
        lehr.TraceWriter(tmp_path / "none" / "t.safetensors", **SHAPE)


def test_traces_of_several_threads_do_not_meet(tmp_path):
    errors = []

    def one(i):
        try:
            record(pathlib.Path(tmp_path) / f"{i}.safetensors")
        except Exception as error:  # told below
            errors.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors and len(list(tmp_path.iterdir())) == 4
