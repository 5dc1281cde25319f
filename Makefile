# Every target sets up what it needs, from a fresh clone, and does nothing twice.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Test files and type checks run side by side; every process of the tests has an engine of its own.
PROCESSES ?= 2
# Of each part of `make fuzz`.
MINUTES ?= 10
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal

.PHONY: help setup demo check quick test fuzz bench try-install docs clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(READY)  ## make .venv and install the exact versions of requirements/cpu.txt

$(READY): pyproject.toml requirements/cpu.txt tools/install.sh reader/pyproject.toml minilm/pyproject.toml modular/pyproject.toml workbench/pyproject.toml
	$(PYTHON) -m venv .venv
	tools/install.sh $(BIN)/python
	touch $(READY)

demo: $(READY)  ## both frameworks before and after the swap; ARGS="--quick" for less
	$(BIN)/ragcache demo $(ARGS)

check: $(READY)  ## lint, format, types, import rules and sizes
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers $(PROCESSES)
	$(BIN)/mypy -p ragcache_reader
	$(BIN)/lint-imports
	$(BIN)/python tools/size.py --check

quick: $(READY)  ## the fast tests that need no engine, with few examples each
	$(PYTEST) -m "not engine and not slow" --hypothesis-profile quick $(ARGS)

test: check  ## check, then all tests; ARGS="tests/query_cache" for a part
	$(PYTEST) --durations 30 --durations-min 20 $(ARGS)

fuzz: $(READY)  ## hostile input for MINUTES=10; PART=cache_files for one part of tests/fuzz
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES) $(if $(PART),--part $(PART))

# Alone on the machine, please: a busy neighbour spoils every figure.
bench: $(READY)  ## every benchmark with --quick, compared with the recorded figures; ARGS="--only engine" for a part
	$(BIN)/python tools/regressions.py $(ARGS)

try-install:  ## the wheels in new environments, as users install them; ARGS="retriever-langchain" for a part
	$(PYTHON) tools/try_install.py $(ARGS)

docs: $(READY)  ## the pages of docs/ as a site in build/docs, warnings as errors
	$(BIN)/python tools/knobs.py
	$(BIN)/python tools/stores.py
	$(BIN)/python tools/map.py
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet \
		-d build/doctrees docs build/docs

clean:  ## remove .venv and the tools' caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
