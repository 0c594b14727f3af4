# `make demo` and `make test` need Python 3.11 or newer with pip, and install the rest into .venv.
# With a GPU, install the torch build of your CUDA version into .venv first: see constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LATEST := .venv-latest
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Container images often forbid bytecode; every test process would then compile all modules again.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 15

.DEFAULT_GOAL := help
.PHONY: help demo test lint types tests test-slow test-latest campaign bench docs build clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Quintet needs Python 3.11 or newer: make PYTHON=python3.11 …" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## samples of the ready models, then a short training run, on the CPU, in five minutes
	$(BIN)/quintet demo

test: lint tests  ## lint, types and tests; required for every change

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## pyright, stricter than the pyrefly of the tests; a minute
	$(BIN)/pyright

tests: $(READY)  ## the default tests, types by pyrefly among them
	$(PYTEST)

test-slow: $(READY)  ## the slow tests, one at a time: some train on all cores within a time limit
	$(PYTEST) -n 1 -m slow

test-latest:  ## readers, writers, Hub, trackers, judges, export, adopted models and commands, newest libraries
	test -x $(LATEST)/bin/python || $(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python -m pip --disable-pip-version-check install --quiet --upgrade \
		--upgrade-strategy eager "$$(grep '^torch==' constraints.txt)" -e '.[dev]'
	$(LATEST)/bin/python -m pytest -n 2 --dist loadfile -q tests/media tests/engine/models \
		tests/engine/runs/test_sinks.py tests/test_fresh_process.py tests/judges/test_frechet.py \
		tests/image/adopt tests/image/clip tests/music/adopt tests/music/clap \
		$(addprefix tests/end_to_end/test_, cli.py export.py pack.py)

campaign: $(READY)  ## fault injection against the real program; can be interrupted and resumed
	PYTHONPATH=tests $(BIN)/python -m campaign --full

bench: $(READY)  ## the benchmarks, CPU versions
	$(BIN)/python benchmarks/overhead.py --device cpu
	$(BIN)/python benchmarks/checkpoint_pause.py --device cpu
	$(BIN)/python benchmarks/soak.py --steps 20000
	$(BIN)/python benchmarks/image_speed.py --device cpu --size tiny --batch-size 16 --workers 1
	$(BIN)/python benchmarks/learning.py image/vqgan_tiny --compare

docs: $(READY)  ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: $(READY)  ## wheel and sdist, into dist/
	$(BIN)/python -m build --outdir dist .

clean:  ## remove .venv and caches, and nothing else
	rm -rf $(VENV) $(LATEST) .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
