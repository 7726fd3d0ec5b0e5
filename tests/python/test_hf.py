# SPDX-License-Identifier: Apache-2.0
"""LehrCache and the recorder with tiny random models of transformers. Run by tools/check-engines."""
import copy
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers.cache_utils import DynamicCache  # noqa: E402

import lehr  # noqa: E402
import lehr.hf  # noqa: E402
from lehr.hf.recorder import Sampling, cache_keyword, page_shares  # noqa: E402
from conftest import ROOT  # noqa: E402
from model_fixtures import gemma2, generate, llama, model, prompt  # noqa: E402, F401

PAGES = dict(max_tokens=256, page_tokens=8)


def forward(model, ids, cache):
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=True, **{cache_keyword(model): cache}).logits


# ---- the same text


@pytest.mark.parametrize("who", ["model", "lehr"])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_text_is_that_of_the_models_own_cache(model, who, batch):
    ids = prompt(70, batch)
    wanted = generate(model, ids, 50)
    with lehr.hf.LehrCache(model, sequences=batch, prompt=who, max_tokens=256 * batch) as cache:
        assert torch.equal(generate(model, ids, 50, cache), wanted)
        assert cache.get_seq_length() == 119


@pytest.mark.parametrize("select", ["all", "topk:40%", "mass:0.9"])
def test_a_quarter_of_the_hbm_gives_the_same_bits(model, select):
    ids = prompt(100, 2)
    feed = prompt(30, 2, seed=9)
    logits, moved = [], []
    for hbm in (None, "25%"):
        with lehr.hf.LehrCache(model, sequences=2, hbm=hbm, select=select, prompt="lehr", max_tokens=400,
                               page_tokens=8) as cache:
            out = [forward(model, ids, cache)] + [forward(model, feed[:, i:i + 1], cache) for i in range(30)]
            logits.append(torch.cat(out, 1))
            moved.append(cache.runtime.moved())
    assert torch.equal(logits[0], logits[1])
    assert moved[0].read_in_place == 0
    assert moved[1].moved_pages > moved[0].moved_pages and moved[1].read_in_place > 0


def test_nvme_below_host_gives_the_same_bits(model, tmp_path):
    ids, feed = prompt(100), prompt(20, seed=9)
    logits = []
    for tiers in ({}, dict(hbm="20%", host="40 pages", nvme="400 pages", nvme_path=str(tmp_path))):
        with lehr.hf.LehrCache(model, prompt="lehr", **PAGES, **tiers) as cache:
            out = [forward(model, ids, cache)] + [forward(model, feed[:, i:i + 1], cache) for i in range(20)]
            logits.append(torch.cat(out, 1))
            below = cache.runtime.moved().read_below
    assert torch.equal(logits[0], logits[1]) and below > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_models(dtype):
    model = lehr.hf.enable(llama().to(dtype))
    ids = prompt(60)
    own, cache = DynamicCache(config=model.config), lehr.hf.LehrCache(model, **PAGES)
    with cache:
        for part in (ids[:, :50], ids[:, 50:55], ids[:, 55:56], ids[:, 56:57]):
            a, b = forward(model, part, own).float(), forward(model, part, cache).float()
            assert (a - b).abs().max() < 0.03 * a.abs().max()


def test_sliding_layers_keep_the_models_own_cache():
    model = lehr.hf.enable(gemma2())
    ids = prompt(70)
    wanted = generate(model, ids, 40)
    with lehr.hf.LehrCache(model, hbm="40%", **PAGES) as cache:
        assert cache.pool.served == [1, 3]
        assert torch.equal(generate(model, ids, 40, cache), wanted)


def test_eager_attention_is_the_yardstick():
    """Not the function under test on both sides: logits against the model's eager attention, without any cache."""
    plain = llama()
    plain.set_attn_implementation("eager")
    model = lehr.hf.enable(llama())
    ids = prompt(90)
    with torch.inference_mode():
        wanted = plain(input_ids=ids, use_cache=False).logits
    with lehr.hf.LehrCache(model, prompt="lehr", hbm="25%", **PAGES) as cache:
        parts = [forward(model, ids[:, a:b], cache) for a, b in ((0, 40), (40, 41), (41, 57), (57, 58), (58, 90))]
    assert torch.allclose(torch.cat(parts, 1), wanted, atol=2e-4, rtol=1e-4)


# ---- going back, going on, several at once


