# SPDX-License-Identifier: Apache-2.0
"""Lehr: tiered KV caches for transformer inference.

Runtime, Sequence   the step level: real K and V, paged over tiers, and attention over them
Trace, TraceWriter  recorded attention as NumPy arrays
replay, compare     a trace under placement policies on a modelled or real machine
lehr.hf             a cache and a recorder for Hugging Face transformers (needs torch)
"""
from ._errors import LehrError, LibraryError, TraceError
from .runtime import NO_MASS, Moved, Runtime, Selection, Sequence, build_info
from .simulate import compare, replay
from .trace import Trace, TraceWriter, codes_of, shares_of

__version__ = "0.1.0"
__all__ = ["LehrError", "LibraryError", "Moved", "NO_MASS", "Runtime", "Selection", "Sequence", "Trace", "TraceError",
           "TraceWriter", "build_info", "codes_of", "compare", "replay", "shares_of"]
