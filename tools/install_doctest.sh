#!/bin/sh
# The C++ tests use doctest (Debian's doctest-dev).
set -eu
if echo '#include <doctest/doctest.h>' | ${CXX:-c++} -E -x c++ - >/dev/null 2>&1; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq doctest-dev >/dev/null
else
  echo "the C++ tests need doctest: apt-get install doctest-dev" >&2
  exit 1
fi
