# `make demo` and `make test` need nothing but Python 3.11 or newer with pip; the rest they set up
# in .venv. With a GPU, install the torch of your CUDA into .venv first: constraints.txt says how.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 15

.DEFAULT_GOAL := help
.PHONY: help demo test lint types tests test-slow campaign bench docs build clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Quintet needs Python 3.11 or newer: make PYTHON=python3.11 …" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train all six on built-in data, on the CPU, in about twelve minutes
	$(BIN)/quintet demo

test: lint types tests  ## lint, types and tests: what a change must pass

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## pyright
	$(BIN)/pyright

tests: $(READY)  ## the default tests
	$(PYTEST)

test-slow: $(READY)  ## the tests that take longer, one at a time: some train on all cores, by the clock
	$(PYTEST) -n 1 -m slow

campaign: $(READY)  ## faults against the real program; stopped and started again, it goes on
	PYTHONPATH=tests $(BIN)/python -m campaign --full

bench: $(READY)  ## the benchmarks, in their forms for a CPU
	$(BIN)/python benchmarks/overhead.py --device cpu
	$(BIN)/python benchmarks/checkpoint_pause.py --device cpu
	$(BIN)/python benchmarks/image_speed.py --device cpu --size tiny --batch-size 16 --workers 1
	$(BIN)/python benchmarks/learning.py image/vqgan_tiny --compare

docs: $(READY)  ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: $(READY)  ## wheel and sdist, into dist/
	$(BIN)/python -m build --outdir dist .

clean:  ## remove .venv and caches, and nothing else
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
