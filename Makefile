# Everything runs in .venv, which is made on first use. Start with `make help`.

VENV := .venv
BIN := $(VENV)/bin
# Written last, inside the environment: an interrupted set-up leaves none and starts afresh.
STAMP := $(VENV)/.complete
# The same for the peers of the benchmark, which nothing else needs.
PEERS := $(VENV)/.peers
OUT ?= runs/demo
BENCH ?= --preset full

# Running it, not looking it up: a version manager's shim can be there and lead nowhere.
ifndef PYTHON
PYTHON := $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
endif

.PHONY: help demo test check lint format bench clean

help:  ## Print this list.
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-10s %s\n", $$1, $$2}'
	@echo "PYTHON=... chooses the interpreter (3.10 or newer; the pinned versions are for 3.11)."

demo: $(STAMP)  ## Draw soft top-k at several temperatures (OUT=runs/demo).
	@$(BIN)/python examples/temperatures.py --out "$(OUT)"
	@for file in "$(OUT)"/*; do echo "The picture is $$file"; done

test: $(STAMP)  ## Run the tests and the doctests, except the slow ones.
	@$(BIN)/python -m pytest

check: lint test  ## Everything a change has to pass: lint, then test.

lint: $(STAMP)  ## Check style, formatting and types.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)  ## Format the code and apply the safe lint fixes.
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format .

bench: $(PEERS)  ## Compare with every peer, about 15 minutes (BENCH='--preset quick' for 2).
	@$(BIN)/softtopk bench $(BENCH)

clean:  ## Remove the environment, caches and build outputs; runs/ stays.
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no '$(PYTHON)' here: install Python 3.11 or run make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "softtopk needs Python 3.10 or newer, '$(PYTHON)' is $$($(PYTHON) -V 2>&1):" \
	    "run make PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) -V); this takes a minute or two."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "Set-up done."

$(PEERS): $(STAMP)
	@echo "Installing the peers of the benchmark."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@
