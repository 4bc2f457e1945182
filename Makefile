# The two commands of the README: `make demo` and `make test`. Everything else is for those who work on Plesio.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
STAMP := $(VENV)/.installed
FRAMEWORKS := $(VENV)/.frameworks

export OMP_NUM_THREADS ?= 1
# Every process of the tests would compile Plesio, and each half of the suite all tests, anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check docs format bench gpu stress clean

$(DEMO): packages/plesio/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt "torch==2.13.0" --editable "packages/plesio[report,digits]"
	touch $@

$(STAMP): $(DEMO) packages/plesio-planning/pyproject.toml
	$(BIN)/pip install --quiet -c constraints.txt --editable "packages/plesio[dev]" --editable packages/plesio-planning
	touch $@

# Lightning, Accelerate and Transformers, which only their own tests, examples and benchmarks need: 220 MB.
$(FRAMEWORKS): $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt --editable "packages/plesio[frameworks]"
	touch $@

demo: $(DEMO)
	$(BIN)/plesio compare recipes/demo.toml --policies bsp,ssp:4,asp,local_sgd:8,adaptive --seeds 0,1 \
		--out runs/demo --overwrite

# Two halves: what may share the machine (four at a time, as tests of processes mostly wait), and what measures real time
# and must run alone. Both run, whatever one finds.
test: $(FRAMEWORKS)
	@.ci/packages
	status=0; \
	$(BIN)/pytest -W error -n 4 --dist loadfile --no-loadscope-reorder --durations 30 -m "not alone and not slow" || status=1; \
	$(BIN)/pytest -W error --durations 30 -m "alone and not slow" packages || status=1; \
	exit $$status

test-all: $(FRAMEWORKS)
	@.ci/packages
	status=0; \
	$(BIN)/pytest -W error -n 4 --dist loadfile --no-loadscope-reorder -m "not alone" || status=1; \
	$(BIN)/pytest -W error -m alone packages || status=1; \
	exit $$status

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Into site/; a test builds it too, so `make test` finds dead links and docstrings that cannot be read.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(FRAMEWORKS)
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

# On a machine with CUDA, into docs/evidence-gpu.md; one part of it with PART.
gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu/run.py $(if $(PART),--part $(PART))

# Five campaigns, about an hour and a half on two idle cores; see docs/reliability.md.
stress: $(STAMP)
	status=0; \
	for script in stress stress_machines stress_virtual stress_checkpoints stress_processes stress_endings; do \
		$(BIN)/python benchmarks/$$script.py || status=1; \
	done; \
	exit $$status

clean:
	rm -rf $(VENV) runs build dist site
