# SPDX-License-Identifier: Apache-2.0
"""A real small model, end to end. LEHR_TEST_MODEL names it; tools/check-engines sets it."""
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import lehr  # noqa: E402
import lehr.hf  # noqa: E402
from test_hf import agrees, eager_shares  # noqa: E402

pytestmark = [pytest.mark.real_model,
              pytest.mark.skipif("LEHR_TEST_MODEL" not in os.environ, reason="LEHR_TEST_MODEL is not set")]

QUESTION = ("Here is what a runtime does with the pages of a cache: it keeps each page in the memory where it costs "
            "the least time, moves pages while attention runs, and never changes a result by where a page lies. "
            "Explain in three sentences why a page that is read often should stay close to the processor.")


@pytest.fixture(scope="module")
def real():
    where = os.environ["LEHR_TEST_MODEL"]
    return lehr.hf.enable(lehr.hf.load(where)), lehr.hf.load_tokenizer(where)


@pytest.fixture(scope="module")
def ids(real):
    text = real[1].apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True,
                                       tokenize=False)
    return real[1](text, add_special_tokens=False, return_tensors="pt")["input_ids"]


def test_greedy_text_with_a_quarter_of_the_hbm(real, ids):
    model, _ = real
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    wanted = model.generate(ids, **options)
    texts, moved = [], []
    for hbm in (None, "25%"):
        with lehr.hf.LehrCache(model, hbm=hbm, max_tokens=192) as cache:
            texts.append(model.generate(ids, past_key_values=cache, **options))
            moved.append(cache.runtime.moved())
    assert torch.equal(texts[0], wanted) and torch.equal(texts[1], wanted)
    assert moved[1].moved_pages > 10 * moved[0].moved_pages > 0
    print(moved[1])


def test_a_quarter_of_the_hbm_gives_the_same_bits(real, ids):
    model, _ = real
    logits = []
    for hbm in (None, "25%"):
        with lehr.hf.LehrCache(model, hbm=hbm, max_tokens=192, prompt="lehr") as cache, torch.inference_mode():
            out = [model(input_ids=ids, past_key_values=cache).logits[:, -1]]
            for _ in range(8):
                out.append(model(input_ids=out[-1].argmax(-1)[None], past_key_values=cache).logits[:, -1])
            logits.append(torch.stack(out))
    assert torch.equal(logits[0], logits[1])


def test_a_recorded_trace_agrees_with_the_eager_softmax(real, ids, tmp_path):
    model, _ = real
    out = lehr.hf.record(model, ids, 12, tmp_path / "t.safetensors.zst", ignore_eos=True, hbm="25%")
    trace = lehr.Trace.open(out)
    assert trace.steps == 12 and trace.layer_ids == list(range(30))
    mean, peak = eager_shares(model, trace)
    agrees(trace.mass, mean, trace.pages_at)
    agrees(trace.peak, peak, trace.pages_at)
    assert np.abs(trace.shares().sum(-1) - 1).max() < 0.1
    report = lehr.compare(trace, policies=["lru", "lfu"], hbm="25%", warmup=2)
    assert len(report["cells"][0]["policies"]) == 2


def test_quality_is_measured_on_the_same_tokens(real):
    from lehr.hf import quality

    rows, itself = quality.measure(*real, context=40, scored=6, depths=[50], facts=1)
    dense = rows[0]
    assert [row.rule for row in rows] == [name for name, _, _ in quality.RULES]
    assert abs(dense.nll - itself.nll) < 1e-2 and dense.read == dense.dense_read > 0
    assert all(row.asked == 1 and row.scored == 6 and row.read <= row.dense_read for row in rows)
    assert rows[3].read <= rows[2].read <= dense.read
