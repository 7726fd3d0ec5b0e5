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

    for batch in (1, 3):
        pool = dict(max_tokens=batch * (PROMPT + STEPS + 16), sequences=batch, policy="table")
        theirs = write(model, DynamicCache(config=model.config), batch)
        for select in ("all", "topk:30%", "mass:0.9", "count:9"):
            with lehr.hf.LehrCache(model, select=select, **pool) as cache:
                resident = write(model, cache, batch)
            with lehr.hf.LehrCache(model, select=select, hbm="25%", **pool) as cache:
                tiered = write(model, cache, batch)
                moved = cache.runtime.moved()
            check(f"batch {batch}, {select}: the same logits bit for bit with HBM for 25 %", torch.equal(resident, tiered))
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
