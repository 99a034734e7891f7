#!/bin/sh
# Puts pillow-simd in the place of Pillow: both fill the same PIL folder, so only one may be there,
# and whatever pip did before, this ends with one of them whole.
# Usage: install_pillow_simd.sh PYTHON WHEEL_DIR. Without pillow-simd's headers Pillow stays.
set -u
python=$1
wheels=$2
pip="$python -m pip --disable-pip-version-check"
packages="libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev"

have_headers() {
  for header in jpeglib.h zlib.h webp/decode.h tiffio.h; do
    printf '#include <stdio.h>\n#include <%s>\n' "$header" | ${CC:-cc} -E -x c - >/dev/null 2>&1 ||
      return 1
  done
}

has() { $pip show -q "$1" >/dev/null 2>&1; }
keep_pillow() {
  echo "pillow-simd left out, Pillow is used: $1"
  exit 0
}

if has pillow-simd && ! has pillow; then exit 0; fi
if ! ls "$wheels"/pillow_simd-*.whl >/dev/null 2>&1; then
  if ! have_headers && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages) >/dev/null 2>&1
  fi
  have_headers || keep_pillow "its headers are missing (apt-get install $packages)"
  $pip wheel -q --no-deps --no-binary pillow-simd -w "$wheels" "pillow-simd>=12.1" ||
    keep_pillow "it did not build"
fi
$pip uninstall -q -y pillow pillow-simd &&
  $pip install -q --no-deps --force-reinstall "$wheels"/pillow_simd-*.whl
