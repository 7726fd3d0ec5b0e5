#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Caches of transformers side by side, in one process: tokens a second, peak memory, time to the first token.

  engines_bench.py                          an 8B-shaped model with random weights, 32K context, batches 1, 4, 16
  engines_bench.py --tiny --device cpu      a few layers and tokens: that the script itself still runs

DynamicCache, DynamicCache(offloading=True), LehrCache with everything in HBM, and LehrCache with HBM for a quarter of
the KV and a selection of 30 %. What cannot run says why. Order is turned round every repetition; medians are printed.
Peak memory is the device's, as the driver tells it after the last step.
"""
from __future__ import annotations

import argparse
import gc
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "src"))

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.cache_utils import DynamicCache  # noqa: E402

import lehr  # noqa: E402
import lehr.hf  # noqa: E402
from lehr.hf.recorder import cache_keyword  # noqa: E402


def model_of(a: argparse.Namespace) -> Any:
    shape = dict(vocab_size=1024, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16) if a.tiny else \
        dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=a.layers,
             num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    config = LlamaConfig(**shape, max_position_embeddings=a.context + a.steps + 8, tie_word_embeddings=False)
    dtype = torch.float32 if a.device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(a.device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def caches(model: Any, a: argparse.Namespace, batch: int) -> dict[str, Callable[[], Any]]:
    machine = "host" if a.device == "cpu" else "cuda"
    tokens = a.context + a.steps + 16
    pool = dict(max_tokens=batch * tokens, sequences=batch, sequence_tokens=tokens, machine=machine, policy=a.policy,
                page_tokens=a.page_tokens)
    return {"DynamicCache": lambda: DynamicCache(config=model.config),
            "DynamicCache, offloaded": lambda: DynamicCache(config=model.config, offloading=True),
            "LehrCache, dense, all in HBM": lambda: lehr.hf.LehrCache(model, **pool),
            "LehrCache, topk:30%, HBM 25%": lambda: lehr.hf.LehrCache(model, hbm="25%", select="topk:30%", **pool)}


def chosen(words: list[str], names: list[str]) -> set[str]:
    """Those that a word names as a whole, or that have it in their name."""
    return {name for word in words for name in names if name == word or (word not in names and word in name)}


def wait(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def measure(model: Any, make: Callable[[], Any], a: argparse.Namespace, batch: int) -> dict[str, float]:
    gc.collect()
    if a.device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    keyword = cache_keyword(model)
    ids = torch.randint(0, 1000, (batch, a.context), generator=torch.Generator().manual_seed(1)).to(a.device)
    cache = make()
    try:
        began = wait(a.device)
        for at in range(0, a.context, a.chunk):
            logits = model(input_ids=ids[:, at:at + a.chunk], use_cache=True, logits_to_keep=1, **{keyword: cache}).logits
        token = logits[:, -1:].argmax(-1)
        first = wait(a.device) - began
        times = []
        for _ in range(a.steps):
            t = wait(a.device)
            token = model(input_ids=token, use_cache=True, logits_to_keep=1, **{keyword: cache}).logits[:, -1:].argmax(-1)
            times.append(wait(a.device) - t)
        peak, moved = 0, None
        if a.device != "cpu":  # as the driver sees it: torch's allocator keeps its largest extent, Lehr its tiers
            free, total = torch.cuda.mem_get_info()
            peak = total - free
        if hasattr(cache, "runtime"):
            moved = cache.runtime.moved()
        return {"first_token_s": first, "step_s": statistics.median(times[len(times) // 4:]), "peak_bytes": peak,
                "moved": moved and [moved.read_in_hbm, moved.read_in_place, moved.moved_pages]}
    finally:
        if hasattr(cache, "close"):
            cache.close()


def why(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:110]


def bench(a: argparse.Namespace) -> dict[str, Any]:
    print(", ".join(f"{k} {v}" for k, v in lehr.hf.versions().items()), "| liblehr", lehr.build_info())
    if a.device != "cpu":
        print(torch.cuda.get_device_name(), "| CUDA", torch.version.cuda)
    started = time.perf_counter()
    model = lehr.hf.enable(model_of(a))
    results: dict[str, Any] = {}
    for batch in a.batches:
        runs: dict[str, list[dict[str, float]]] = {}
        said: dict[str, str] = {}
        for repetition in range(a.repeat):
            order = list(caches(model, a, batch).items())
            for name, make in order if repetition % 2 == 0 else reversed(order):
                if a.only and name not in chosen(a.only, [known for known, _ in order]):
                    continue
                try:
                    runs.setdefault(name, []).append(measure(model, make, a, batch))
                    print(f"# {time.perf_counter() - started:.0f} s: batch {batch}, {name}: {runs[name][-1]}", flush=True)
                except (lehr.LehrError, torch.OutOfMemoryError, RuntimeError) as error:
                    said[name] = why(error)
        print(f"\nbatch {batch}, {a.context} tokens of context, {model.config.num_hidden_layers} layers, {a.steps} "
              f"steps, {a.repeat} repetitions")
        print(f"{'cache':32}{'tokens/s':>10}{'step ms':>10}{'first token s':>15}{'peak GB':>9}{'of DynamicCache':>17}")
        base = runs.get("DynamicCache")
        for name, _ in caches(model, a, batch).items():
            if not runs.get(name) and name not in said:
                continue
            if not runs.get(name):
                print(f"{name:32}did not run: {said.get(name, '')}")
                continue
            step, first, peak = (statistics.median(r[key] for r in runs[name])
                                 for key in ("step_s", "first_token_s", "peak_bytes"))
            share = f"{statistics.median(r['step_s'] for r in base) / step:.2f}" if base else "-"
            print(f"{name:32}{batch / step:10.1f}{step * 1e3:10.2f}{first:15.2f}{peak / 1e9:9.1f}{share:>17}")
        results[str(batch)] = {"runs": runs, "did_not_run": said}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--batches", type=lambda t: [int(x) for x in t.split(",")])
    parser.add_argument("--context", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--chunk", type=int, default=4096, help="tokens of a prefill chunk")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--page-tokens", type=int, default=16)
    parser.add_argument("--policy", default="lru")
    parser.add_argument("--only", action="append", help="the cache of this name, or those whose name has this word (repeat for more)")
    parser.add_argument("--limit-gb", type=float, help="torch may take this much of the GPU: to see what does not fit")
    parser.add_argument("--json")
    a = parser.parse_args()
    a.context = a.context or (64 if a.tiny else 32768)
    a.steps = a.steps or (8 if a.tiny else 64)
    a.batches = a.batches or ([1, 2] if a.tiny else [1, 4, 16])
    if a.device == "cuda" and not torch.cuda.is_available():
        sys.exit("engines_bench: torch sees no GPU (--device cpu --tiny runs without)")
    if a.limit_gb:
        torch.cuda.set_per_process_memory_fraction(a.limit_gb * 1e9 / torch.cuda.get_device_properties(0).total_memory)
    results = bench(a)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"versions": lehr.hf.versions(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
