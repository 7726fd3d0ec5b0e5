# SPDX-License-Identifier: Apache-2.0
"""Pictures of traces and comparisons, with matplotlib where it is installed."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._errors import LibraryError
from .simulate import compare
from .trace import Trace


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise LibraryError(f"plots need matplotlib (pip install matplotlib): {error}") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def mass(trace: Trace, axes: Any = None) -> Any:
    """Share of the mass by page and step, mean over layers and KV heads, as a picture in log scale."""
    pyplot = _pyplot()
    axes = axes or pyplot.subplots(figsize=(9, 4.5), layout="constrained")[1]
    shares = trace.shares().mean(axis=(1, 2))
    image = axes.imshow(np.log2(np.maximum(shares.T, 2.0**-16)), origin="lower", aspect="auto", cmap="magma",
                        interpolation="nearest")
    axes.set_xlabel("decode step")
    axes.set_ylabel(f"page of {trace.page_tokens} tokens")
    axes.set_title(f"{trace.model}: softmax mass, mean over {len(trace.layer_ids)} layers", fontsize=10)
    axes.figure.colorbar(image, ax=axes, label="log2 of the share")
    return axes


def policies(report: dict[str, Any], axes: Any = None) -> Any:
    """Predicted step time of each policy over the bound, of a report of lehr.compare."""
    pyplot = _pyplot()
    axes = axes or pyplot.subplots(figsize=(9, 4.5), layout="constrained")[1]
    points = series_of(report)
    hbm = sorted({h for row in points.values() for h, _ in row})
    for name, row in points.items():
        ahead = {"bound": dict(color="black", linestyle="--"), "oracle": dict(color="grey", linestyle=":")}
        axes.plot([hbm.index(h) for h, _ in row], [t * 1e6 for _, t in row], marker="o", markersize=3, label=name,
                  **ahead.get(name, {}))
    axes.set_xticks(range(len(hbm)), [f"{h:.0%}" for h in hbm])
    axes.set_xlabel("HBM, share of all KV pages")
    axes.set_ylabel("predicted step time, µs")
    axes.set_yscale("log")
    axes.legend(fontsize=7, ncols=2)
    return axes


def series_of(report: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """(share of HBM, predicted seconds a step) by policy, with "bound" and "oracle" where the report has them."""
    out: dict[str, list[tuple[float, float]]] = {}
    steps = report["steps"] - report["warmup_steps"]
    for cell in report["cells"]:
        share = cell["hbm_pages"] / report["pages"]
        for name, key in (("bound", "best_bound"), ("oracle", "oracle")):
            if cell.get(key) and steps > 0:
                out.setdefault(name, []).append((share, cell[key]["seconds_without_warmup"] / steps))
        for row in cell["policies"]:
            if row["warm"]["steps"] > 0:
                seconds = row["warm"]["predicted_seconds"] / row["warm"]["steps"]
                out.setdefault(row["policy"], []).append((share, seconds))
    return out


def to_file(what: str, path: str, out: str, hbm: Sequence[str], names: Sequence[str] | None = None) -> str:
    pyplot = _pyplot()
    if what == "mass":
        axes = mass(Trace.open(path))
    else:
        axes = policies(compare(path, hbm=list(hbm), policies=list(names) if names else None))
    axes.figure.savefig(out, dpi=150)
    pyplot.close(axes.figure)
    return out
