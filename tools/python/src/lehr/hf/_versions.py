# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from importlib import metadata

from .._errors import LibraryError

LEAST = (5, 17)


def versions() -> dict[str, str]:
    """Versions of what a run rests on."""
    out = {}
    for name in ("lehr", "torch", "transformers", "numpy", "gguf"):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out


def check_versions() -> None:
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise LibraryError(f"lehr.hf needs torch and transformers >= {LEAST[0]}.{LEAST[1]} "
                           f"(pip install 'lehr[hf]'): {error}") from error
    found = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if found < LEAST:
        raise LibraryError(f"transformers {transformers.__version__} is installed, lehr.hf needs "
                           f"{LEAST[0]}.{LEAST[1]} or newer")
