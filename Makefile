# Every target works on a clean checkout: the virtual environment is made when it is missing or out of date.

PYTHON  ?= python3
BIN     := .venv/bin
STAMP   := .venv/.installed
CHECKED := $(wildcard src tests scripts bench)

.DEFAULT_GOAL := help
.PHONY: help test lint clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --clear: a package that was dropped from pyproject.toml must not linger in the environment.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,web]'
	@touch $@

test: $(STAMP)  ## run the tests; ARGS="-k name" passes options to pytest
	$(BIN)/pytest -n 2 $(ARGS)

lint: $(STAMP)  ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)

clean:  ## remove the virtual environment, caches and build products
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