def test_crop_reset_and_a_second_turn(model):
    ids, more = prompt(50), prompt(11, seed=5)
    with lehr.hf.LehrCache(model, **PAGES) as cache:
        first = generate(model, ids, 20, cache)
        turn = torch.cat([first, more], 1)  # the last drawn token is not in the cache yet
        assert torch.equal(generate(model, turn, 20, cache), generate(model, turn, 20))
        own = DynamicCache(config=model.config)
        forward(model, turn[:, :60], own)
        cache.crop(60 - cache.get_seq_length())
        assert cache.get_seq_length() == 60
        a, b = (forward(model, turn[:, 60:70], c) for c in (own, cache))
        assert torch.allclose(a, b, atol=2e-4, rtol=1e-4)
        cache.reset()
        assert cache.get_seq_length() == 0
        assert torch.equal(generate(model, ids, 20, cache), first)


def test_beams(model):
    ids = prompt(40)
    wanted = generate(model, ids, 20, num_beams=3)
    with lehr.hf.LehrCache(model, sequences=3, max_tokens=400, page_tokens=8) as cache:
        assert torch.equal(generate(model, ids, 20, cache, num_beams=3), wanted)


def test_several_caches_of_one_pool_take_turns(model):
    with lehr.hf.Pool(model, sequences=4, hbm="25%", max_tokens=800, page_tokens=8) as pool:
        prompts = [prompt(20 + 13 * i, seed=i) for i in range(4)]
        wanted = [generate(model, p, 25)[:, p.shape[1]:] for p in prompts]
        caches = [lehr.hf.LehrCache(model, pool=pool) for _ in prompts]
        texts, feed = [[] for _ in prompts], list(prompts)
        for _ in range(25):
            for i, cache in enumerate(caches):
                feed[i] = forward(model, feed[i], cache)[:, -1:].argmax(-1)
                texts[i].append(feed[i])
        for text, want in zip(texts, wanted):
            assert torch.equal(torch.cat(text, 1), want)
        caches[1].close()  # another takes its place
        again = lehr.hf.LehrCache(model, pool=pool)
        assert torch.equal(generate(model, prompts[1], 25, again)[:, prompts[1].shape[1]:], wanted[1])


def test_forks_share_and_part(model):
    ids = prompt(45)
    with lehr.hf.Pool(model, sequences=2, **PAGES) as pool:
        cache = lehr.hf.LehrCache(model, pool=pool)
        forward(model, ids, cache)
        fork = cache.fork()
        for seed in range(6, 14):
            for c, s in ((cache, seed), (fork, seed + 50)):
                forward(model, prompt(1, seed=s), c)
        own = DynamicCache(config=model.config)
        forward(model, torch.cat([ids, *[prompt(1, seed=s + 50) for s in range(6, 14)]], 1), own)
        last = prompt(1, seed=99)
        assert torch.allclose(forward(model, last, fork), forward(model, last, own), atol=2e-4, rtol=1e-4)


# ---- what is refused


def refused(call, reason=None, match=None):
    with pytest.raises(lehr.LehrError, match=match) as e:
        call()
    assert reason is None or e.value.reason == reason
    return e.value


def test_padding_is_refused_and_leaves_the_cache_usable(model):
    ids = prompt(30)
    padded = torch.cat([torch.full((1, 4), 96), ids], 1)
    with lehr.hf.LehrCache(model, **PAGES) as cache:
        # generate() infers a mask with zeros from pad tokens in the prompt
        refused(lambda: model.generate(padded, max_new_tokens=5, past_key_values=cache, pad_token_id=96), "mask", "zeros")
        assert cache.get_seq_length() == 0
        assert torch.equal(generate(model, ids, 10, cache), generate(model, ids, 10))


def test_a_model_that_was_not_enabled():
    refused(lambda: lehr.hf.LehrCache(llama()), match="enable")


def test_another_models_cache(model):
    other = lehr.hf.enable(llama(1, num_hidden_layers=4))
    wider = lehr.hf.enable(llama(1, num_key_value_heads=3, num_attention_heads=6))
    with lehr.hf.LehrCache(model, **PAGES) as cache:
        refused(lambda: forward(lehr.hf.enable(llama(2)), prompt(9), cache), "layout_mismatch", "another model")
        refused(lambda: forward(wider, prompt(9), cache), "layout_mismatch")
        with pytest.raises((lehr.LehrError, IndexError)):
            forward(other, prompt(9), cache)
        cache.abandon()
        assert cache.get_seq_length() == 0
        refused(lambda: lehr.hf.LehrCache(other, pool=cache.pool), "layout_mismatch")
        assert torch.equal(generate(model, prompt(9), 5, cache), generate(model, prompt(9), 5))


def test_wrong_dtypes_devices_and_sizes(model):
    refused(lambda: lehr.hf.Pool(llama().double(), **PAGES), "layout_mismatch", "dtype")
    refused(lambda: lehr.hf.Pool(model, machine="cuda", **PAGES), match="CPU")
    refused(lambda: lehr.hf.Pool(llama(head_dim=10), **PAGES), match="head_dim")
    for hbm in ("0%", "101%", "x%"):
        refused(lambda: lehr.hf.Pool(model, hbm=hbm, **PAGES), "out_of_range")
    refused(lambda: lehr.hf.Pool(model, hbm="1 pages", **PAGES), "over_budget")
    refused(lambda: lehr.hf.Pool(model, policy="none-such", **PAGES), match="none-such")
    refused(lambda: lehr.hf.LehrCache(model, select="best"), "out_of_range")
    refused(lambda: lehr.hf.LehrCache(model, prompt="nobody"))


