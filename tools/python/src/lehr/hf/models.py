# SPDX-License-Identifier: Apache-2.0
"""Models and tokenizers from a local folder, a .gguf file, or a name (which may be looked up on the network)."""
from __future__ import annotations

import os
import pathlib
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .._errors import LehrError


def _where(model: str) -> tuple[str, dict[str, Any]]:
    path = pathlib.Path(model)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise LehrError("not_found", "none", f"{model}: no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if not (path / "config.json").exists() and len(files) == 1:
            return str(path), {"gguf_file": files[0].name}
        return str(path), {"local_files_only": True}
    if os.sep in model and model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise LehrError("not_found", "none", f"{model}: no such folder or .gguf file")
    return model, {}


def _guarded(what: str, model: str, call: Any) -> Any:
    try:
        return call()
    except (OSError, ValueError, ImportError, KeyError, NotImplementedError) as error:
        raise LehrError("not_found", "none", f"{what} of {model}: {error}") from error


def load(model: str, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """A causal model, in evaluation mode. dtype: float32 for .gguf files (transformers dequantises them), else the
    model's own."""
    where, options = _where(model)
    if dtype is None and "gguf_file" in options:
        dtype = torch.float32
    return _guarded("the model", model, lambda: AutoModelForCausalLM.from_pretrained(
        where, dtype=dtype or "auto", **options)).eval()


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    where, options = _where(model)
    return _guarded("the tokenizer", model, lambda: AutoTokenizer.from_pretrained(where, **options))
