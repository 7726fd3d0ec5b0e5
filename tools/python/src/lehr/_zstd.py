# SPDX-License-Identifier: Apache-2.0
"""Zstandard frames with bounded memory, through the libzstd.so.1 that liblehr.so needs itself."""
from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from typing import BinaryIO

from ._errors import LibraryError, TraceError

MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK = 1 << 18


class _Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t), ("pos", c_size_t)]


@functools.cache
def _library() -> ctypes.CDLL:
    for name in ("libzstd.so.1", ctypes.util.find_library("zstd")):
        try:
            lib = ctypes.CDLL(name) if name else None
        except OSError:
            lib = None
        if lib is not None:
            break
    else:
        raise LibraryError("libzstd.so.1 was not found: compressed traces need it (package libzstd1)")
    for function, arguments, result in (
            ("ZSTD_createDStream", [], c_void_p), ("ZSTD_freeDStream", [c_void_p], c_size_t),
            ("ZSTD_decompressStream", [c_void_p, POINTER(_Buffer), POINTER(_Buffer)], c_size_t),
            ("ZSTD_createCStream", [], c_void_p), ("ZSTD_freeCStream", [c_void_p], c_size_t),
            ("ZSTD_initCStream", [c_void_p, c_int], c_size_t),
            ("ZSTD_compressStream2", [c_void_p, POINTER(_Buffer), POINTER(_Buffer), c_int], c_size_t),
            ("ZSTD_isError", [c_size_t], c_int), ("ZSTD_getErrorName", [c_size_t], c_char_p)):
        getattr(lib, function).argtypes = arguments
        getattr(lib, function).restype = result
    return lib


def _checked(code: int) -> int:
    if _library().ZSTD_isError(code):
        raise TraceError(f"zstd: {_library().ZSTD_getErrorName(code).decode()}")
    return code


def decompress(source: BinaryIO, limit: int) -> bytes:
    """All frames of `source`; refuses more than `limit` bytes before it holds them."""
    lib = _library()
    stream = lib.ZSTD_createDStream()
    out = bytearray()
    block = ctypes.create_string_buffer(_BLOCK)
    rest = 1  # of the frame; 0 at its end
    try:
        while chunk := source.read(_BLOCK):
            given = _Buffer(ctypes.cast(c_char_p(chunk), c_void_p), len(chunk), 0)
            while True:
                taken = _Buffer(ctypes.cast(block, c_void_p), _BLOCK, 0)
                rest = _checked(lib.ZSTD_decompressStream(stream, byref(taken), byref(given)))
                if len(out) + taken.pos > limit:
                    raise TraceError(f"more than {limit} bytes when decompressed")
                out += block.raw[:taken.pos]
                if given.pos == given.size and taken.pos < taken.size:
                    break
        if rest != 0:
            raise TraceError("the compressed file ends too early")
    finally:
        lib.ZSTD_freeDStream(stream)
    return bytes(out)


def compress(blocks: Iterator[bytes], target: BinaryIO, level: int = 9) -> None:
    """One frame of all `blocks`."""
    lib = _library()
    stream = lib.ZSTD_createCStream()
    out = ctypes.create_string_buffer(_BLOCK)

    def put(chunk: bytes, end: bool) -> None:
        given = _Buffer(ctypes.cast(c_char_p(chunk), c_void_p), len(chunk), 0)
        while True:
            taken = _Buffer(ctypes.cast(out, c_void_p), _BLOCK, 0)
            rest = _checked(lib.ZSTD_compressStream2(stream, byref(taken), byref(given), 2 if end else 0))
            target.write(out.raw[:taken.pos])
            if (end and rest == 0) or (not end and given.pos == given.size):
                return

    try:
        _checked(lib.ZSTD_initCStream(stream, level))
        for chunk in blocks:
            put(chunk, False)
        put(b"", True)
    finally:
        lib.ZSTD_freeCStream(stream)