def test_more_tokens_than_the_pool_holds(model):
    with lehr.hf.LehrCache(model, max_tokens=64, page_tokens=8) as cache:
        refused(lambda: forward(model, prompt(200), cache), "no_space")
        assert cache.get_seq_length() == 0
        assert torch.equal(generate(model, prompt(20), 10, cache), generate(model, prompt(20), 10))


def test_another_batch(model):
    with lehr.hf.LehrCache(model, sequences=2, **PAGES) as cache:
        forward(model, prompt(9), cache)
        refused(lambda: forward(model, prompt(1, 2), cache), "layout_mismatch", "2 sequences")


def test_a_forward_that_breaks_off_leaves_the_cache_as_it_was(model):
    ids = prompt(30)
    with lehr.hf.LehrCache(model, **PAGES) as cache:
        forward(model, ids, cache)

        def stop(*_):
            raise KeyboardInterrupt

        hook = model.model.layers[1].mlp.register_forward_hook(stop)
        for part in (prompt(1, seed=8), prompt(13, seed=8)):
            with pytest.raises(KeyboardInterrupt):
                forward(model, part, cache)
        hook.remove()
        own = DynamicCache(config=model.config)
        forward(model, ids, own)
        for i in range(12):
            part = prompt(1, seed=20 + i)
            assert torch.allclose(forward(model, part, cache), forward(model, part, own), atol=2e-4, rtol=1e-4)
        assert cache.get_seq_length() == 42


def test_two_threads_on_one_cache(model):
    """One is inside a forward, the other knocks: it is refused, the first goes on."""
    inside, go_on, errors = threading.Event(), threading.Event(), []

    def wait(*_):
        inside.set()
        assert go_on.wait(60)

    with lehr.hf.LehrCache(model, **PAGES) as cache:
        hook = model.model.layers[1].mlp.register_forward_hook(wait)
        results = []
        thread = threading.Thread(target=lambda: results.append(forward(model, prompt(20), cache)))
        thread.start()
        assert inside.wait(60)
        hook.remove()
        try:
            forward(model, prompt(3), cache)
        except lehr.LehrError as error:
            errors.append(error)
        go_on.set()
        thread.join()
        assert len(errors) == 1 and errors[0].reason == "pending"
        assert len(results) == 1 and cache.get_seq_length() == 20


# ---- the recorder


def eager_shares(model, trace):
    """Shares [T, L, H, P] of an eager model over all of the trace's tokens."""
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    with torch.inference_mode():
        maps = plain(input_ids=torch.tensor(trace.tokens[None].astype(np.int64)), output_attentions=True,
                     use_cache=False).attentions
    heads, ratio = trace.kv_heads, trace.q_heads // trace.kv_heads
    mean = np.zeros(trace.mass.shape)
    peak = np.zeros(trace.mass.shape)
    for t in range(trace.steps):
        for i, layer in enumerate(trace.layer_ids):
            row = maps[layer][0, :, trace.prompt_tokens + t].double().numpy().reshape(heads, ratio, -1)
            for page in range(trace.pages_at(t)):
                share = row[:, :, page * trace.page_tokens:(page + 1) * trace.page_tokens].sum(-1)
                mean[t, i, :, page] = share.mean(1)
                peak[t, i, :, page] = share.max(1)
    return mean, peak


def agrees(codes, shares, pages_at):
    wanted = lehr.codes_of(shares).astype(int)
    # Shares near the end of the scale are smaller than what float32 keeps of a softmax.
    near = (wanted < 230) | (codes < 230)
    assert np.abs(codes.astype(int) - wanted)[near].max() <= 1
    for t in range(codes.shape[0]):
        assert (codes[t, :, :, pages_at(t):] == 255).all()


@pytest.mark.parametrize("make", [llama, gemma2])
def test_recorded_mass_is_that_of_the_eager_softmax(tmp_path, make):
    model = make()
    out = lehr.hf.record(model, prompt(61), 25, tmp_path / "t.safetensors.zst", page_tokens=8, workload="test",
                         ignore_eos=True)
    trace = lehr.Trace.open(out)
    assert (trace.steps, trace.prompt_tokens, trace.workload) == (25, 61, "test")
    assert trace.layer_ids == list(range(trace.model_layers))
    mean, peak = eager_shares(model, trace)
    agrees(trace.mass, mean, trace.pages_at)
    agrees(trace.peak, peak, trace.pages_at)
    assert lehr.replay(trace, hbm="60%", warmup=1)["steps"] == 25


