# SPDX-License-Identifier: Apache-2.0
"""The step level of a runtime: sequences, steps, attention."""
from __future__ import annotations

import ctypes
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence as SequenceOf
from ctypes import byref, c_size_t, c_uint32, c_uint64
from typing import Any

import numpy as np

from . import _library as c
from ._errors import LehrError, invalid
from ._tensor import TensorView, view

NO_MASS = 255


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which pages a step reads: all, the best by count or share, or as many as promise a share of the mass."""

    by: int = 0
    amount: float = 0.0
    sinks: int = 1
    recent: int = 4

    @classmethod
    def parse(cls, text: str, sinks: int = 1, recent: int = 4) -> Selection:
        """`all | topk:RATIO | count:N | mass:SHARE`; RATIO and SHARE as 0.1 or 10%."""
        if text == "all":
            return cls()
        kind, colon, amount = text.partition(":")
        kinds = {"count": 1, "topk": 2, "mass": 3}
        if not colon or kind not in kinds or not re.fullmatch(r"\d+(\.\d*)?%?|\.\d+%?", amount):
            raise invalid(f"selection {text!r}: expected all, topk:RATIO, count:N or mass:SHARE", "out_of_range")
        value = float(amount.rstrip("%")) / (100 if amount.endswith("%") else 1)
        if (kind == "count" and (value < 1 or value != int(value))) or (kind != "count" and not 0 < value <= 1):
            raise invalid(f"selection {text!r}: {amount} is out of range", "out_of_range")
        return cls(kinds[kind], value, sinks, recent)


@dataclasses.dataclass(frozen=True)
class Moved:
    """What attention read where, and what crossed between tiers, since the runtime was opened."""

    read_in_hbm: int
    read_in_place: int
    read_below: int
    moved_pages: int
    moved_bytes: int


def toml(sections: Mapping[str, Any]) -> str:
    """Settings as a configuration text: {"machine": "host", "geometry": {"layers": 2}}."""
    def value(v: Any) -> str:
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, (int, float)):
            return repr(v)
        return json.dumps(str(v))

    top = [f"{key} = {value(v)}" for key, v in sections.items() if not isinstance(v, Mapping)]
    for name, keys in sections.items():
        if isinstance(keys, Mapping):
            top.append(f"[{name}]")
            top += [f"{key} = {value(v)}" for key, v in keys.items() if v is not None]
    return "\n".join(top) + "\n"


class Runtime:
    """A Lehr runtime. `config` is a TOML text or a mapping of its sections; keys: lehr.h and the README.

    Calls on one runtime take turns inside; each lets go of the interpreter lock. Closing is explicit
    (close(), or a `with` block) or happens when the object is collected.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._handle = c.Handle()
        self._open = False
        self._views: dict[str, tuple[Any, TensorView]] = {}
        text = (config if isinstance(config, str) else toml(config)).encode()
        options = c.OpenOptions(config=text, config_size=len(text))
        lib = c.library()
        major, minor, patch = c.VERSION
        c.check(lib.lehr_open(major * 1_000_000 + minor * 1000 + patch, byref(options), byref(self._handle)))
        self._open = True
        info = c.RuntimeInfo()
        c.check(lib.lehr_runtime_describe(self._handle, byref(info)))
        self.layers, self.kv_heads, self.q_heads = info.layers, info.kv_heads, info.q_heads
        self.head_dim, self.page_tokens, self.page_bytes = info.head_dim, info.page_tokens, info.page_bytes

    def close(self) -> None:
        if self._open:
            self._open = False
            c.library().lehr_close(self._handle)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is going down
            pass

    # ---- sequences

    def sequence(self) -> Sequence:
        """A new, empty sequence."""
        return self.sequences(1)[0]

    def sequences(self, count: int) -> list[Sequence]:
        if count == 0:
            return []
        descs = (c.SequenceDesc * count)()
        for desc in descs:
            desc.struct_size = ctypes.sizeof(c.SequenceDesc)
        out = (c.Handle * count)()
        c.check(c.library().lehr_sequence_create(self._handle, descs, count, out))
        return [Sequence(self, c.Handle(h.id)) for h in out]

    def reorder(self, sequences: SequenceOf[Sequence], parents: SequenceOf[int]) -> None:
        """Sequence i becomes what sequence parents[i] was; pages are shared."""
        if len(parents) != len(sequences):
            raise invalid(f"{len(parents)} parents for {len(sequences)} sequences")
        index = (c_uint32 * max(len(parents), 1))(*parents)
        c.check(c.library().lehr_sequence_reorder(self._handle, _handles(sequences), index, len(sequences)))

    def gather(self, layer: int, sequences: SequenceOf[Sequence], k: Any, v: Any) -> None:
        """Dense copies of a layer's K and V into k and v, [batch, kv_heads, tokens, head_dim]."""
        keys, values = view(k, "k"), view(v, "v")
        c.check(c.library().lehr_sequence_gather(self._handle, layer, _handles(sequences), len(sequences),
                                                 keys.pointer, values.pointer))

    # ---- steps

    def _view(self, name: str, array: Any) -> TensorView:
        """A view of a step's tensor; layers come with the same shapes, so that only the address changes."""
        data_ptr = getattr(array, "data_ptr", None)
        if data_ptr is None:
            return view(array, name)
        key = (array.shape, array.stride(), array.dtype, array.device)
        known = self._views.get(name)
        if known is None or known[0] != key:
            known = self._views[name] = (key, view(array, name))
        known[1].struct.data = data_ptr()
        return known[1]

    def begin(self, sequences: SequenceOf[Sequence], tokens: SequenceOf[int], stream: int | None = None) -> None:
        """A step in which sequence i gets tokens[i] tokens. On the cuda machine everything is enqueued on `stream`
        (torch.cuda.current_stream().cuda_stream; None: the default stream); elsewhere it is None."""
        if len(tokens) != len(sequences):
            raise invalid(f"{len(tokens)} token counts for {len(sequences)} sequences")
        counts = (c_uint32 * max(len(tokens), 1))(*tokens)
        c.check(c.library().lehr_step_begin_tokens(self._handle, _handles(sequences), counts, len(sequences), stream or None))

    def append(self, layer: int, k: Any, v: Any) -> None:
        """K and V of the step's tokens, [batch, kv_heads, tokens, head_dim]."""
        c.check(c.library().lehr_step_append(self._handle, layer, self._view("k", k).pointer,
                                             self._view("v", v).pointer))

    def attend(self, layer: int, q: Any, out: Any, *, scale: float = 0.0, soft_cap: float = 0.0, window: int = 0,
               selection: Selection = Selection(), mass: np.ndarray | None = None,
               peak: np.ndarray | None = None) -> None:
        """Causal attention of q, [batch, q_heads, tokens, head_dim], into out. mass and peak: uint8 arrays
        [batch, kv_heads, pages] that get the codes of each page's share for the last query, 255 for none."""
        queries, result = self._view("q", q), self._view("out", out)
        request = c.AttendRequest(layer=layer, q=ctypes.pointer(queries.struct), out=ctypes.pointer(result.struct),
                                  scale=scale, soft_cap=soft_cap, window=window, select_by=selection.by,
                                  select_amount=selection.amount, select_sinks=selection.sinks,
                                  select_recent=selection.recent)
        for name, codes in (("mass", mass), ("peak", peak)):
            if codes is None:
                continue
            batch = queries.struct.shape[0] if queries.struct.ndim > 0 else 0
            if codes.dtype != np.uint8 or not codes.flags.c_contiguous or codes.ndim != 3 or \
                    codes.shape[:2] != (batch, self.kv_heads):
                raise invalid(f"{name}: expected a dense uint8 array [{batch}, {self.kv_heads}, pages]",
                              "layout_mismatch")
            if request.code_pitch not in (0, codes.shape[2]):
                raise invalid("mass and peak have different numbers of pages", "layout_mismatch")
            request.code_pitch = codes.shape[2]
            setattr(request, name, codes.ctypes.data)
        c.check(c.library().lehr_step_attend(self._handle, byref(request)))

    def end(self) -> None:
        c.check(c.library().lehr_step_end(self._handle, None))

    def abandon(self) -> None:
        """Rolls the open step back."""
        c.check(c.library().lehr_step_abandon(self._handle))

    # ---- what was done

    def moved(self) -> Moved:
        report = c.ContentsReport()
        c.check(c.library().lehr_contents_read(self._handle, byref(report)))
        return Moved(report.read_in_hbm, report.read_in_place, report.read_below, report.moved_pages,
                     report.moved_bytes)

    def statistics(self) -> dict[str, int | float]:
        """Every statistic by name."""
        lib = c.library()
        count = c_size_t()
        c.check(lib.lehr_stats_read(self._handle, None, 0, byref(count)))
        values = (c.StatValue * count.value)()
        for value in values:
            value.struct_size = ctypes.sizeof(c.StatValue)
        c.check(lib.lehr_stats_read(self._handle, values, count.value, byref(count)))
        out: dict[str, int | float] = {}
        for i, value in enumerate(values):
            info = c.StatInfo()
            c.check(lib.lehr_stat_describe(i, byref(info)))
            out[info.name.decode()] = value.seconds if info.type == 3 else value.count
        return out

    def notes(self) -> list[str]:
        """Lines for people: what could not be had, what was verified, what the planner advises."""
        lib = c.library()
        return c.text_of(lambda *a: lib.lehr_notes(self._handle, *a)).splitlines()


