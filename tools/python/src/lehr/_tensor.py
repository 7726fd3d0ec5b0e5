# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries as lehr_tensor, without a copy and without their headers."""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _library as c
from ._errors import invalid, unsupported

_CPU, _CUDA = 1, 2
_TORCH = {"torch.float32": (2, 32), "torch.float16": (2, 16), "torch.bfloat16": (4, 16)}


class TensorView:
    """A lehr_tensor and what it points at; keep it as long as the call that uses it."""

    def __init__(self, owner: Any, data: int, shape: tuple[int, ...], strides: tuple[int, ...],
                 dtype: tuple[int, int], device: tuple[int, int]) -> None:
        self._owner = owner
        self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self._strides = (ctypes.c_int64 * max(len(strides), 1))(*strides)
        self.struct = c.Tensor(device_type=device[0], device_id=device[1], data=data, ndim=len(shape),
                               dtype_code=dtype[0], dtype_bits=dtype[1], dtype_lanes=1, shape=self._shape,
                               strides=self._strides)

    @property
    def pointer(self) -> Any:
        return ctypes.byref(self.struct)


def view(array: Any, what: str = "array") -> TensorView:
    """A view of a NumPy array, a torch tensor, or anything with DLPack (on the CPU)."""
    if isinstance(array, np.ndarray):
        return _of_numpy(array, what)
    if type(array).__module__.split(".")[0] == "torch":
        dtype = _TORCH.get(str(array.dtype))
        if dtype is None:
            raise unsupported(f"{what}: dtype {array.dtype}; offered are float32, float16 and bfloat16",
                              "layout_mismatch")
        if array.device.type not in ("cpu", "cuda"):
            raise unsupported(f"{what}: device {array.device}; offered are cpu and cuda")
        device = (_CPU, 0) if array.device.type == "cpu" else (_CUDA, array.device.index or 0)
        return TensorView(array, array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype, device)
    if hasattr(array, "__dlpack__"):
        try:
            return _of_numpy(np.from_dlpack(array), what)
        except (BufferError, RuntimeError, TypeError) as error:
            raise unsupported(f"{what}: {error}") from error
    raise invalid(f"{what}: {type(array).__name__} is neither a NumPy array nor a torch tensor, and has no __dlpack__")


def _of_numpy(array: np.ndarray, what: str) -> TensorView:
    if array.dtype not in (np.float32, np.float16) or not array.dtype.isnative:
        raise unsupported(f"{what}: dtype {array.dtype}; offered are float32 and float16", "layout_mismatch")
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise unsupported(f"{what}: strides that are no multiple of its elements")
    return TensorView(array, array.ctypes.data, array.shape, tuple(s // size for s in array.strides), (2, size * 8),
                      (_CPU, 0))
