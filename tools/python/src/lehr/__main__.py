# SPDX-License-Identifier: Apache-2.0
"""python -m lehr record | plot | quality. `lehr record` of the tool starts the first of them."""
from __future__ import annotations

import argparse
import pathlib
import sys
import time

from ._errors import LehrError, invalid


def _progress(done: int, all_steps: int) -> None:
    now = time.monotonic()
    if done == all_steps or now - _progress.last > 0.5:
        _progress.last = now
        end = "\n" if done == all_steps else "\r"
        print(f"step {done} of {all_steps}", end=end, file=sys.stderr, flush=True)


_progress.last = 0.0


def _targets(out: str, count: int) -> list[str]:
    if not out.endswith((".safetensors", ".safetensors.zst")):
        raise invalid(f"{out}: expected a name that ends in .safetensors or .safetensors.zst")
    if count == 1:
        return [out]
    stem, _, ending = out.partition(".safetensors")
    return [f"{stem}-{i}.safetensors{ending}" for i in range(count)]


def _record(a: argparse.Namespace) -> None:
    targets = _targets(a.out, len(a.prompt))
    texts = []
    for name in a.prompt:
        try:
            texts.append(sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise invalid(f"{name}: {error}") from error
    from . import hf
    from .hf.recorder import Sampling

    print(", ".join(f"{k} {v}" for k, v in hf.versions().items()), file=sys.stderr)
    tokenizer = hf.load_tokenizer(a.model)
    model = hf.load(a.model)
    for name, text, target in zip(a.prompt, texts, targets):
        if a.chat:
            text = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                                 tokenize=False)
        ids = tokenizer(text, add_special_tokens=not a.chat)["input_ids"]
        if a.prompt_tokens:
            ids = ids[:a.prompt_tokens]
        path = hf.record(model, ids, a.steps, target, workload=a.workload or pathlib.Path(name).stem, name=a.model,
                         page_tokens=a.page_tokens, layers=a.layers, tokens=not a.no_tokens, qkv=a.qkv,
                         select=a.select, hbm=a.hbm, policy=a.policy, ignore_eos=a.ignore_eos,
                         sampling=Sampling(a.temperature, a.top_k, a.top_p, a.seed), progress=_progress)
        print(path)


def _plot(a: argparse.Namespace) -> None:
    from . import plot

    print(plot.to_file(a.what, a.trace, a.out, a.hbm, a.policies))


def _quality(a: argparse.Namespace) -> None:
    from .hf import quality

    quality.main(a.model, a.context, a.scored, a.depths, a.facts, a.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lehr", description="Lehr in Python")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731

    p = commands.add_parser("record", help="record an attention trace of a model",
                            formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("out", metavar="OUT", help="OUT.safetensors or OUT.safetensors.zst; several prompts: OUT-0, OUT-1")
    p.add_argument("--model", required=True, help="a folder, a .gguf file, or a name")
    p.add_argument("--prompt", required=True, action="append", metavar="FILE", help="text; - is standard input")
    p.add_argument("--steps", type=int, required=True, help="tokens to decode")
    p.add_argument("--prompt-tokens", type=int, help="use no more of the prompt than this")
    p.add_argument("--chat", action="store_true", help="put the prompt in the model's chat template")
    p.add_argument("--layers", type=numbers, help="record only these, as 0,5,10")
    p.add_argument("--page-tokens", type=int, default=16)
    p.add_argument("--qkv", action="store_true", help="q, k and v of the recorded layers, too")
    p.add_argument("--no-tokens", action="store_true", help="leave the token ids out")
    p.add_argument("--workload", help="a name for the trace, default: the prompt's")
    p.add_argument("--select", default="all", help="what a step reads: all, topk:RATIO, count:N, mass:SHARE")
    p.add_argument("--hbm", help="share, pages or bytes of KV in HBM while recording, default: all")
    p.add_argument("--policy", default="lru")
    p.add_argument("--ignore-eos", action="store_true", help="do not stop at an end token")
    p.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    p.add_argument("--top-k", type=int, default=0)
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)
    p.set_defaults(run=_record)

    p = commands.add_parser("plot", help="draw a trace, or what the policies do on it (needs matplotlib)",
                            formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("what", choices=["mass", "policies"])
    p.add_argument("trace")
    p.add_argument("out", help="OUT.png, .svg or .pdf")
    p.add_argument("--hbm", nargs="+", default=["10%", "25%", "50%"], help="of policies")
    p.add_argument("--policies", nargs="+", help="of policies: only these, default: all")
    p.set_defaults(run=_plot)

    p = commands.add_parser("quality", help="perplexity and recall of a model under sparse selection",
                            formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--context", type=int, default=1280, help="tokens before the scored ones, and of a haystack")
    p.add_argument("--scored", type=int, default=192, help="tokens that perplexity is taken over")
    p.add_argument("--depths", type=numbers, default=[0, 25, 50, 75, 100], help="of the planted facts, in percent")
    p.add_argument("--facts", type=int, default=2, help="planted at each depth")
    p.add_argument("--json", help="write the figures here, too")
    p.set_defaults(run=_quality)
    return parser


def main(arguments: list[str] | None = None) -> int:
    a = _parser().parse_args(arguments)
    try:
        a.run(a)
    except (LehrError, OSError) as error:
        print(f"lehr: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lehr: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
