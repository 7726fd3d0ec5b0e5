# SPDX-License-Identifier: Apache-2.0
"""Attention traces: which page got how much of the softmax mass, step by step.

The format is safetensors with metadata format="lehr.attention-trace", optionally compressed (.zst). Every
file is treated as hostile: sizes are checked before memory is taken.
"""
from __future__ import annotations

import dataclasses
import io
import json
import os
import pathlib
import struct
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from . import _zstd
from ._errors import TraceError, invalid

FORMAT = "lehr.attention-trace"
MOST_BYTES = 4 << 30  # decompressed, unless the caller says otherwise
_MOST_HEADER = 100 << 20
_DTYPES = {"U8": np.dtype("u1"), "I32": np.dtype("<i4"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4"),
           "I64": np.dtype("<i8"), "BF16": np.dtype("<u2"), "I8": np.dtype("i1"), "U16": np.dtype("<u2"),
           "I16": np.dtype("<i2"), "U32": np.dtype("<u4"), "F64": np.dtype("<f8"), "U64": np.dtype("<u8"),
           "BOOL": np.dtype("?")}
_NUMBERS = ("page_tokens", "q_heads", "kv_heads", "head_dim", "kv_bytes_per_element", "layers", "prompt_tokens",
            "steps")
_KNOWN = {"format", "version", "model", "workload", "layer_ids", "mass_encoding", *_NUMBERS}
_SHARES = np.append(np.exp2(-np.arange(255) / 8.0), 0.0).astype(np.float32)


def shares_of(codes: np.ndarray) -> np.ndarray:
    """Shares of mass for codes: 2^(-c/8), 0 for 255."""
    return _SHARES[codes]


def codes_of(shares: np.ndarray) -> np.ndarray:
    """The nearest code of each share; 255 where nothing, or less than the last code, is left."""
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.round(-8.0 * np.log2(np.asarray(shares, dtype=np.float64)))
    codes = np.where(np.isfinite(codes), codes, 255.0)
    return np.clip(codes, 0, 255).astype(np.uint8)


@dataclasses.dataclass
class Trace:
    """A recorded decode. T steps, L recorded layers, H KV heads, P pages.

    mass    uint8 [T, L, H, P]: share of softmax mass on the page, mean over the group's query heads, as codes
            (shares_of); 255 for none and past the context of the step
    peak    the same, the maximum over the query heads, or None
    tokens  int32 [prompt + T], or None
    q       float16 [T, L, q_heads, head_dim]; k, v float16 [L, H, prompt + T, head_dim]; or None
    extra   further metadata, kept as it is; other: further tensors, likewise, with their safetensors types
    """

    model: str
    workload: str
    page_tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int
    kv_bytes_per_element: int
    model_layers: int
    layer_ids: list[int]
    prompt_tokens: int
    mass: np.ndarray
    peak: np.ndarray | None = None
    tokens: np.ndarray | None = None
    q: np.ndarray | None = None
    k: np.ndarray | None = None
    v: np.ndarray | None = None
    extra: dict[str, str] = dataclasses.field(default_factory=dict)
    other: dict[str, tuple[str, np.ndarray]] = dataclasses.field(default_factory=dict)

    @property
    def steps(self) -> int:
        return self.mass.shape[0]

    @property
    def pages(self) -> int:
        return -(-(self.prompt_tokens + self.steps) // self.page_tokens)

    def pages_at(self, step: int) -> int:
        """Pages of the context at a step, which is prompt + step + 1 tokens."""
        return -(-(self.prompt_tokens + step + 1) // self.page_tokens)

    def shares(self) -> np.ndarray:
        """mass as float32 shares."""
        return shares_of(self.mass)

    def validate(self) -> None:
        """Raises TraceError for shapes that do not go together."""
        for name in ("page_tokens", "q_heads", "kv_heads", "head_dim", "kv_bytes_per_element", "model_layers",
                     "prompt_tokens"):
            if not 1 <= getattr(self, name) <= 1 << 24:
                raise TraceError(f"{name} is {getattr(self, name)}")
        ids = self.layer_ids
        if not ids or any(b <= a for a, b in zip(ids, ids[1:])) or ids[0] < 0 or ids[-1] >= self.model_layers:
            raise TraceError(f"layer_ids {ids} are not ascending layers of {self.model_layers}")
        if self.q_heads % self.kv_heads:
            raise TraceError(f"{self.q_heads} query heads over {self.kv_heads} KV heads")
        if self.steps < 1:
            raise TraceError("a trace has at least one step")
        for name, (_, shape, dtype) in self._tensors().items():
            value = getattr(self, name)
            if value is not None and (value.shape != shape or value.dtype != dtype):
                raise TraceError(f"{name} is {value.dtype} {list(value.shape)}, expected {dtype} {list(shape)}")
        if self.mass is None:
            raise TraceError("mass is missing")

    def _tensors(self) -> dict[str, tuple[str, tuple[int, ...], np.dtype]]:
        t, layers, heads, dim = self.steps, len(self.layer_ids), self.kv_heads, self.head_dim
        tokens = self.prompt_tokens + t
        codes = (t, layers, heads, self.pages)
        return {"mass": ("U8", codes, _DTYPES["U8"]), "peak": ("U8", codes, _DTYPES["U8"]),
                "tokens": ("I32", (tokens,), _DTYPES["I32"]),
                "q": ("F16", (t, layers, self.q_heads, dim), _DTYPES["F16"]),
                "k": ("F16", (layers, heads, tokens, dim), _DTYPES["F16"]),
                "v": ("F16", (layers, heads, tokens, dim), _DTYPES["F16"])}

    def _metadata(self) -> dict[str, str]:
        return {"format": FORMAT, "version": "1", "model": self.model, "workload": self.workload,
                "page_tokens": str(self.page_tokens), "q_heads": str(self.q_heads), "kv_heads": str(self.kv_heads),
                "head_dim": str(self.head_dim), "kv_bytes_per_element": str(self.kv_bytes_per_element),
                "layers": str(self.model_layers), "layer_ids": ",".join(map(str, self.layer_ids)),
                "prompt_tokens": str(self.prompt_tokens), "steps": str(self.steps), "mass_encoding": "log2_u8_8",
                **self.extra}

    @classmethod
    def open(cls, path: str | os.PathLike[str], limit: int = MOST_BYTES) -> Trace:
        """Reads a trace, plain or compressed (told by content)."""
        path = pathlib.Path(path)
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start == _zstd.MAGIC:
                data = memoryview(_zstd.decompress(file, limit))
            elif os.fstat(file.fileno()).st_size > limit:
                raise TraceError(f"{path}: more than {limit} bytes")
            else:
                data = memoryview(file.read())
        try:
            return cls._parse(data)
        except TraceError as error:
            raise TraceError(f"{path}: {error.text}") from None

    @classmethod
    def _parse(cls, data: memoryview) -> Trace:
        metadata, tensors = _read_safetensors(data)
        if metadata.get("format") != FORMAT:
            raise TraceError(f"metadata 'format' is {metadata.get('format')!r}, expected {FORMAT!r}")
        if metadata.get("version") != "1":
            raise TraceError(f"metadata 'version' is {metadata.get('version')!r}, expected '1'")
        if metadata.get("mass_encoding") != "log2_u8_8":
            raise TraceError(f"metadata 'mass_encoding' is {metadata.get('mass_encoding')!r}")
        numbers = {name: _number(metadata, name) for name in _NUMBERS}
        ids = metadata.get("layer_ids", "")
        try:
            layer_ids = [int(i) for i in ids.strip("[] ").split(",")]
        except ValueError:
            raise TraceError(f"metadata 'layer_ids' is {ids!r}, expected numbers") from None
        if "mass" not in tensors:
            raise TraceError("tensor 'mass' is missing")
        named = {name: tensors.pop(name)[1] for name in ("mass", "peak", "tokens", "q", "k", "v") if name in tensors}
        if named["mass"].ndim != 4 or named["mass"].shape[0] != numbers["steps"]:
            raise TraceError(f"mass has shape {list(named['mass'].shape)}, steps is {numbers['steps']}")
        trace = cls(model=metadata.get("model", ""), workload=metadata.get("workload", ""),
                    page_tokens=numbers["page_tokens"], q_heads=numbers["q_heads"], kv_heads=numbers["kv_heads"],
                    head_dim=numbers["head_dim"], kv_bytes_per_element=numbers["kv_bytes_per_element"],
                    model_layers=numbers["layers"], layer_ids=layer_ids, prompt_tokens=numbers["prompt_tokens"],
                    extra={k: v for k, v in metadata.items() if k not in _KNOWN}, other=tensors, **named)
        trace.validate()
        return trace

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace, compressed if the name ends in .zst; the file appears whole or not at all."""
        self.validate()
        parts = [(name, kind, shape, np.ascontiguousarray(getattr(self, name)).tobytes())
                 for name, (kind, shape, _) in self._tensors().items() if getattr(self, name) is not None]
        parts += [(name, kind, value.shape, np.ascontiguousarray(value).tobytes())
                  for name, (kind, value) in self.other.items()]
        write_safetensors(path, self._metadata(),
                          [(name, kind, shape, len(body), io.BytesIO(body)) for name, kind, shape, body in parts])


def _number(metadata: dict[str, str], name: str) -> int:
    text = metadata.get(name)
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise TraceError(f"metadata {name!r} is {text!r}, expected a number")
    return int(text)


def _read_safetensors(data: memoryview) -> tuple[dict[str, str], dict[str, tuple[str, np.ndarray]]]:
    if len(data) < 8:
        raise TraceError("shorter than the 8 bytes of a safetensors file's first number")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(len(data) - 8, _MOST_HEADER):
        raise TraceError(f"a header of {size} bytes in a file of {len(data)}")
    try:
        header = json.loads(bytes(data[8:8 + size]))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise TraceError("the header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise TraceError("__metadata__ is no object of strings")
    body = data[8 + size:]
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for name, entry in header.items():
        try:
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            whole = all(type(x) is int and x >= 0 for x in (*shape, begin, end))
        except (TypeError, KeyError, ValueError):
            raise TraceError(f"tensor {name!r}: dtype, shape or data_offsets are missing") from None
        if kind not in _DTYPES:
            raise TraceError(f"tensor {name!r}: dtype {kind!r}")
        count = 1
        for axis in shape if whole else ():
            count = min(count * axis, 1 << 62)
        if not whole or begin > end or end > len(body) or count * _DTYPES[kind].itemsize != end - begin:
            raise TraceError(f"tensor {name!r}: shape {shape} and offsets {[begin, end]} do not go together")
        tensors[name] = (kind, np.frombuffer(body[begin:end], dtype=_DTYPES[kind]).reshape(shape))
    return metadata, tensors


def write_safetensors(path: str | os.PathLike[str], metadata: dict[str, str],
                      parts: list[tuple[str, str, tuple[int, ...], int, BinaryIO]]) -> None:
    """(name, type, shape, bytes, source) of each tensor to a file that appears whole or not at all."""
    path = pathlib.Path(path)
    header: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, kind, shape, size, _ in parts:
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def blocks() -> Iterator[bytes]:
        yield struct.pack("<Q", len(text)) + text
        for name, _, _, size, source in parts:
            source.seek(0)
            left = size
            while left > 0:
                block = source.read(min(left, 1 << 20))
                if not block:
                    raise TraceError(f"tensor {name!r}: its bytes ended {left} too early")
                left -= len(block)
                yield block

    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            if path.suffix == ".zst":
                _zstd.compress(blocks(), file)
            else:
                for block in blocks():
                    file.write(block)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class TraceWriter:
    """Records a trace step by step in bounded memory (steps go to an unnamed file beside the target).

    Nothing is visible under `path` before close(); leaving a `with` block by an exception discards.
    Shape arguments are those of Trace. q, with_kv: the trace records q of each step, and k and v at close().
    """

    def __init__(self, path: str | os.PathLike[str], *, model: str, workload: str, page_tokens: int, q_heads: int,
                 kv_heads: int, head_dim: int, kv_bytes_per_element: int, model_layers: int, layer_ids: list[int],
                 prompt_tokens: int, with_peak: bool = True, with_qkv: bool = False,
                 extra: dict[str, str] | None = None) -> None:
        self.path = pathlib.Path(path)
        self._shape = Trace(model, workload, page_tokens, q_heads, kv_heads, head_dim, kv_bytes_per_element,
                            model_layers, list(layer_ids), prompt_tokens, np.zeros((1, 1, 1, 1), np.uint8),
                            extra=dict(extra or {}))
        self._with_peak, self._with_qkv = with_peak, with_qkv
        self.steps = 0
        probe = dataclasses.replace(self._shape)
        try:
            if not 1 <= page_tokens <= 1 << 24 or not 0 <= kv_heads <= 1 << 24 or not 0 <= prompt_tokens <= 1 << 31:
                raise TraceError(f"page_tokens {page_tokens}, kv_heads {kv_heads}, prompt_tokens {prompt_tokens}")
            probe.mass = np.broadcast_to(np.uint8(0), (1, len(layer_ids), kv_heads, probe.pages_at(0)))
            probe.validate()
        except TraceError as error:
            raise invalid(error.text, "out_of_range") from None
        if not self.path.parent.is_dir():
            raise invalid(f"{self.path.parent} is no folder")
        spool = ["mass"] + (["peak"] if with_peak else []) + (["q"] if with_qkv else [])
        self._spools = {name: tempfile.TemporaryFile(dir=self.path.parent) for name in spool}

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()
        elif self._spools:
            self.close()

    def step(self, mass: np.ndarray, peak: np.ndarray | None = None, q: np.ndarray | None = None) -> None:
        """Codes [L, H, at least the pages of the step's context] of the next step."""
        if not self._spools:
            raise invalid("the trace was closed")
        pages = self._shape.pages_at(self.steps)
        rows = (len(self._shape.layer_ids), self._shape.kv_heads)
        given = {"mass": mass, "peak": peak}
        for name in ("mass", "peak"):
            if name not in self._spools:
                if given[name] is not None:
                    raise invalid(f"{name} is not recorded")
                continue
            codes = given[name]
            if codes is None or codes.dtype != np.uint8 or codes.shape[:2] != rows or codes.ndim != 3 or \
                    codes.shape[2] < pages:
                raise invalid(f"{name}: expected uint8 codes [{rows[0]}, {rows[1]}, at least {pages}]",
                              "layout_mismatch")
        wanted = (rows[0], self._shape.q_heads, self._shape.head_dim)
        if self._with_qkv and (q is None or q.shape != wanted):
            raise invalid(f"q: expected [{', '.join(map(str, wanted))}]", "layout_mismatch")
        for name in ("mass", "peak"):
            if name in self._spools:
                self._spools[name].write(np.ascontiguousarray(given[name][:, :, :pages]).tobytes())
        if self._with_qkv:
            self._spools["q"].write(np.ascontiguousarray(q, dtype=np.float16).tobytes())
        self.steps += 1

    def _padded(self, name: str) -> BinaryIO:
        """Rows of all steps with the last step's number of pages."""
        shape = self._shape
        rows = len(shape.layer_ids) * shape.kv_heads
        most = shape.pages_at(self.steps - 1)
        out = tempfile.TemporaryFile(dir=self.path.parent)
        spool = self._spools[name]
        spool.seek(0)
        for step in range(self.steps):
            pages = shape.pages_at(step)
            codes = np.full((rows, most), 255, np.uint8)
            codes[:, :pages] = np.frombuffer(spool.read(rows * pages), np.uint8).reshape(rows, pages)
            out.write(codes.tobytes())
        return out

    def close(self, tokens: np.ndarray | None = None, k: np.ndarray | None = None,
              v: np.ndarray | None = None) -> pathlib.Path:
        """Completes the trace and makes it visible."""
        if not self._spools:
            raise invalid("the trace was closed")
        try:
            return self._close(tokens, k, v)
        finally:
            self.discard()

    def _close(self, tokens: np.ndarray | None, k: np.ndarray | None, v: np.ndarray | None) -> pathlib.Path:
        if self.steps == 0:
            raise invalid("a trace has at least one step")
        shape = dataclasses.replace(self._shape)
        layers, heads, dim = len(shape.layer_ids), shape.kv_heads, shape.head_dim
        total = shape.prompt_tokens + self.steps
        # Trace takes its number of steps from mass: a view of one byte stands for it.
        codes = (self.steps, layers, heads, shape.pages_at(self.steps - 1))
        shape.mass = np.broadcast_to(np.uint8(0), codes)
        parts: list[tuple[str, str, tuple[int, ...], int, BinaryIO]] = []
        size = codes[0] * codes[1] * codes[2] * codes[3]
        for name in ("mass", "peak"):
            if name in self._spools:
                parts.append((name, "U8", codes, size, self._padded(name)))
        if tokens is not None:
            tokens = np.ascontiguousarray(tokens, dtype="<i4")
            if tokens.shape != (total,):
                raise invalid(f"{tokens.shape} tokens, expected {total}", "layout_mismatch")
            parts.append(("tokens", "I32", (total,), tokens.nbytes, io.BytesIO(tokens.tobytes())))
        if self._with_qkv:
            parts.append(("q", "F16", (self.steps, layers, shape.q_heads, dim),
                          2 * self.steps * layers * shape.q_heads * dim, self._spools["q"]))
            for name, value in (("k", k), ("v", v)):
                if value is None or value.shape != (layers, heads, total, dim):
                    raise invalid(f"{name}: expected [{layers}, {heads}, {total}, {dim}]", "layout_mismatch")
                body = np.ascontiguousarray(value, dtype="<f2").tobytes()
                parts.append((name, "F16", value.shape, len(body), io.BytesIO(body)))
        write_safetensors(self.path, shape._metadata(), parts)
        return self.path

    def discard(self) -> None:
        """Gives the recording up; nothing remains of it."""
        for spool in self._spools.values():
            spool.close()
        self._spools = {}
