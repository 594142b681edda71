# Everything runs in .venv, which is made on first use; only the benchmark has an environment of its
# own. Start with `make help`.

VENV := .venv
BIN := $(VENV)/bin
# Written last, inside the environment: an interrupted set-up leaves none and starts afresh.
STAMP := $(VENV)/.complete
# The peers of the benchmark are kept apart: jax, for one, warns where the tests fork.
BENCH_VENV := .venv-bench
PEERS := $(BENCH_VENV)/.complete
# Likewise for the native library, which lies beside the Python files. This is not the library
# itself: where there is no compiler there is none, and make would try again every time.
NATIVE := $(VENV)/.native
CSRC := $(wildcard src/softtopk/kernels/csrc/*.[ch]pp)
OTHER_CPP := tests/sanitize/driver.cpp docs/play/core.cpp
# Processes of a test run.
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
OUT ?= runs/demo
BENCH ?= --preset full
GPU_BENCH ?= --device cuda --preset gpu
FIGURES ?= docs/figures

# Running it, not looking it up: a version manager's shim can be there and lead nowhere.
ifndef PYTHON
PYTHON := $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
endif

.PHONY: help demo test test-all test-page check lint format bench gpu-bench gpu-check faults figures recipes native
.PHONY: sanitize wheel docs clean

help:  ## Print this list.
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-10s %s\n", $$1, $$2}'
	@echo "PYTHON=... chooses the interpreter (3.10 or newer; the pinned versions are for 3.11)."

demo: $(NATIVE)  ## Compare kNN classifiers on digits, and draw their features (OUT=runs/demo).
	@mkdir -p "$(OUT)"
	@$(BIN)/softtopk knn train --data digits --method all --threads 1 --out "$(OUT)" --resume
	@$(BIN)/softtopk knn plot "$(OUT)"

test: $(NATIVE)  ## Run the tests and the doctests, about 5 minutes (JOBS=2 processes).
	@$(PYTEST)

test-all: $(NATIVE)  ## Run also what only a release needs: the oracles' own tests, more examples.
	@$(PYTEST) -m "" --hypothesis-profile release

test-page: $(NATIVE)  ## Test the pages to play with and the site in a real browser: Chromium or Chrome.
	@$(PYTEST) -m page tests/page

check: lint test  ## Everything a change has to pass: lint, then test.

lint: $(STAMP)  ## Check style, formatting and types.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(CSRC) $(OTHER_CPP)
	@$(BIN)/mypy

format: $(STAMP)  ## Format the code and apply the safe lint fixes.
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CSRC) $(OTHER_CPP)

bench: $(PEERS) $(NATIVE)  ## Compare with every peer, about 15 minutes (BENCH='--preset quick' for 2).
	@mkdir -p runs
	@$(BENCH_VENV)/bin/softtopk bench --out runs/bench $(BENCH)

# "softtopk" says what is wrong in one line, such as that there is no such device.
gpu-bench: $(NATIVE)  ## Check the operators on a CUDA device, then time them there (runs/gpu-bench).
	@mkdir -p runs
	@$(BIN)/softtopk bench --out runs/gpu-bench $(GPU_BENCH) || exit 1

gpu-check: $(NATIVE)  ## Compile the kernels for GPUs, without one, and look for spilled registers.
	@$(BIN)/python benchmarks/gpu_check.py --out runs/gpu-check $(GPU_CHECK)

faults: $(NATIVE)  ## Kill, stop and damage small trainings, 10 minutes (FAULTS='--tries 1': half a minute).
	@$(BIN)/python benchmarks/faults.py --out runs/faults $(FAULTS)

figures: $(NATIVE)  ## Draw the figures of the docs anew, half a minute (FIGURES=docs/figures).
	@$(BIN)/softtopk figures --out "$(FIGURES)"

recipes: $(NATIVE)  ## Run the recipes of examples/ and make their page of the docs, 4 minutes.
	@$(BIN)/python docs/recipes/build.py

# Not --quiet: mkdocs would then count no warnings. The notice that is turned off is about a successor.
docs: $(STAMP)  ## Build the documentation into site/; a broken link or a missing docstring is an error.
	@$(BIN)/python docs/play/build.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

native: $(STAMP)  ## Rebuild the native library in place; no compiler is an error here.
	@SOFTTOPK_BUILD_NATIVE=require $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $(NATIVE)

# Needs a compiler and Python, but no environment.
sanitize:  ## Run the native library under sanitizers, about 5 minutes.
	@$(PYTHON) tests/sanitize/run.py

wheel: $(STAMP)  ## Build sdist and wheel into dist/ and try them without a compiler.
	@rm -rf dist
	@SOFTTOPK_BUILD_NATIVE=require $(BIN)/python -m build
	@$(BIN)/python tests/wheel/try_out.py dist

clean:  ## Remove the environment, caches and build outputs; runs/ stays.
	rm -f $(addprefix src/softtopk/kernels/,_native.so _native.dll _not_built.txt)
	rm -rf $(VENV) $(BENCH_VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

# Makes the environment of the target; what an interrupted attempt has left is removed first.
define set_up
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no '$(PYTHON)' here: install Python 3.11 or run make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "softtopk needs Python 3.10 or newer, '$(PYTHON)' is $$($(PYTHON) -V 2>&1):" \
	    "run make PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up $(@D) with $$($(PYTHON) -V); this takes a minute or two."
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@SOFTTOPK_BUILD_NATIVE=$(BUILD) $(@D)/bin/python -m pip install \
	  --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
	@echo "Set-up done."
endef

$(STAMP): EXTRAS := dev
$(STAMP): BUILD := skip
$(STAMP): pyproject.toml constraints.txt
	$(set_up)

$(PEERS): EXTRAS := bench,test
# "skip" would remove the library that there is; "try" finds it up to date.
$(PEERS): BUILD := try
$(PEERS): pyproject.toml constraints.txt | $(NATIVE)
	$(set_up)

$(NATIVE): $(STAMP) setup.py $(CSRC)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@
