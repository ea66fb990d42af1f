# Two commands: `make run` shows what brimful does, `make test` tests it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLAIN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: plain setup run test test-long lint types tests security audit test-environments snapshots steps notebooks pictures format clean

# What brimful needs, which is all that `make run` installs.
plain: $(PLAIN)

# And what tests, studio and notebooks need: the whole set-up for work on brimful.
setup: $(DEV)

# torch first, alone and pinned: anything else may pull a build for another machine. setuptools builds brimful.
# pip compiles what it installs, but for what stays where it is.
$(PLAIN): constraints.txt pyproject.toml src/brimful/planning/_replay.c
	@echo "Installing torch and what brimful needs into $(VENV), once: about 75 packages, a few minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) "$$(grep '^torch==' constraints.txt)" "$$(grep '^setuptools==' constraints.txt)"
	@$(PIP) --no-build-isolation --constraint constraints.txt --editable .
	@$(BIN)/python -m compileall -q src/brimful
	@touch $@

$(DEV): $(PLAIN)
	@echo "Installing the development tools into $(VENV), once: tests, types, notebooks"
	@$(PIP) --no-build-isolation --constraint constraints.txt --editable ".[dev]"
	@touch $@

run: plain
	@echo "brimful run quickstart: plan, train a small GPT on this machine, write a text, evaluate, report"
	@$(BIN)/brimful run quickstart

# Types are checked beside the tests, which leave a core free now and then.
test: setup lint
	@$(MAKE) -j 2 types tests

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: setup
	$(BIN)/mypy

# Bytecode is kept whatever the environment says: tests are collected and processes start sooner.
tests test-long snapshots steps notebooks: export PYTHONDONTWRITEBYTECODE =

# Three processes for two cores: browsers, kernels and signals are waited for.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=10

tests: setup
	$(PYTEST) -m "not long"

# The tests that `make test` leaves out, as they take long by their nature (tests/README.md).
test-long: setup
	$(PYTEST) -m long

# What docs/security.md and docs/fault-cases.md claim: the tests that they name.
security: setup
	$(BIN)/python -m pytest -m security -n 2 --dist loadfile --no-loadscope-reorder

# Known weaknesses of the pinned libraries, and the licences of what the wheel brings along.
audit: setup
	$(BIN)/python benchmarks/audit.py

# What a user installs, without constraints.txt: fresh environments with the newest and the oldest libraries, on every
# Python of this machine; 20 minutes and some 25 GB. ENVIRONMENTS="--only newest-3.12": one of them.
test-environments: setup
	$(BIN)/python benchmarks/environments.py $(ENVIRONMENTS)

# Store anew the texts that tests compare (tests/README.md); `make snapshots TESTS=tests/cli` for some.
TESTS ?= tests
snapshots: setup
	$(BIN)/python -m pytest $(TESTS) -n 2 --dist loadfile --no-loadscope-reorder --snapshot-update
	git --no-pager diff --stat -- '*.ambr'

# Store the traces of steps that tests plan and the repository does not hold yet (tests/README.md).
steps: setup
	$(BIN)/python -m pytest $(TESTS) -n 2 --dist loadfile --no-loadscope-reorder --store-steps

# What `make test` and `make test-long` run of them, alone.
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
