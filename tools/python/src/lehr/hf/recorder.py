# SPDX-License-Identifier: Apache-2.0
"""Attention traces of any causal model of transformers."""
from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence as SequenceOf
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer

from .._errors import invalid, unsupported
from ..trace import TraceWriter, codes_of
from .attention import enable
from .cache import LehrCache, Pool, _own_layers, _shape_of


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; temperature 0: the likeliest."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def sampler(self) -> Callable[[torch.Tensor], int]:
        if not (self.temperature >= 0 and math.isfinite(self.temperature) and 0 < self.top_p <= 1 and self.top_k >= 0):
            raise invalid(f"sampling: {self}", "out_of_range")
        generator = torch.Generator().manual_seed(self.seed)

        def draw(logits: torch.Tensor) -> int:
            logits = logits.detach().float().cpu()
            if self.temperature == 0:
                return int(logits.argmax())
            values, order = torch.sort(logits / self.temperature, descending=True)
            odds = torch.softmax(values, -1)
            keep = torch.cumsum(odds, -1) - odds < self.top_p
            if self.top_k:
                keep &= torch.arange(len(keep)) < self.top_k
            return int(order[torch.multinomial(odds * keep, 1, generator=generator)])

        return draw


def page_shares(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scaling: float | None,
                soft_cap: float | None, context: int, page_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and peak shares [batch, kv_heads, pages] of the last query's softmax, from Q and K themselves. K holds the
    latest tokens of the context."""
    batch, q_heads, _, dim = query.shape
    kv_heads, length = key.shape[1], key.shape[2]
    q = query[:, :, -1].float().reshape(batch, kv_heads, q_heads // kv_heads, dim)
    logits = torch.einsum("bhgd,bhtd->bhgt", q, key.float()) * (scaling if scaling is not None else dim ** -0.5)
    if soft_cap:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    if mask is not None:
        row = mask[:, :, -1, -length:].unsqueeze(2)
        logits = logits.masked_fill(~row, -torch.inf) if mask.dtype == torch.bool else logits + row
    weights = torch.softmax(logits, -1)
    pages = -(-context // page_tokens)
    index = torch.arange(context - length, context) // page_tokens
    shares = torch.zeros((*weights.shape[:3], pages)).index_add_(3, index, weights.cpu())
    return shares.mean(2).numpy(), shares.amax(2).numpy()


class _Watch:
    """Codes of one step, by model layer."""

    def __init__(self, layers: SequenceOf[int], page_tokens: int) -> None:
        self.layers = list(layers)
        self.page_tokens = page_tokens
        self.context = 0
        self.mass: dict[int, np.ndarray] = {}
        self.peak: dict[int, np.ndarray] = {}
        self.q: dict[int, np.ndarray] = {}

    def keep(self, layer: int, mass: np.ndarray, peak: np.ndarray, query: torch.Tensor) -> None:
        self.mass[layer], self.peak[layer] = mass[0], peak[0]
        self.q[layer] = query[0, :, -1].to(torch.float16).cpu().numpy()

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None,
                 scaling: float | None, soft_cap: float | None) -> None:
        if self.context and module.layer_idx in self.layers:
            mean, most = page_shares(query.detach(), key.detach(), mask, scaling, soft_cap, self.context,
                                     self.page_tokens)
            self.keep(module.layer_idx, codes_of(mean), codes_of(most), query)


@contextlib.contextmanager
def _watching(model: PreTrainedModel, watch: _Watch) -> Iterator[None]:
    modules = [m for m in model.modules() if getattr(m, "layer_idx", None) in watch.layers]
    for module in modules:
        module.lehr_watcher = watch
    try:
        yield
    finally:
        for module in modules:
            del module.lehr_watcher


def record(model: PreTrainedModel, prompt: torch.Tensor | SequenceOf[int], steps: int, out: str | os.PathLike[str], *,
           workload: str = "", name: str | None = None, page_tokens: int = 16,
           layers: SequenceOf[int] | None = None, tokens: bool = True, qkv: bool = False, select: str = "all",
           hbm: str | None = None, policy: str = "lru", profile: str = "h200-pcie5",
           sampling: Sampling = Sampling(), ignore_eos: bool = False, eos: SequenceOf[int] | None = None,
           forced: SequenceOf[int] | None = None,
           progress: Callable[[int, int], None] | None = None) -> pathlib.Path:
    """Decodes `steps` tokens after `prompt` (ids) and writes who got how much of the softmax mass to `out`
    (.safetensors, or .safetensors.zst). Returns its path.

    Layers that Lehr serves give the mass as its attention computes it, without a second pass; of all others it is
    the softmax of their own Q and K. layers: model layers to record, default: all that have attention. qkv: q of each
    step, k and v too (all recorded layers must be Lehr's). forced: tokens to feed instead of drawn ones. An end token
    ends the recording unless ignore_eos. Steps are streamed to disk; an interruption leaves no file.
    """
    ids = prompt.reshape(-1).tolist() if isinstance(prompt, torch.Tensor) else list(prompt)
    config = model.config.get_text_config(decoder=True)
    if not ids or min(ids) < 0 or max(ids) >= config.vocab_size:
        raise invalid("prompt: expected token ids of the model, at least one", "out_of_range")
    if steps < 1:
        raise invalid(f"steps: {steps}, expected at least 1", "out_of_range")
    if forced is not None and len(forced) < steps:
        raise invalid(f"forced: {len(forced)} tokens for {steps} steps", "out_of_range")
    own = _own_layers(model)
    with_attention = [i for i, layer in enumerate(own) if isinstance(layer, DynamicLayer)]
    recorded = with_attention if layers is None else sorted(set(layers))
    if not recorded or not set(recorded) <= set(with_attention):
        raise invalid(f"layers: {recorded}; layers with attention are {with_attention}", "out_of_range")
    ends = set() if ignore_eos else set(eos if eos is not None else _end_tokens(model))
    draw = sampling.sampler()
    enable(model)
    shape = _shape_of(model)
    pool = Pool(model, hbm=hbm, policy=policy, profile=profile, max_tokens=len(ids) + steps, page_tokens=page_tokens)
    with pool:
        if qkv and not set(recorded) <= set(pool.served):
            raise unsupported(f"qkv of layers that Lehr does not serve; it serves {pool.served}")
        watch = _Watch(recorded, page_tokens)
        cache = LehrCache(model, pool=pool, select=select)
        cache.on_mass = lambda index, mass, peak, query: watch.keep(pool.served[index], mass, peak, query)
        extra = {"sampling": f"temperature={sampling.temperature} top_k={sampling.top_k} top_p={sampling.top_p} "
                             f"seed={sampling.seed}", "select": select}
        if forced is not None:
            extra["forced_steps"] = str(steps)
        writer = TraceWriter(out, model=name or config.name_or_path or type(model).__name__, workload=workload,
                             page_tokens=page_tokens, kv_bytes_per_element=model.dtype.itemsize,
                             model_layers=len(own), layer_ids=recorded, prompt_tokens=len(ids), with_qkv=qkv,
                             extra=extra, **shape)
        with writer, torch.inference_mode(), _watching(model, watch):
            keyword = cache_keyword(model)
            fed = list(ids)
            feed = torch.tensor([ids], device=model.device)
            for step in range(steps + 1):
                watch.context = len(fed) if step > 0 else 0
                logits = model(input_ids=feed, use_cache=True, logits_to_keep=1, **{keyword: cache}).logits[0, -1]
                if step > 0:
                    stack = [np.stack([part[i][..., :-(-len(fed) // page_tokens)] for i in recorded])
                             for part in (watch.mass, watch.peak)]
                    writer.step(*stack, np.stack([watch.q[i] for i in recorded]) if qkv else None)
                if progress is not None and step > 0:
                    progress(step, steps)
                if step == steps:
                    break
                token = forced[step] if forced is not None else draw(logits)
                if token in ends and step > 0:
                    break
                fed.append(int(token))
                feed = torch.tensor([[fed[-1]]], device=model.device)
            k = v = None
            if qkv:
                k, v = _dense(cache, [pool.served.index(i) for i in recorded], len(fed))
            return writer.close(np.array(fed, np.int32) if tokens else None, k, v)


def cache_keyword(model: PreTrainedModel) -> str:
    """What this version of transformers calls the cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _dense(cache: LehrCache, layers: SequenceOf[int], tokens: int) -> tuple[np.ndarray, np.ndarray]:
    runtime = cache.runtime
    shape = (len(layers), runtime.kv_heads, tokens, runtime.head_dim)
    k = torch.empty(shape, dtype=cache.pool.dtype)
    v = torch.empty_like(k)
    for i, layer in enumerate(layers):
        runtime.gather(layer, cache.sequences, k[i:i + 1], v[i:i + 1])
    return k.to(torch.float16).numpy(), v.to(torch.float16).numpy()


def _end_tokens(model: PreTrainedModel) -> list[int]:
    given = model.generation_config.eos_token_id if model.generation_config is not None else None
    return given if isinstance(given, list) else [] if given is None else [given]
