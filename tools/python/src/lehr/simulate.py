# SPDX-License-Identifier: Apache-2.0
"""The main job from Python: a trace under one policy, or under all, with the `lehr` tool."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from ._errors import LehrError, LibraryError
from .trace import Trace

TraceLike = str | os.PathLike[str] | Trace


def tool() -> str:
    """The `lehr` program: LEHR_TOOL, else the newest of this checkout, else on the PATH."""
    given = os.environ.get("LEHR_TOOL")
    if given:
        return given
    for folder in pathlib.Path(__file__).resolve().parents:
        if (folder / "runtime" / "include" / "lehr.h").exists():
            built = sorted(folder.glob("build/*/tools/lehr"), key=lambda path: path.stat().st_mtime)
            if built:
                return str(built[-1])
    found = shutil.which("lehr")
    if found is None:
        raise LibraryError("the lehr program was not found: build or install it, or name it in LEHR_TOOL")
    return found


def _run(command: str, traces: TraceLike | Sequence[TraceLike], options: dict[str, Any]) -> dict[str, Any]:
    given = [traces] if isinstance(traces, (str, os.PathLike, Trace)) else list(traces)
    with tempfile.TemporaryDirectory(prefix="lehr-") as folder:
        paths = []
        for i, trace in enumerate(given):
            if isinstance(trace, Trace):
                path = os.path.join(folder, f"{i}.safetensors")
                trace.save(path)
                paths.append(path)
            else:
                paths.append(os.fspath(trace))
        line = [tool(), command, *paths]
        for key, value in options.items():
            name = "--" + key.replace("_", "-")
            if value is True:
                line.append(name)
            elif value is not None and value is not False:
                values = value if isinstance(value, (list, tuple)) else [value]
                line += [name, *map(str, values)]
        out = os.path.join(folder, "report.json")
        try:
            done = subprocess.run([*line, "--json", out], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  check=False)
        except OSError as error:
            raise LibraryError(f"{line[0]}: {error}") from error
        if done.returncode != 0:
            raise LehrError("invalid" if done.returncode == 2 else "refused", "none",
                            (done.stderr or done.stdout).strip(), done.returncode)
        with open(out, encoding="utf-8") as file:
            return json.load(file)


def replay(traces: TraceLike | Sequence[TraceLike], *, policy: str = "lru", hbm: str | Sequence[str] = "25%",
           profile: str = "h200-pcie5", select: str = "mass:0.95", machine: str = "sim",
           **options: Any) -> dict[str, Any]:
    """The report of `lehr replay`; further options are those of the command, with _ for -."""
    return _run("replay", traces, {"policy": policy, "hbm": hbm, "profile": profile, "select": select,
                                   "machine": machine, **options})


def compare(traces: TraceLike | Sequence[TraceLike], *, policies: Sequence[str] | None = None,
            hbm: str | Sequence[str] = "25%", profile: str = "h200-pcie5", select: str = "mass:0.95",
            **options: Any) -> dict[str, Any]:
    """The report of `lehr compare`: every policy (or those named), bound and oracle on one trace."""
    return _run("compare", traces, {"policies": policies, "hbm": hbm, "profile": profile, "select": select,
                                    **options})
