# SPDX-License-Identifier: Apache-2.0
"""liblehr.so through ctypes: where it is, what it offers, and how a failure becomes an exception.

ctypes lets go of the interpreter lock for the length of every call.
"""
from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import shutil
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, \
    c_uint64, c_void_p

from ._errors import LehrError, LibraryError

VERSION = (0, 1, 0)  # of lehr.h that this package was written for


class Struct(ctypes.Structure):
    """A struct of lehr.h: struct_size is set, all else is 0."""

    def __init__(self, **fields: object) -> None:
        super().__init__(**fields)
        if "struct_size" not in fields:
            self.struct_size = ctypes.sizeof(self)


class Handle(ctypes.Structure):
    _fields_ = [("id", c_uint64)]


class Bytes(ctypes.Structure):
    _fields_ = [("data", c_char_p), ("size", c_size_t)]


class OpenOptions(Struct):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("config", c_char_p), ("config_size", c_size_t),
                ("config_path", c_char_p)]


class RuntimeInfo(Struct):
    _fields_ = [(name, c_uint32) for name in (
        "struct_size", "machine", "has_step_level", "has_placement_level", "layers", "kv_heads", "q_heads",
        "head_dim", "page_tokens", "tiers", "links", "reserved")] + [("page_bytes", c_uint64), ("block_bytes", c_uint64)]


class SequenceDesc(Struct):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("prompt_tokens", c_uint64),
                ("first_use", POINTER(c_uint32)), ("first_use_count", c_uint64)]


class Tensor(Struct):
    _fields_ = [("struct_size", c_uint32), ("device_type", c_int32), ("data", c_void_p), ("device_id", c_int32),
                ("ndim", c_int32), ("dtype_code", c_uint8), ("dtype_bits", c_uint8), ("dtype_lanes", c_uint16),
                ("reserved", c_uint32), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class AttendRequest(Struct):
    _fields_ = [("struct_size", c_uint32), ("layer", c_uint32), ("q", POINTER(Tensor)), ("out", POINTER(Tensor)),
                ("scale", c_float), ("soft_cap", c_float), ("window", c_uint32), ("select_by", c_int32),
                ("select_amount", c_float), ("select_sinks", c_uint32), ("select_recent", c_uint32),
                ("code_pitch", c_uint32), ("mass", c_void_p), ("peak", c_void_p), ("causal", c_uint32),
                ("reserved", c_uint32)]


class ContentsReport(Struct):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("read_in_hbm", c_uint64),
                ("read_in_place", c_uint64), ("read_below", c_uint64), ("moved_pages", c_uint64),
                ("moved_bytes", c_uint64)]


class StatInfo(Struct):
    _fields_ = [("struct_size", c_uint32), ("type", c_int32), ("name", c_char_p), ("unit", c_char_p),
                ("help", c_char_p)]


class StatValue(Struct):
    _fields_ = [("struct_size", c_uint32), ("type", c_int32), ("count", c_uint64), ("seconds", ctypes.c_double)]


_SEQUENCES = POINTER(Handle)
_STATUSES = POINTER(c_int32)
_FUNCTIONS = {
    "lehr_open": [c_uint32, POINTER(OpenOptions), POINTER(Handle)],
    "lehr_close": [Handle],
    "lehr_runtime_describe": [Handle, POINTER(RuntimeInfo)],
    "lehr_notes": [Handle, c_char_p, c_size_t, POINTER(c_size_t)],
    "lehr_build_info": [c_char_p, c_size_t, POINTER(c_size_t)],
    "lehr_stat_describe": [c_uint32, POINTER(StatInfo)],
    "lehr_stats_read": [Handle, POINTER(StatValue), c_size_t, POINTER(c_size_t)],
    "lehr_sequence_create": [Handle, POINTER(SequenceDesc), c_size_t, _SEQUENCES],
    "lehr_sequence_fork": [Handle, _SEQUENCES, c_size_t, _SEQUENCES, _STATUSES],
    "lehr_sequence_suspend": [Handle, _SEQUENCES, c_size_t, _STATUSES],
    "lehr_sequence_resume": [Handle, _SEQUENCES, c_size_t, _STATUSES],
    "lehr_sequence_release": [Handle, _SEQUENCES, c_size_t, _STATUSES],
    "lehr_sequence_reset": [Handle, _SEQUENCES, c_size_t, _STATUSES],
    "lehr_sequence_truncate": [Handle, _SEQUENCES, POINTER(c_uint64), c_size_t, _STATUSES],
    "lehr_sequence_reorder": [Handle, _SEQUENCES, POINTER(c_uint32), c_size_t],
    "lehr_sequence_tokens": [Handle, Handle, POINTER(c_uint64)],
    "lehr_sequence_gather": [Handle, c_uint32, _SEQUENCES, c_size_t, POINTER(Tensor), POINTER(Tensor)],
    "lehr_step_begin_tokens": [Handle, _SEQUENCES, POINTER(c_uint32), c_size_t, c_void_p],
    "lehr_step_append": [Handle, c_uint32, POINTER(Tensor), POINTER(Tensor)],
    "lehr_step_attend": [Handle, POINTER(AttendRequest)],
    "lehr_step_end": [Handle, c_void_p],
    "lehr_step_abandon": [Handle],
    "lehr_contents_read": [Handle, POINTER(ContentsReport)],
}


