#!/bin/sh
# Builds and runs the C++ tests under the given CMake presets.
# Usage: run_cpp_tests.sh BIN_DIR PRESET...  (BIN_DIR holds cmake, ctest and ninja)
set -eu
PATH=$(cd "$1" && pwd):$PATH
shift
for preset in "$@"; do
  cmake --preset "$preset" -G Ninja >/dev/null
  cmake --build --preset "$preset"
  ctest --preset "$preset"
done