def test_recorded_qkv_gives_the_recorded_mass(tmp_path):
    model = llama()
    out = lehr.hf.record(model, prompt(40), 12, tmp_path / "t.safetensors", page_tokens=8, layers=[0, 2], qkv=True,
                         hbm="40%", ignore_eos=True)
    trace = lehr.Trace.open(out)
    assert trace.layer_ids == [0, 2] and trace.k.shape == (2, 2, 52, 16)
    for t in (0, 11):
        context = 41 + t
        for i in range(2):
            mean, _ = page_shares(torch.tensor(trace.q[t, i])[None, :, None], torch.tensor(trace.k[i])[None, :, :context],
                                  None, None, None, context, 8)
            codes = lehr.codes_of(mean[0])
            strong = codes < 80  # half precision moves small shares further than a code
            assert np.abs(codes.astype(int) - trace.mass[t, i, :, :codes.shape[1]])[strong].max() <= 1


def test_sampling_is_repeatable_and_ends_at_an_end_token(tmp_path):
    model = llama()
    texts = []
    for seed in (1, 1, 2):
        out = lehr.hf.record(model, prompt(20), 20, tmp_path / "t.safetensors",
                             sampling=Sampling(2.0, 20, 0.95, seed), ignore_eos=True)
        texts.append(lehr.Trace.open(out).tokens.tolist())
    assert texts[0] == texts[1] != texts[2]
    end = texts[0][20 + 5]
    first = texts[0][21:].index(end) + 1  # the first token may be an end token: a trace has a step
    out = lehr.hf.record(model, prompt(20), 20, tmp_path / "t.safetensors", sampling=Sampling(2.0, 20, 0.95, 1),
                         eos=[end])
    assert lehr.Trace.open(out).steps == first


def test_forced_tokens_are_fed(tmp_path):
    forced = prompt(9, seed=77)[0].tolist()
    out = lehr.hf.record(llama(), prompt(20), 9, tmp_path / "t.safetensors", forced=forced)
    trace = lehr.Trace.open(out)
    assert trace.tokens[20:].tolist() == forced and trace.extra["forced_steps"] == "9"


def test_recordings_that_cannot_be(tmp_path):
    out = tmp_path / "t.safetensors"
    model = llama()
    for call in (lambda: lehr.hf.record(model, [], 3, out), lambda: lehr.hf.record(model, [97], 3, out),
                 lambda: lehr.hf.record(model, [1], 0, out), lambda: lehr.hf.record(model, [1], 3, out, layers=[3]),
                 lambda: lehr.hf.record(model, [1], 3, out, forced=[1]),
                 lambda: lehr.hf.record(model, [1], 3, out, sampling=Sampling(-1.0)),
                 lambda: lehr.hf.record(gemma2(), [1], 3, out, layers=[0], qkv=True),
                 lambda: lehr.hf.record(model, [1], 3, tmp_path / "none" / "t.safetensors")):
        refused(call)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_recording_leaves_nothing(tmp_path):
    def stop(done, _):
        if done == 3:
            raise KeyboardInterrupt

    model = llama()
    with pytest.raises(KeyboardInterrupt):
        lehr.hf.record(model, prompt(20), 9, tmp_path / "t.safetensors", progress=stop)
    assert list(tmp_path.iterdir()) == []
    assert not any(hasattr(m, "lehr_watcher") for m in model.modules())


def test_the_command_says_what_is_wrong(tmp_path):
    text = tmp_path / "p.txt"
    text.write_text("hello")
    for arguments, said in ((["--model", "/nowhere/m.gguf", "--prompt", str(text)], "no such file"),
                            (["--model", "/nowhere", "--prompt", str(text)], "no such folder"),
                            (["--model", "/nowhere", "--prompt", str(tmp_path / "none")], "none")):
        done = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n"
                               "from lehr.__main__ import main; sys.exit(main(sys.argv[1:]))", "record",
                               str(tmp_path / "t.safetensors"), "--steps", "3", *arguments],
                              capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["p.txt"]


def test_the_bench_of_caches_runs(tmp_path):
    bench = ROOT / "tools" / "python" / "engines_bench.py"
    out = tmp_path / "b.json"
    done = subprocess.run([sys.executable, str(bench), "--tiny", "--device", "cpu", "--batches", "2", "--steps", "4",
                           "--json", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs = json.loads(out.read_text())["results"]["2"]["runs"]
    assert set(runs) >= {"DynamicCache", "LehrCache, dense, all in HBM", "LehrCache, topk:30%, HBM 25%"}
    assert all(run["step_s"] > 0 for rows in runs.values() for run in rows)
