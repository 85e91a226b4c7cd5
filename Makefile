# Two commands, each alone on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test lint check bench clean

demo: .venv/.installed
	$(BIN)/highrank demo

test: .venv/.installed-dev
	$(BIN)/python -m pytest --numprocesses 2

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

bench: .venv/.installed
	$(BIN)/highrank bench loss

clean:
	rm -rf .venv dist .mypy_cache .ruff_cache

# The build tools come first and from the constraints, so that no unpinned one is fetched.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[cli]'
	touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $@
