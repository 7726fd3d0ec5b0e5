# SPDX-License-Identifier: Apache-2.0
"""LehrCache: past_key_values whose pages live where Lehr's policy puts them."""
from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from .._errors import LehrError, invalid, unsupported
from ..runtime import Runtime, Selection, Sequence
from .attention import is_enabled

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# Tokens above which a chunk behind other tokens is attended by the model itself, on a GPU.
_LONG_CHUNK = 8


def _shape_of(model: PreTrainedModel) -> dict[str, int]:
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    return {"q_heads": heads, "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads}


def _own_layers(model: PreTrainedModel) -> list[Any]:
    """The layers that the model's own cache has. Those of type DynamicLayer are full attention: Lehr's."""
    config = model.config.get_text_config(decoder=True)
    layers = list(DynamicCache(config=config).layers)
    if not layers:  # a configuration that says nothing about its layers: all are full attention
        layers = [DynamicLayer() for _ in range(config.num_hidden_layers)]
    return layers


class Pool:
    """The memory that caches of one model share, and the policy that places their pages.

    hbm        share of the pool's pages ("25%"), pages ("400 pages") or bytes ("2GB") held in HBM; None: all
    policy     placement policy, by a name that `lehr compare` shows; profile: platform profile
    max_tokens tokens that all sequences of the pool may hold together; sequences: how many there may be at once;
               sequence_tokens: of one sequence (cuda: with it tables never grow)
    machine    "cuda" for a model on a GPU, "host" for one on the CPU; None: the model's
    nvme       capacity below host memory, with its folder nvme_path; host: likewise, default: all pages
    rounding   "e4m3" or "int8": full pages are rounded to what that precision holds (to study it; saves no bytes)
    """

    def __init__(self, model: PreTrainedModel, *, hbm: str | None = None, policy: str = "lru",
                 profile: str = "h200-pcie5", max_tokens: int = 4096, sequences: int = 1, page_tokens: int = 16,
                 host: str | None = None, nvme: str | None = None, nvme_path: str | None = None,
                 rounding: str = "none", machine: str | None = None, sequence_tokens: int = 0) -> None:
        if machine is None:
            machine = "cuda" if model.device.type == "cuda" else "host"
        if machine == "cuda" and model.device.type == "cpu":
            raise invalid("machine 'cuda' for a model on the CPU: move the model to a GPU, or take machine='host'")
        if machine == "host" and model.device.type != "cpu":
            raise invalid(f"machine 'host' for a model on {model.device}: it reads CPU memory only")
        if machine == "cuda" and model.dtype is torch.float32:
            raise unsupported("a float32 model: on a GPU pages are float16 or bfloat16", "layout_mismatch")
        if model.dtype not in _DTYPES:
            raise unsupported(f"dtype {model.dtype}; offered are {', '.join(_DTYPES.values())}", "layout_mismatch")
        if max_tokens < 1 or sequences < 1:
            raise invalid("max_tokens and sequences must be at least 1", "out_of_range")
        served = [i for i, layer in enumerate(_own_layers(model)) if type(layer) is DynamicLayer]
        if not served:
            raise unsupported("the model has no layer of full attention")
        shape = _shape_of(model)
        groups = len(served) * shape["kv_heads"]
        # Each sequence may end in a partial page.
        pages = (-(-max_tokens // page_tokens) + sequences) * groups
        tails = sequences * groups
        if hbm is None:
            hbm = f"{pages + tails} pages"
        elif hbm.endswith("%"):
            try:
                share = float(hbm[:-1]) / 100
            except ValueError:
                raise invalid(f"hbm: {hbm!r}, expected a share, pages or bytes", "out_of_range") from None
            if not 0 < share <= 1:
                raise invalid(f"hbm: {hbm!r} is no share of all pages", "out_of_range")
            hbm = f"{max(int(pages * share), tails)} pages"
        self.runtime = Runtime({
            "machine": machine, "profile": profile, "policy": {"name": policy}, "device": model.device.index or 0,
            "geometry": {"layers": len(served), "page_tokens": page_tokens, "dtype": _DTYPES[model.dtype], **shape},
            "step": {"contents": "kv", "rounding": rounding, "sequences": sequences if sequence_tokens else 0,
                     "tokens": sequence_tokens},
            "capacity": {"hbm": hbm, "host": host or f"{pages} pages", "nvme": nvme or "0 pages"},
            **({"nvme": {"path": nvme_path}} if nvme_path else {})})
        self.on_gpu = machine == "cuda"
        self.device = model.device
        self.served = served
        self.dtype = model.dtype
        self.total_pages = pages
        self._model = weakref.ref(model)
        self.lock = threading.RLock()

    def model(self) -> PreTrainedModel:
        model = self._model()
        if model is None:
            raise invalid("the pool's model is gone")
        return model

    def close(self) -> None:
        self.runtime.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LehrLayer(DynamicLayer):
    """A layer whose K and V are Lehr's."""

    is_compileable = False

    def __init__(self, cache: LehrCache, index: int) -> None:
        super().__init__()
        self.cache = cache
        self.index = index  # among the layers that Lehr serves

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cache.append(self, key_states, value_states)

    def uses_own_attention(self) -> bool:
        return self.cache.prompt_by_model and (self.cache.step_start == 0 or self.cache.gathers)

    def attended(self) -> None:
        self.cache.layer_done(self)

    def attend(self, query: torch.Tensor, out: torch.Tensor, scaling: float | None, soft_cap: float | None,
               window: int | None) -> None:
        self.cache.attend(self, query, out, scaling, soft_cap, window)

    def get_seq_length(self) -> int:
        # Of whole forwards: one that broke off never was, and the next asks before it begins.
        return self.cache._tokens

    # LehrCache does these for all of its layers at once.
    def reset(self) -> None: ...
    def crop(self, tokens_to_remove: int) -> None: ...
    def reorder_cache(self, beam_idx: torch.Tensor) -> None: ...
    def batch_repeat_interleave(self, repeats: int) -> None: ...
    def batch_select_indices(self, indices: torch.Tensor) -> None: ...
    def offload(self) -> None: ...
    def prefetch(self) -> None: ...


class LehrCache(Cache):
    """past_key_values of generate() and of a model's forward. Full-attention layers are Lehr's, all others keep the
    model's own cache. Call lehr.hf.enable(model) before.

    pool    a Pool to share with other caches; else the arguments of Pool make one of its own
    select  what a step of one token reads: "all", "topk:30%", "count:64" or "mass:0.95"; chunks read everything
    prompt  who attends to a prompt on an empty cache: "model" (its own attention) or "lehr"

    One thread at a time; another thread's call inside a forward is refused. A forward that fails leaves the cache as
    it was before it. Close it, or use `with`, to give its pages back.
    """

    def __init__(self, model: PreTrainedModel, *, pool: Pool | None = None, select: str | Selection = "all",
                 prompt: str = "model", **pool_arguments: Any) -> None:
        if prompt not in ("model", "lehr"):
            raise invalid(f"prompt: {prompt!r}, expected 'model' or 'lehr'")
        self.selection = Selection.parse(select) if isinstance(select, str) else select
        if not is_enabled(model):
            raise invalid("the model's attention is not Lehr's: call lehr.hf.enable(model) first")
        if pool is not None and pool_arguments:
            raise invalid(f"pool and {', '.join(pool_arguments)} exclude each other")
        if pool is not None and pool.model() is not model:
            raise invalid("the pool was made for another model", "layout_mismatch")
        self._owns_pool = pool is None
        self.pool = pool if pool is not None else Pool(model, **pool_arguments)
        self.runtime = self.pool.runtime
        self.prompt_by_model = prompt == "model"
        self.sequences: list[Sequence] = []
        self.step_start = 0  # tokens before the open step
        self._step_tokens = 0
        self._thread: int | None = None  # inside a forward
        self._done = 0  # layers of the open step
        self._appended = 0
        self._tokens = 0
        self.on_mass: Any = None  # (layer index, mass, peak, q): of steps of one token
        served = {layer: index for index, layer in enumerate(self.pool.served)}
        layers = [_LehrLayer(self, served[i]) if i in served else layer
                  for i, layer in enumerate(_own_layers(model))]
        super().__init__(layers=layers)

    # ---- a forward

    def check_model(self, module: torch.nn.Module) -> None:
        own = self.pool.model().config
        config = getattr(module, "config", own)
        if config is not own and config is not own.get_text_config(decoder=True):
            raise invalid("the cache was made for another model", "layout_mismatch")

    def _enter(self) -> None:
        me = threading.get_ident()
        with self.pool.lock:
            if self._thread not in (None, me):
                raise LehrError("refused", "pending", "another thread is inside a forward with this cache")
            self._thread = me

    def append(self, layer: _LehrLayer, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._enter()
        try:
            k, v = k.detach(), v.detach()
            self._refuse_shape(k, v)
            if layer.index == 0:
                self._begin(k.shape[0], k.shape[2])
            elif layer.index != self._appended or self._done != layer.index:
                raise invalid(f"layer {layer.index} of Lehr's was called after {self._appended} were appended and "
                              f"{self._done} attended: the cache belongs to another model, or its attention does not "
                              "go through Lehr", "layout_mismatch")
            if k.shape[0] != len(self.sequences) or k.shape[2] != self._step_tokens:
                raise invalid(f"layer {layer.index}: {k.shape[0]} sequences of {k.shape[2]} tokens, the step began "
                              f"with {len(self.sequences)} of {self._step_tokens}", "layout_mismatch")
            k = k if k.stride(-1) == 1 else k.contiguous()
            v = v if v.stride(-1) == 1 else v.contiguous()
            self.runtime.append(layer.index, k, v)
            self._appended = layer.index + 1
        except BaseException:
            self.abandon()
            raise
        if self.gathers:
            k, v = self._all_of(layer, k, v)
        else:
            k = k[:]  # a tensor object of our own, to carry the layer to the attention function
        k.lehr_layer = layer
        return k, v

    @property
    def gathers(self) -> bool:
        """A long chunk on a GPU, behind other tokens: the model's own attention over a dense copy."""
        return self.pool.on_gpu and self.prompt_by_model and self.step_start > 0 and self._step_tokens > _LONG_CHUNK

    def _all_of(self, layer: _LehrLayer, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (k.shape[0], k.shape[1], self.step_start + self._step_tokens, k.shape[3])
        keys, values = torch.empty(shape, dtype=k.dtype, device=k.device), torch.empty(shape, dtype=v.dtype,
                                                                                       device=v.device)
        try:
            self.runtime.gather(layer.index, self.sequences, keys, values)
        except BaseException:
            self.abandon()
            raise
        return keys, values

    def _refuse_shape(self, k: torch.Tensor, v: torch.Tensor) -> None:
        wanted = (self.runtime.kv_heads, self.runtime.head_dim)
        for name, x in (("K", k), ("V", v)):
            if (x.shape[1], x.shape[3]) != wanted:
                raise unsupported(f"{name} has {x.shape[1]} heads of {x.shape[3]}, the cache was made for "
                                  f"{wanted[0]} of {wanted[1]}", "layout_mismatch")
            if x.dtype != self.pool.dtype:
                raise invalid(f"{name} is {x.dtype}, the cache was made for {self.pool.dtype}", "layout_mismatch")

    def _begin(self, batch: int, tokens: int) -> None:
        if self._step_tokens:  # a forward was interrupted
            self.abandon()
            self._enter()
        if not self.sequences:
            self.sequences = self.runtime.sequences(batch)
        if len(self.sequences) != batch:
            raise invalid(f"{batch} sequences for a cache of {len(self.sequences)}", "layout_mismatch")
        stream = torch.cuda.current_stream(self.pool.device).cuda_stream if self.pool.on_gpu else None
        self.runtime.begin(self.sequences, [tokens] * batch, stream)
        self.step_start, self._step_tokens = self._tokens, tokens
        self._done = self._appended = 0

    def attend(self, layer: _LehrLayer, query: torch.Tensor, out: torch.Tensor, scaling: float | None,
               soft_cap: float | None, window: int | None) -> None:
        self._enter()
        query = query.detach()
        query = query if query.stride(-1) == 1 else query.contiguous()
        mass = peak = None
        if self.on_mass is not None and self._step_tokens == 1:
            pages = -(-(self.step_start + 1) // self.runtime.page_tokens)
            mass = np.empty((len(self.sequences), self.runtime.kv_heads, pages), np.uint8)
            peak = np.empty_like(mass)
        selection = self.selection if self._step_tokens == 1 else Selection()
        self.runtime.attend(layer.index, query, out, scale=scaling or 0.0, soft_cap=soft_cap or 0.0,
                            window=window or 0, selection=selection, mass=mass, peak=peak)
        if mass is not None:
            self.on_mass(layer.index, mass, peak, query)
        self.layer_done(layer)

    def layer_done(self, layer: _LehrLayer) -> None:
        self._done = layer.index + 1
        if self._done == self.runtime.layers:
            self.runtime.end()
            self._tokens = self.step_start + self._step_tokens
            self._step_tokens = 0
            self._thread = None

    def abandon(self) -> None:
        """Rolls a forward back that cannot go on."""
        if self._step_tokens:
            self._step_tokens = 0
            self.runtime.abandon()
        self._thread = None

    # ---- what generate() and users ask of a cache

    def _others(self) -> list[Any]:
        return [layer for layer in self.layers if not isinstance(layer, _LehrLayer)]

    def _outside(self) -> None:
        if self._step_tokens:
            raise LehrError("refused", "pending", "a forward with this cache is under way")

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the latest -tokens_to_remove tokens; a positive number is the length to keep."""
        self._outside()
        keep = tokens_to_remove if tokens_to_remove > 0 else self._tokens + tokens_to_remove
        for layer in self._others():
            layer.crop(tokens_to_remove)
        if keep >= self._tokens:
            return
        for sequence in self.sequences:
            sequence.truncate(max(keep, 0))
        self._tokens = max(keep, 0)

    def reset(self) -> None:
        """Empties the cache: another batch may follow."""
        self._outside()
        for layer in self._others():
            layer.reset()
        self._release()

    def _release(self) -> None:
        for sequence in self.sequences:
            sequence.close()
        self.sequences = []
        self._tokens = self.step_start = 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._outside()
        for layer in self._others():
            layer.reorder_cache(beam_idx)
        if self.sequences:
            self.runtime.reorder(self.sequences, beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._outside()
        for layer in self._others():
            layer.batch_repeat_interleave(repeats)
        self.sequences = [copy for s in self.sequences for copy in (s, *(s.fork() for _ in range(repeats - 1)))]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._outside()
        for layer in self._others():
            layer.batch_select_indices(indices)
        wanted = torch.arange(len(self.sequences))[indices].tolist()
        old, self.sequences = self.sequences, [self.sequences[i].fork() for i in wanted]
        for sequence in old:
            sequence.close()

    def fork(self, select: str | Selection | None = None) -> LehrCache:
        """Another cache of the same pool with the same tokens; pages are shared until one of the two writes."""
        self._outside()
        if any(layer.get_seq_length() for layer in self._others()):
            raise unsupported("forking a cache of a model with layers of its own")
        other = LehrCache(self.pool.model(), pool=self.pool, select=select or self.selection,
                          prompt="model" if self.prompt_by_model else "lehr")
        other.sequences = [sequence.fork() for sequence in self.sequences]
        other._tokens = self._tokens
        return other

    def close(self) -> None:
        """Gives the pages back; the pool too, if it is this cache's own."""
        self.abandon()
        self._release()
        if self._owns_pool:
            self.pool.close()

    def __enter__(self) -> LehrCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_compileable(self) -> bool:
        return False
