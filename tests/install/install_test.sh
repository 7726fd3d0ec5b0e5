#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh CMAKE BUILD_DIR SOURCE_DIR [SANITIZERS]: the installed package through find_package and
# pkg-config, in C11 and C++20; and a control that must not be found.
set -euo pipefail
cmake=$1 build=$2 source=$3 sanitize=${4:-}
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=()
if [ -n "$sanitize" ]; then flags=(-fsanitize="$sanitize"); fi

DESTDIR='' "$cmake" --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
test -f "$work/prefix/include/lehr.h"
# Nothing but the C header is installed, and nothing names the source tree.
if [ "$(find "$work/prefix/include" -type f | wc -l)" != 1 ]; then
  echo "more than one header is installed"; exit 1
fi
if grep -rl "$source" "$work/prefix" --include='*.cmake' --include='*.pc' --include='*.h'; then
  echo "an installed file names the source tree"; exit 1
fi

cp -r "$here/user" "$work/user"
"$cmake" -S "$work/user" -B "$work/cmake-build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_C_FLAGS="${flags[*]}" -DCMAKE_CXX_FLAGS="${flags[*]}" >"$work/log" || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/cmake-build" >"$work/log" || { cat "$work/log"; exit 1; }
"$work/cmake-build/user_c"
"$work/cmake-build/user_cpp"

# A moved prefix still works, and pkg-config gives what is needed.
mv "$work/prefix" "$work/moved"
libdir=$(dirname "$(find "$work/moved" -name lehr.pc)")
export PKG_CONFIG_PATH=$libdir
test "$(pkg-config --modversion lehr)" = "$(sed -n 's/^project(lehr VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")"
read -r -a found <<<"$(pkg-config --define-prefix --cflags --libs lehr)"
runpath=$(pkg-config --define-prefix --variable=libdir lehr)
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "${flags[@]}" "$work/user/user.c" "${found[@]}" -Wl,-rpath,"$runpath" -o "$work/pc_c"
"$work/pc_c"
c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror "${flags[@]}" "$work/user/user.cpp" "${found[@]}" -Wl,-rpath,"$runpath" -o "$work/pc_cpp"
"$work/pc_cpp"

# The control: without the prefix the same project does not configure.
if "$cmake" -S "$work/user" -B "$work/control" -DCMAKE_PREFIX_PATH="$work/nowhere" >/dev/null 2>&1; then
  echo "the package was found although it is not installed there"; exit 1
fi
echo "install: ok"
