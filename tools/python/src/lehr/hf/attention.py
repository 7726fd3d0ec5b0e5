# SPDX-License-Identifier: Apache-2.0
"""The attention function and its mask function, registered as "lehr"."""
from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from .._errors import LehrError, unsupported

NAME = "lehr"


def lehr_mask(*args: Any, mask_function: Any = causal_mask_function, attention_mask: torch.Tensor | None = None,
              kv_offset: Any = 0, **kwargs: Any) -> torch.Tensor | None:
    """The model's own mask, marked where it says no more than "causal"."""
    mask = sdpa_mask(*args, mask_function=mask_function, attention_mask=attention_mask, kv_offset=kv_offset, **kwargs)
    plain = mask_function is causal_mask_function and int(kv_offset) == 0 and \
        (attention_mask is None or bool(attention_mask.bool().all()))
    if mask is not None and plain:
        mask.lehr_plain = True
    return mask


def lehr_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                   **kwargs: Any) -> tuple[torch.Tensor, None]:
    """Attention over what LehrCache.update appended; over K and V themselves where another cache holds them."""
    layer = getattr(key, "lehr_layer", None)
    if layer is None:
        _watch(module, query, key, attention_mask, scaling, kwargs)
        return _own(module, query, key, value, attention_mask, dropout, scaling, kwargs), None
    try:
        _refuse_what_is_not_causal(attention_mask, dropout, kwargs)
        layer.cache.check_model(module)
        if layer.uses_own_attention():
            out = _own(module, query, key, value, attention_mask, dropout, scaling, kwargs)
            layer.attended()
            return out, None
        out = torch.empty((query.shape[0], query.shape[2], query.shape[1], query.shape[3]), dtype=query.dtype,
                          device=query.device)
        layer.attend(query, out.transpose(1, 2), scaling, kwargs.get("softcap"), kwargs.get("sliding_window"))
        return out, None
    except BaseException:
        layer.cache.abandon()
        raise


def _own(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
         mask: torch.Tensor | None, dropout: float, scaling: float | None, kwargs: dict[str, Any]) -> torch.Tensor:
    """Attention over K and V as they are: torch's, or by the definition where logits are capped."""
    cap = kwargs.get("softcap")
    if cap is None:
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)[0]
    ratio = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, ratio), repeat_kv(value, ratio)
    logits = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    logits = cap * torch.tanh(logits / cap)
    if mask is None and query.shape[2] > 1:  # sdpa's mask function says None for what is plainly causal
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is not None:
        mask = mask[..., :key.shape[2]]
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    weights = torch.softmax(logits, -1, dtype=torch.float32).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous()


def _refuse_what_is_not_causal(mask: torch.Tensor | None, dropout: float, kwargs: dict[str, Any]) -> None:
    if mask is not None and not getattr(mask, "lehr_plain", False):
        raise unsupported("the attention mask has zeros beside the causal ones (padding, packed or bidirectional "
                          "tokens): LehrCache serves plain causal attention. A prompt that holds the pad token makes "
                          "generate() infer such a mask; pass attention_mask=torch.ones_like(input_ids), or give "
                          "each prompt a cache of its own", "mask")
    if dropout:
        raise unsupported("dropout in attention: call model.eval() first")
    for name in ("position_bias", "s_aux"):
        if kwargs.get(name) is not None:
            raise unsupported(f"attention with {name}", "mask")
    if kwargs.get("is_causal") is False:
        raise unsupported("attention that is not causal", "mask")


def _watch(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None,
           scaling: float | None, kwargs: dict[str, Any]) -> None:
    """A recorder may want the mass of layers that Lehr does not serve."""
    watcher = getattr(module, "lehr_watcher", None)
    if watcher is not None:
        watcher(module, query, key, mask, scaling, kwargs.get("softcap"))


def enable(model: PreTrainedModel) -> PreTrainedModel:
    """Registers Lehr's attention and mask and makes the model use them. With any cache but LehrCache the model
    computes as with "sdpa". Thread-safe for different models."""
    AttentionInterface.register(NAME, lehr_attention)
    AttentionMaskInterface.register(NAME, lehr_mask)
    try:
        model.set_attn_implementation(NAME)
    except ValueError as error:
        raise LehrError("unsupported", "none", f"the model does not take another attention function: {error}") \
            from error
    return model


def is_enabled(model: PreTrainedModel) -> bool:
    return getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None) == NAME
