# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights."""
import pytest
import torch
from transformers import GemmaConfig, Gemma2Config, LlamaConfig, LlamaForCausalLM
from transformers.models.gemma2 import Gemma2ForCausalLM

import lehr.hf


def llama(seed=0, **changes):
    torch.manual_seed(seed)
    config = LlamaConfig(**{**dict(vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
                                   num_attention_heads=6, num_key_value_heads=2, head_dim=16,
                                   max_position_embeddings=1024, pad_token_id=96, eos_token_id=95, bos_token_id=1),
                            **changes})
    model = LlamaForCausalLM(config).eval()
    for p in model.parameters():  # sharper than an initialisation, so that the likeliest token stands out
        p.data.mul_(3)
    return model


def gemma2(seed=0):
    """Every other layer has a sliding window; soft-capped logits."""
    torch.manual_seed(seed)
    return Gemma2ForCausalLM(Gemma2Config(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=24, query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0, max_position_embeddings=512, pad_token_id=96, eos_token_id=95,
        bos_token_id=1)).eval()


def prompt(length, batch=1, seed=3):
    return torch.randint(2, 94, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture()
def model():
    return lehr.hf.enable(llama())


def generate(model, ids, steps, cache=None, **options):
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=steps, do_sample=False,
                          past_key_values=cache, **{"eos_token_id": None, "pad_token_id": 96, **options})
