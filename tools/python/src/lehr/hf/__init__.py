# SPDX-License-Identifier: Apache-2.0
"""Lehr in Hugging Face transformers: a cache, its attention, and a recorder of attention traces.

  model = lehr.hf.load("path/to/model")             # a folder or a .gguf file
  lehr.hf.enable(model)
  with lehr.hf.LehrCache(model, hbm="25%", max_tokens=4096) as cache:
      model.generate(**inputs, past_key_values=cache)
"""
from ._versions import check_versions, versions

check_versions()

from .attention import enable  # noqa: E402  (after the versions are known to serve)
from .cache import LehrCache, Pool  # noqa: E402
from .models import load, load_tokenizer  # noqa: E402
from .recorder import record  # noqa: E402

__all__ = ["LehrCache", "Pool", "enable", "load", "load_tokenizer", "record", "versions"]
