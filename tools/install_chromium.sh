#!/bin/sh
# The tests of the chat page drive Debian's Chromium.
set -eu
if command -v chromium >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    chromium fonts-dejavu-core >/dev/null
else
  echo "the tests of the chat page need Chromium: apt-get install chromium" >&2
  exit 1
fi
