# Every target sets up what it needs, from a fresh clone, and does nothing twice.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Test files run beside each other; every process has an engine of its own.
PROCESSES ?= 2

.PHONY: setup demo test lint bench docs clean

setup: $(READY)

$(READY): pyproject.toml requirements/cpu.txt tools/install.sh reader/pyproject.toml
	$(PYTHON) -m venv .venv
	tools/install.sh $(BIN)/python
	touch $(READY)

# For example: make demo ARGS="--quick --json"
demo: $(READY)
	$(BIN)/ragcache demo $(ARGS)

test: lint
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile \
		--durations 30 --durations-min 20 $(ARGS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Alone on the machine, please: a busy neighbour spoils every figure.
bench: $(READY)
	for script in benchmarks/*.py; do $(BIN)/python $$script --quick || exit 1; done

docs: $(READY)
	$(BIN)/python tools/knobs.py
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet \
		-d build/doctrees docs build/docs

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
