#!/bin/sh
# Puts pillow-simd in the place of Pillow: both fill the same PIL folder, so only one may be there.
# Usage: install_pillow_simd.sh PYTHON. Never fails: without its headers Pillow stays.
set -u
python=$1
pip="$python -m pip --disable-pip-version-check"
packages="libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev"

have_headers() {
  for header in jpeglib.h zlib.h webp/decode.h; do
    echo "#include <stdio.h>
#include <$header>" | ${CC:-cc} -E -x c - >/dev/null 2>&1 || return 1
  done
}

if $pip show -q pillow-simd 2>/dev/null && ! $pip show -q pillow 2>/dev/null; then exit 0; fi
if ! have_headers && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages) >/dev/null 2>&1
fi
if ! have_headers; then
  echo "pillow-simd left out, Pillow is used: its headers are missing (apt-get install $packages)"
  exit 0
fi
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
if $pip wheel -q --no-deps --no-binary pillow-simd -w "$wheels" "pillow-simd>=12.1"; then
  $pip uninstall -q -y pillow
  $pip install -q --no-deps "$wheels"/*.whl
else
  echo "pillow-simd did not build, Pillow is used"
fi
