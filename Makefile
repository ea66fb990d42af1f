# Two commands: `make run` shows what brimful does, `make test` is all that CI does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test lint types tests snapshots notebooks pictures format clean

setup: $(STAMP)

# torch first, alone and pinned: anything else may pull a build for another machine.
$(STAMP): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

run: setup
	$(BIN)/brimful run quickstart

test: setup lint types tests

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: setup
	$(BIN)/mypy

tests: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10

# Store anew the texts that tests compare (tests/README.md); `make snapshots TESTS=tests/cli` for some.
TESTS ?= tests
snapshots: setup
	$(BIN)/python -m pytest $(TESTS) -n 2 --dist loadfile --no-loadscope-reorder --snapshot-update
	git --no-pager diff --stat -- '*.ambr'

# What `make test` runs of them, alone.
notebooks: setup
	$(BIN)/python -m pytest tests/notebooks -n 2 --dist load

# The pictures of the documents: the tests that drive the pages in Chromium, with their screenshots kept.
pictures: setup
	$(BIN)/brimful run quickstart
	$(BIN)/python -m pytest tests/browser -n 0 --pictures

format: setup
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