def _candidates() -> list[str]:
    given = os.environ.get("LEHR_LIBRARY")
    if given:
        return [given]
    here = pathlib.Path(__file__).resolve().parent
    found = [str(path) for path in sorted(here.glob("liblehr.so*"))]
    for folder in here.parents:  # a checkout: the newest build
        if (folder / "runtime" / "include" / "lehr.h").exists():
            built = sorted(folder.glob("build/*/runtime/capi/liblehr.so"), key=lambda p: p.stat().st_mtime)
            found += [str(path) for path in reversed(built)]
            break
    tool = shutil.which("lehr")
    if tool:
        prefix = pathlib.Path(tool).resolve().parent.parent
        found += [str(path) for path in sorted(prefix.glob("lib*/**/liblehr.so*"))]
    return found + ["liblehr.so.0", "liblehr.so"]


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded at the first call that needs it. LEHR_LIBRARY names another one."""
    problems = []
    for path in _candidates():
        try:
            lib = ctypes.CDLL(path)
        except OSError as error:
            problems.append(f"{path}: {error}")
            continue
        _declare(lib, path)
        return lib
    tried = "\n  ".join(problems)
    raise LibraryError("liblehr.so was not found. Build it (cmake --preset release, cmake --build build/release), "
                       f"install it, or name it in LEHR_LIBRARY. Tried:\n  {tried}")


def _declare(lib: ctypes.CDLL, path: str) -> None:
    try:
        lib.lehr_version.restype = c_uint32
        found = lib.lehr_version()
    except AttributeError:
        raise LibraryError(f"{path} is no liblehr.so: it has no lehr_version") from None
    version = (found // 1_000_000, found // 1000 % 1000, found % 1000)
    if version[0] != VERSION[0] or version < VERSION:
        raise LibraryError(f"{path} is version {'.'.join(map(str, version))}, this package needs "
                           f"{'.'.join(map(str, VERSION))} or a later one of the same major version")
    missing = [name for name in _FUNCTIONS if not hasattr(lib, name)]
    if missing:
        raise LibraryError(f"{path} lacks {', '.join(missing)}: it was built from other sources than this package")
    for name, arguments in _FUNCTIONS.items():
        getattr(lib, name).argtypes = arguments
        getattr(lib, name).restype = c_int32
    for name in ("lehr_status_name", "lehr_reason_name"):
        getattr(lib, name).argtypes = [c_int32]
        getattr(lib, name).restype = c_char_p
    lib.lehr_last_error.argtypes = [c_char_p, c_size_t]
    lib.lehr_last_error.restype = c_size_t


def check(status: int) -> int:
    """Raises for a failure; returns what is none."""
    if status >= 0:
        return status
    lib = library()
    buffer = ctypes.create_string_buffer(lib.lehr_last_error(None, 0))
    lib.lehr_last_error(buffer, len(buffer))
    raise LehrError(lib.lehr_status_name(status).decode(), lib.lehr_reason_name(status).decode(),
                    buffer.value.decode(errors="replace"), status)


def text_of(function: object, *arguments: object) -> str:
    needed = c_size_t()
    check(function(*arguments, None, 0, byref(needed)))
    buffer = ctypes.create_string_buffer(needed.value)
    check(function(*arguments, buffer, len(buffer), byref(needed)))
    return buffer.value.decode(errors="replace")
