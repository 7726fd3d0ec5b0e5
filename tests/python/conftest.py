# SPDX-License-Identifier: Apache-2.0
"""The package is tested as it stands in the tree; LEHR_LIBRARY and LEHR_TOOL name what was built."""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "python" / "src"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_configure(config):
    config.addinivalue_line("markers", "real_model: runs the small real model of LEHR_TEST_MODEL")
