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

TEXT ?=
OUT ?= out/say.wav
export TEXT OUT

.PHONY: help demo say test check format lock clean

help:
	@echo "make demo             speak one sentence to out/demo.wav"
	@echo "make say TEXT='...'   speak any text to $(OUT)"
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

test: $(TESTING)
	$(BIN)/python -m pytest

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
	@echo "Setting up $(VENV) with $(PYTHON): a few minutes, about 2 GB" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-deps -r requirements/cpu.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.runtime-*
	@touch $@

$(TESTING): $(RUNTIME)
	@echo "Adding the test tools to $(VENV)" >&2
	@$(PIP) install --no-deps -r requirements/test.lock
	@rm -f $(VENV)/.testing-*
	@touch $@
