# The environment lives in .venv and follows the locks: a stamp file named by their content says
# whether it is current, so that a second call starts at once.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

stamp = $(VENV)/.$(1)-$(shell cat pyproject.toml $(2) | cksum | cut -d' ' -f1)
RUNTIME := $(call stamp,runtime,requirements/cpu.lock)
TESTING := $(call stamp,testing,requirements/cpu.lock requirements/test.lock)
PAGE := $(call stamp,page,requirements/cpu.lock requirements/demo.lock)

TEXT ?=
OUT ?= out/say.wav
export TEXT OUT

.PHONY: help demo say page browser test check format lock clean

help:
	@echo "make demo             speak one sentence to out/demo.wav"
	@echo "make say TEXT='...'   speak any text to $(OUT)"
	@echo "make page             open a page to type and listen, at http://127.0.0.1:7860"
	@echo "make test             run all tests"
	@echo "make check            ruff, formatting and mypy"
	@echo "make format           let ruff format and fix"
	@echo "make lock             resolve requirements/*.lock anew"

demo: $(RUNTIME)
	@mkdir -p out
	@$(BIN)/voxnative say "The quick brown fox jumps over the lazy dog." -o out/demo.wav --seed 7

say: $(RUNTIME)
	@if [ -z "$$TEXT" ]; then echo "make say: give the text, as in: make say TEXT='Hello there.'" >&2; exit 2; fi
	@mkdir -p "$$(dirname "$$OUT")"
	@$(BIN)/voxnative say -o "$$OUT" -- "$$TEXT"

page: $(PAGE)
	@$(BIN)/voxnative demo

# The page's test needs a browser; on Debian both come from its own packages.
browser:
	@{ command -v chromium || command -v google-chrome; } >/dev/null && command -v chromedriver >/dev/null || { \
		echo "Installing Chromium and its driver for the test of the page" >&2; \
		as_root=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$as_root apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
		$$as_root apt-get -qq install -y chromium chromium-driver >/dev/null; }

test: $(TESTING) $(PAGE) browser
	$(BIN)/python -m pytest -n 2

check: $(TESTING)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(TESTING)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(RUNTIME)
	$(BIN)/python requirements/make_lock.py

clean:
	rm -rf $(VENV) out build *.egg-info

$(RUNTIME):
	@if [ -z "$(PYTHON)" ]; then \
		echo "voxnative needs Python 3.11 or newer; found none (set one with: make PYTHON=/path/to/python3.11)" >&2; exit 1; fi
	@echo "Setting up $(VENV) with $(PYTHON): a few minutes, about 4 GB" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-deps -r requirements/cpu.lock || { \
		echo "If torch==2.13.0+cpu was not found: set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index" >&2; exit 1; }
	@$(PIP) install --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.runtime-*
	@touch $@

$(TESTING): $(RUNTIME)
	@echo "Adding the test tools to $(VENV)" >&2
	@$(PIP) install --no-deps -r requirements/test.lock
	@rm -f $(VENV)/.testing-*
	@touch $@

$(PAGE): $(RUNTIME)
	@echo "Adding the page's packages to $(VENV)" >&2
	@$(PIP) install --no-deps -r requirements/demo.lock
	@rm -f $(VENV)/.page-*
	@touch $@
