# Everything a person needs: `make demo`, `make test`. The set-up happens by itself, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Snakemake starts its scripts with the python it finds first.
export PATH := $(BIN):$(PATH)
# Containers set it; every process of a campaign and of the tests would then compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
# None is used; pydantic would look for some among all installed packages in every process.
export PYDANTIC_DISABLE_PLUGINS := __all__

.PHONY: help demo test test-cluster test-browser test-gpu test-all test-slow check types style bench format docs clean
.DEFAULT_GOAL := help

help:  ## What there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# A look at what is measured by then, beside the runs, which wait most of the time.
demo: $(VENV)/.demo  ## Run the default campaign and write its report (three to six minutes)
	@(sleep 40 > /dev/null 2>&1; nice campaign report config/campaign.yaml --output results/demo/first.html > /dev/null 2>&1 \
	  && echo "Measured so far: file://$(CURDIR)/results/demo/first.html") & first=$$!; \
	snakemake --profile local --quiet host reason; code=$$?; kill $$first 2> /dev/null; exit $$code
	@python -c 'from pathlib import Path; print("Open it:", Path("results/demo/report.html").absolute().as_uri())'

PYTEST := pytest --dist=loadfile --no-loadscope-reorder
# Some tests wait for processes: more workers than cores.
test: $(VENV)/.dev $(VENV)/.rewritten  ## Tests that need no root, daemons or browser (five to ten minutes on two cores)
	$(PYTEST) --numprocesses=3 -m "not (slow or cluster or browser or gpu or alone)"

# They wait for daemons most of the time.
test-cluster: $(VENV)/.dev $(VENV)/.rewritten  ## Tests with real Slurm daemons and emulated hosts; need root
	$(PYTEST) --numprocesses=5 -m cluster tests/cluster

test-browser: $(VENV)/.dev $(VENV)/.rewritten  ## Pages in a headless chromium
	$(PYTEST) --numprocesses=2 -m browser tests/workflow

test-gpu: $(VENV)/.dev  ## What an NVIDIA GPU has to show (minutes on one device)
	pytest -m gpu tests/gpu

test-all: test test-slow  ## All tests, except those for a GPU

# Slow ones compute while those of the cluster wait. Those that compare times have the machine for themselves.
test-slow: $(VENV)/.dev $(VENV)/.rewritten  ## The others: slow ones, and those that need root, daemons or a browser
	$(PYTEST) --numprocesses=5 -m "(slow or cluster or browser or root) and not (gpu or alone)"
	pytest -m alone

# Assertions of files that changed are rewritten once, instead of once in every worker; a test that cannot be imported is told at once.
$(VENV)/.rewritten: $(shell find tests workflow -name '*.py') | $(VENV)/.dev
	@collected=$$(pytest --collect-only --quiet 2>&1) || { echo "$$collected"; exit 1; }
	@touch $@

# Types take as long as all else, on a core of their own.
check: $(VENV)/.dev  ## Style, types, architecture
	@$(MAKE) --no-print-directory --jobs=2 --output-sync types style

types: $(VENV)/.dev
	mypy

style: $(VENV)/.dev $(VENV)/.rewritten
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow/Snakefile workflow/rules
	lint-imports
	python -m docs.generate --check
	snakemake --lint

bench: $(VENV)/.dev  ## Figures of speed (ten minutes; that of Slurm needs root), then statements under a planted truth (an hour)
	python -m tests.benchmarks
	python -m tests.benchmarks.truth
	python -m tests.benchmarks.racing
	python -m tests.benchmarks.forecasts

format: $(VENV)/.dev  ## Put everything into shape
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow/Snakefile workflow/rules

docs: $(VENV)/.dev  ## Regenerate reference pages and schemas, and build the site into build/docs
	python -m docs.literature_index
	python -m docs.generate
	python -m sphinx --fail-on-warning --quiet docs build/docs
	@python -c 'from pathlib import Path; print("Open it:", Path("build/docs/index.html").absolute().as_uri())'

clean:  ## Remove the virtual environment and caches; results stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/pip:
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	"$(PYTHON)" -m venv $(VENV)

# Modules are compiled when they are first imported: a demo imports a third of them, and pip would compile all on one core.
$(VENV)/.demo: pyproject.toml | $(VENV)/bin/pip
	"$(BIN)/pip" install --quiet --disable-pip-version-check --no-compile --editable '.[train]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/pip
	"$(BIN)/pip" install --quiet --disable-pip-version-check --editable '.[all,test,check,docs]'
	touch $@ $(VENV)/.demo
