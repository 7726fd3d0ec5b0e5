# SPDX-License-Identifier: Apache-2.0
"""What sparse selection and lower precision do to a model: perplexity of long text, recall of planted facts.

The prompt is always read densely; a rule is at work in the steps after it, one token each. All rules see the same
tokens. The text is the reference of the Python language that every Python carries (pydoc_data.topics).
"""
from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import versions
from .attention import enable
from .cache import LehrCache, Pool
from .models import load, load_tokenizer
from .recorder import cache_keyword

RULES = (("dense", "all", "none"), ("mass:0.95", "mass:0.95", "none"), ("topk:30%", "topk:30%", "none"),
         ("topk:10%", "topk:10%", "none"), ("dense, int8 pages", "all", "int8"), ("dense, e4m3 pages", "all", "e4m3"))
_PLACES = ("Lisbon", "Oslo", "Nairobi", "Quito", "Hanoi", "Perth", "Tunis", "Riga", "Lima", "Kyoto")


@dataclasses.dataclass
class Row:
    """Figures of one rule."""

    rule: str
    nll: float = 0.0
    scored: int = 0
    agree: int = 0  # scored positions whose likeliest token is that of the model's own cache
    read: int = 0  # pages
    dense_read: int = 0
    found: int = 0
    asked: int = 0
    missed: list[int] = dataclasses.field(default_factory=list)  # depths

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.scored)


def long_text() -> str:
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


class _Bench:
    def __init__(self, model: PreTrainedModel, tokens: int, rounding: str) -> None:
        self.model = model
        self.pool = Pool(model, max_tokens=2 * tokens, sequences=2, rounding=rounding)
        self.keyword = cache_keyword(model)

    def forward(self, ids: Sequence[int], cache: Any) -> torch.Tensor:
        out = self.model(input_ids=torch.tensor([list(ids)]), use_cache=True, logits_to_keep=1,
                         **{self.keyword: cache})
        return out.logits[0, -1].float()


def _score(bench: _Bench, cache: LehrCache, ids: Sequence[int], own: list[int], row: Row) -> None:
    """Negative log likelihood of ids[1:], one step each."""
    groups = bench.pool.runtime.layers * bench.pool.runtime.kv_heads
    moved = bench.pool.runtime.moved()
    before = moved.read_in_hbm + moved.read_in_place + moved.read_below
    for i in range(len(ids) - 1):
        logits = bench.forward(ids[i:i + 1], cache)
        row.nll -= float(torch.log_softmax(logits, -1)[ids[i + 1]])
        row.agree += int(logits.argmax()) == own[i]
        row.dense_read += -(-cache.get_seq_length() // bench.pool.runtime.page_tokens) * groups
    row.scored += len(ids) - 1
    moved = bench.pool.runtime.moved()
    row.read += moved.read_in_hbm + moved.read_in_place + moved.read_below - before


def _own_choice(model: PreTrainedModel, ids: Sequence[int], context: int) -> tuple[list[int], float]:
    """Likeliest tokens and likelihood of the model itself, in one pass."""
    logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, context:-1].float()
    target = torch.tensor(list(ids[context + 1:]))
    nll = torch.nn.functional.cross_entropy(logits, target, reduction="sum")
    return logits.argmax(-1).tolist(), float(nll)


def _planted(tokenizer: PreTrainedTokenizerBase, filler: Sequence[int], depth: int,
             number: int) -> tuple[list[int], list[int], str]:
    """A text with a fact in it, the fact's beginning once more, and how it went on."""
    place = _PLACES[(number * 3 + depth) % len(_PLACES)]
    secret = str((7919 * (number + 1) + 104729 * (depth + 3)) % 9000 + 1000)
    begin = f"The secret number of the {place} office is"
    at = len(filler) * depth // 100
    text = f"{tokenizer.decode(filler[:at])}\n\n{begin} {secret}.\n\n{tokenizer.decode(filler[at:])}"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids, tokenizer(f"\n\n{begin}", add_special_tokens=False)["input_ids"], secret


def _recall(bench: _Bench, tokenizer: PreTrainedTokenizerBase, rows: Sequence[tuple[Row, str]], text: Sequence[int],
            depths: Sequence[int], facts: int, context: int, answer: int = 6) -> None:
    """The text is read densely; the fact's beginning and its answer are steps under the rule."""
    for depth in depths:
        for number in range(facts):
            start = (number * len(depths) + depths.index(depth)) * context
            ids, begin, secret = _planted(tokenizer, text[start:start + context], depth, number)
            with LehrCache(bench.model, pool=bench.pool) as first:
                bench.forward(ids, first)
                for row, select in rows:
                    said: list[int] = []
                    with first.fork(select) as cache:
                        for token in begin:
                            logits = bench.forward([token], cache)
                        while len(said) < answer and secret not in tokenizer.decode(said):
                            said.append(int(logits.argmax()))
                            logits = bench.forward(said[-1:], cache)
                    row.asked += 1
                    row.found += secret in tokenizer.decode(said)
                    if secret not in tokenizer.decode(said):
                        row.missed.append(depth)


@torch.inference_mode()
def measure(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, context: int, scored: int,
            depths: Sequence[int], facts: int = 2) -> tuple[list[Row], Row]:
    """A row for each rule, and one of the model itself (which was asked no questions)."""
    enable(model)
    text = tokenizer(long_text(), add_special_tokens=False)["input_ids"]
    ids = text[:context + scored + 1]
    own, own_nll = _own_choice(model, ids, context)
    itself = Row("the model itself", own_nll, scored, scored)
    rows = {name: Row(name) for name, _, _ in RULES}
    for rounding in ("none", "int8", "e4m3"):
        served = [(rows[name], select) for name, select, r in RULES if r == rounding]
        bench = _Bench(model, context + max(scored, 256) + 512, rounding)
        with bench.pool:
            first = LehrCache(model, pool=bench.pool)
            bench.forward(ids[:context], first)
            for row, select in served:
                with first.fork(select) as cache:
                    _score(bench, cache, ids[context:], own, row)
                print(f"{row.rule}: perplexity {row.perplexity:.3f}", file=sys.stderr, flush=True)
            first.close()
            _recall(bench, tokenizer, served, text[len(ids):], depths, facts, context)
            for row, _ in served:
                print(f"{row.rule}: {row.found} of {row.asked} facts", file=sys.stderr, flush=True)
    return list(rows.values()), itself


def table(rows: Sequence[Row], itself: Row) -> str:
    lines = ["| rule | pages read | perplexity | same likeliest token | facts found |", "|---|---|---|---|---|",
             f"| {itself.rule} (one pass, sdpa) | 100 % | {itself.perplexity:.3f} | | |"]
    for row in rows:
        lines.append(f"| {row.rule} | {row.read / row.dense_read:.1%} | {row.perplexity:.3f} | "
                     f"{row.agree / row.scored:.1%} | {row.found} of {row.asked} |")
    return "\n".join(lines)


def main(model: str, context: int, scored: int, depths: Sequence[int], facts: int = 2,
         to: str | None = None) -> None:
    print(", ".join(f"{k} {v}" for k, v in versions().items()))
    rows, itself = measure(load(model), load_tokenizer(model), context, scored, depths, facts)
    print(f"{context} tokens before {scored} scored ones; facts at depths of {', '.join(map(str, depths))} % of "
          f"{context} tokens")
    print(table(rows, itself))
    if to:
        with open(to, "w", encoding="utf-8") as file:
            json.dump({"versions": versions(), "context": context, "depths": list(depths),
                       "rows": [dataclasses.asdict(row) for row in (itself, *rows)]}, file, indent=1)
