#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-format finds nothing to change.
set -euo pipefail
git ls-files -z '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs -0 clang-format --dry-run -Werror
