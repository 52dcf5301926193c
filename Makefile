# Every target works on a clean checkout: the virtual environment is made when it is missing or out of date.

PYTHON  ?= python3
BIN     := .venv/bin
STAMP   := .venv/.installed
CHECKED := $(wildcard src tests scripts bench examples)

.DEFAULT_GOAL := help
.PHONY: help demo test lint browser chaos bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --clear: a package that was dropped from pyproject.toml must not linger in the environment.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,web]'
	@touch $@

demo: $(STAMP)  ## a small GPT on four devices, each of which is killed once, and the same without failures
	$(BIN)/everstep demo

test: $(STAMP)  ## run the tests; ARGS="-k name" passes options to pytest
	$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

lint: $(STAMP)  ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)

# The shell has Perfetto's trace processor in it.
CHROMIUM := chromium chromium-driver chromium-shell

browser:  ## Debian's chromium for the tests of pages and traces, which are skipped without it
	@dpkg -s $(CHROMIUM) >/dev/null 2>&1 || \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends $(CHROMIUM); } >/dev/null || \
		echo "chromium cannot be installed here: tests that do not find what they need of it are skipped"

# Random failures for so many minutes, in an order that the seed gives.
MINUTES ?= 10
SEED    ?= 0

# So often every process of a job is killed at once, at a moment that the seed gives.
BLACKOUTS ?= 50

# What the explorer tries then. A state takes about 60 µs on one core and 0.5 kB, so the bound keeps a scope within a
# quarter of an hour; one that reaches it says that it is not a proof. STATES=0 takes the bound away, SCOPES= leaves the
# explorer out.
STATES ?= 10000000
SCOPES ?= \
	"--ranks 3 --standby 1 --failures 2 --steps 1 --kind crash" \
	"--ranks 4 --standby 0 --failures 1 --steps 1" \
	"--ranks 4 --standby 0 --failures 1 --steps 1 --mesh 2x2"

chaos: $(STAMP)  ## random failures for MINUTES=10 from SEED=0, BLACKOUTS=50 of whole jobs, the explorer's large SCOPES
	$(BIN)/python -m everstep.chaos.matrix --minutes $(MINUTES) --seed $(SEED)
	$(BIN)/python -m everstep.chaos.blackouts --times $(BLACKOUTS) --seed $(SEED)
	@set -e; for scope in $(SCOPES); do \
		printf '\n=== explore %s --max-states %s ===\n' "$$scope" "$(STATES)"; \
		$(BIN)/python -m everstep.sim.explore $$scope --max-states $(STATES); \
	done

bench: $(STAMP)  ## what detection, recovery and protection cost, one table each; takes long
	@set -e; for name in core step steady detect recovery restore sharded checkpoint persist page; do \
		printf '\n=== bench.%s ===\n' "$$name"; \
		$(BIN)/python -m bench.$$name; \
	done

clean:  ## remove the virtual environment, caches and build products
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
