# Two commands matter: `make demo` and `make test`. Both set up what they need in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
OUT    ?= runs/demo
# Tests run in this many processes; WORKERS=0 runs them in one, e.g. to use a debugger.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint docs bench clean

help:
	@echo "make demo       train the embedded tiny model with ScaleRL, forecasting while it trains, into $(OUT)/"
	@echo "make test       set up and run the tests (CPU, minutes)"
	@echo "make test-slow  the long ones: calibration over hundreds of simulated runs"
	@echo "make lint       ruff and pyright"
	@echo "make docs       the site of docs/ with an API reference, into site/; a broken link fails"
	@echo "make bench      the benchmarks, each with its ratio against a peer or a limit"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: an install is repeated only when what it depends on changed.
$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[report,train]"
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[docs]"
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/scalerl train tiny-cpu --out $(OUT) $(if $(wildcard $(OUT)/recipe.json),--resume)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow --timeout 3600 $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Not --quiet: then mkdocs would not see the warnings that fail the build.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(VENV)/.dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || echo "(below its target)"; done

clean:
	rm -rf $(VENV) $(OUT) site .pytest_cache .ruff_cache
