#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LehrCache on a GPU, checked: a small model with random weights writes the same text, with the same logits bit for
bit, wherever pages live; and text that agrees with DynamicCache. Exits with 77 where torch sees no GPU."""
from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "src"))

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.cache_utils import DynamicCache  # noqa: E402

import lehr  # noqa: E402
import lehr.hf  # noqa: E402
from lehr.hf.recorder import cache_keyword  # noqa: E402

PROMPT, CHUNK, STEPS = 700, 300, 40


def model_of() -> LlamaForCausalLM:
    config = LlamaConfig(vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096)
    torch.manual_seed(0)
    return lehr.hf.enable(LlamaForCausalLM(config).to("cuda", torch.float16).eval())


@torch.inference_mode()
def write(model: LlamaForCausalLM, cache: object, batch: int) -> torch.Tensor:
    """Logits of every step after a prompt that comes in chunks, a roll-back on the way."""
    keyword = cache_keyword(model)
    ids = torch.randint(0, 512, (batch, PROMPT), generator=torch.Generator().manual_seed(3)).cuda()
    for at in range(0, PROMPT, CHUNK):
        out = model(input_ids=ids[:, at:at + CHUNK], use_cache=True, logits_to_keep=1, **{keyword: cache})
    logits = [out.logits[:, -1]]
    for step in range(STEPS):
        if step == STEPS // 2:
            cache.crop(-13)
        token = logits[-1].argmax(-1, keepdim=True)
        out = model(input_ids=token, use_cache=True, logits_to_keep=1, **{keyword: cache})
        logits.append(out.logits[:, -1])
    return torch.stack(logits).float().cpu()


@torch.inference_mode()
def attention(dim: int, dtype: torch.dtype, batch: int, select: str, hbm: str) -> list[torch.Tensor]:
    """Outputs of steps on random K, V and Q with no model around: what Lehr alone answers for."""
    layers, kv, q_heads, prompt, steps = 2, 2, 8, 500, 30
    names = {torch.float16: "f16", torch.bfloat16: "bf16"}
    random = torch.Generator("cuda").manual_seed(dim)
    selection = lehr.Selection.parse(select)
    outs = []
    with lehr.Runtime({"machine": "cuda", "policy": {"name": "table"},
                       "geometry": {"layers": layers, "kv_heads": kv, "q_heads": q_heads, "head_dim": dim,
                                    "dtype": names[dtype]},
                       "step": {"contents": "kv"}, "capacity": {"hbm": hbm, "host": "1000 pages", "nvme": 0}}) as rt:
        sequences = rt.sequences(batch)
        for tokens in [prompt] + [1] * steps:
            rt.begin(sequences, [tokens] * batch)
            for layer in range(layers):
                k, v, q = (torch.randn(batch, tokens, heads, dim, generator=random, device="cuda", dtype=dtype)
                           .transpose(1, 2) for heads in (kv, kv, q_heads))
                rt.append(layer, k, v)
                out = torch.empty_like(q)
                rt.attend(layer, q, out, selection=selection if tokens == 1 else lehr.Selection())
                outs.append(out)
            rt.end()
        torch.cuda.synchronize()
        rt.moved()  # refuses where attention met a page that was nowhere
    return outs


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU: skipped")
        return 77
    print(", ".join(f"{k} {v}" for k, v in lehr.hf.versions().items()), "| liblehr", lehr.build_info(), "|",
          torch.cuda.get_device_name())
    model = model_of()
    failed = 0

    def check(what: str, good: bool) -> None:
        nonlocal failed
        failed += not good
        print(f"  {what:74} {'yes' if good else 'NO'}")

    for dim, dtype in ((64, torch.float16), (128, torch.bfloat16)):
        for batch in (1, 3):
            for select in ("all", "topk:30%"):
                here = attention(dim, dtype, batch, select, "1000 pages")
                different = [sum(not torch.equal(a, b) for a, b in zip(here, attention(dim, dtype, batch, select, hbm)))
                             for hbm in ("1000 pages", "120 pages", "40 pages")]
                check(f"attention, head_dim {dim}, {dtype}, batch {batch}, {select}: outputs of {len(here)} that differ: "
                      f"{different}", not any(different))

    for batch in (1, 3):
        pool = dict(max_tokens=batch * (PROMPT + STEPS + 16), sequences=batch, policy="table")
        theirs = write(model, DynamicCache(config=model.config), batch)
        for select in ("all", "topk:30%", "mass:0.9", "count:9"):
            with lehr.hf.LehrCache(model, select=select, **pool) as cache:
                resident = write(model, cache, batch)
            with lehr.hf.LehrCache(model, select=select, hbm="25%", **pool) as cache:
                tiered = write(model, cache, batch)
                moved = cache.runtime.moved()
            with lehr.hf.LehrCache(model, select=select, **pool) as cache:
                again = write(model, cache, batch)
            check(f"batch {batch}, {select}: the same logits bit for bit with HBM for 25 %", torch.equal(resident, tiered))
            for name, other in (("tiered", tiered), ("resident again", again)):
                if not torch.equal(resident, other):
                    step = int((resident != other).flatten(1).any(1).int().argmax())
                    print(f"    {name}: first at step {step}, {(resident - other)[step].abs().max():.1e}, in all "
                          f"{(resident - other).abs().max():.1e}, {(resident != other).flatten(1).any(1).sum()} steps")
            check(f"batch {batch}, {select}: pages were read in host memory ({moved.read_in_place}) and moved "
                  f"({moved.moved_pages})", moved.read_in_place > 0 and moved.moved_pages > 0)
            if select == "all":
                error = (resident - theirs).abs().max().item()
                check(f"batch {batch}: logits as with DynamicCache (largest difference {error:.1e})", error < 0.05)
    try:
        lehr.hf.Pool(model.float(), machine="cuda")
        check("a float32 model is refused", False)
    except lehr.LehrError as e:
        check("a float32 model is refused", "float32" in str(e))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
