#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No marks of unfinished work in sources, an SPDX line in each, names of tests that ctest can run.
set -euo pipefail
status=0
sources() { git ls-files -z '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh' '*.py' '*.cmake' '*CMakeLists.txt' 'tools/checks/*.sh'; }
if sources | xargs -0 grep -nE '\b(TO''DO|FIX''ME|XX''X|HA''CK)\b'; then status=1; fi
missing=$(sources | xargs -0 grep -L 'SPDX-License-Identifier: Apache-2.0' || true)
if [ -n "$missing" ]; then printf 'no SPDX line: %s\n' $missing; status=1; fi
# ctest lists would split such a name, and run neither half.
if git ls-files -z 'tests/*.cpp' | xargs -0 grep -lPzo 'TEST_CASE\(\s*"[^"]*;'; then
  echo "names of tests with a semicolon"
  status=1
fi
exit $status