class Sequence:
    """A sequence of a runtime. Released when closed or collected."""

    def __init__(self, runtime: Runtime, handle: c.Handle) -> None:
        self.runtime = runtime
        self._handle = handle

    def __len__(self) -> int:
        tokens = c_uint64()
        c.check(c.library().lehr_sequence_tokens(self.runtime._handle, self._handle, byref(tokens)))
        return tokens.value

    def fork(self) -> Sequence:
        """Another sequence with the same tokens; nothing is copied until one of the two writes."""
        out = (c.Handle * 1)()
        c.check(c.library().lehr_sequence_fork(self.runtime._handle, byref(self._handle), 1, out, None))
        return Sequence(self.runtime, c.Handle(out[0].id))

    def truncate(self, tokens: int) -> None:
        """Rolls back to the first `tokens` tokens."""
        if tokens < 0:
            raise invalid(f"tokens: {tokens}", "out_of_range")
        c.check(c.library().lehr_sequence_truncate(self.runtime._handle, byref(self._handle),
                                                   byref(c_uint64(tokens)), 1, None))

    def suspend(self) -> None:
        """Leaves HBM; takes no steps until resumed."""
        c.check(c.library().lehr_sequence_suspend(self.runtime._handle, byref(self._handle), 1, None))

    def resume(self) -> None:
        c.check(c.library().lehr_sequence_resume(self.runtime._handle, byref(self._handle), 1, None))

    def close(self) -> None:
        if self._handle.id == 0 or not self.runtime._open:
            return
        handle, self._handle = self._handle, c.Handle()
        c.check(c.library().lehr_sequence_release(self.runtime._handle, byref(handle), 1, None))

    def __del__(self) -> None:
        try:
            self.close()
        except (LehrError, TypeError, AttributeError):  # a step is open, or the interpreter is going down
            pass


def _handles(sequences: SequenceOf[Sequence]) -> Any:
    return (c.Handle * max(len(sequences), 1))(*(s._handle for s in sequences))


def build_info() -> dict[str, Any]:
    """How liblehr.so was built."""
    return json.loads(c.text_of(c.library().lehr_build_info))
