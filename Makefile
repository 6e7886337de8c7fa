# The frame around the code: sets up .venv from requirements/*.lock, then calls what stands in it.

# cpu: a small install without CUDA.  Unset: what .venv was made for, else the wheels as locked.
TORCH_BACKEND ?= $(or $(patsubst .venv/ready-%,%,$(firstword $(wildcard .venv/ready-*))),locked)
# PROFILE=smoke|quick-bfloat16|quick|paper-tf32|paper: written into params.yaml before a repro.  Unset: params.yaml decides.
PROFILE ?=
# EXPERIMENTS="a b": only these are trained and evaluated, and only their data fetched.  Unset: all.
EXPERIMENTS ?=
KNOWN := $(patsubst params/%.yaml,%,$(wildcard params/*.yaml))
UNKNOWN := $(filter-out $(KNOWN),$(EXPERIMENTS))
NEAREST = $(shell python3 -c 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))' $(firstword $(UNKNOWN)) $(KNOWN))
$(if $(UNKNOWN),$(error no experiment $(firstword $(UNKNOWN)); $(if $(NEAREST),did you mean $(NEAREST)?,known: $(KNOWN))))
# DEVICE=cpu|cuda: where models train and answer.  Unset: training takes cuda where there is one, the service cpu.
DEVICE ?=
PORT ?= 8000

BIN := .venv/bin
READY := .venv/ready-$(TORCH_BACKEND)

# dvc.yaml says `python -m stages.…`: that python is ours.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Threads of torch that wait sleep instead of spinning: other work on the machine then costs its share and no more.
export OMP_WAIT_POLICY ?= PASSIVE
# Our files are UTF-8 whatever the locale says.
export PYTHONUTF8 := 1
# Some images set it; each of hundreds of processes would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE
ifneq ($(DEVICE),)
export CLAIMCHECK_DEVICE := $(DEVICE)
endif

# It warns that a lock doesn't say which package the project itself names.
CYCLONEDX := PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible

# Tests of our C++, whose instructions depend on the processor.
FAST_PATHS := $(patsubst %,tests/ops/fast/test_%.py,attention crops dac dropout stacks wide_attention)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup cluster repro test test-long test-cluster lint check shape format serve docs picture bench soak oldest report mirror lock sbom audit clean clean-data

help:  ## this list
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-12s%s\n", $$1, $$2}' Makefile
	@echo
	@echo '  PROFILE=smoke|quick-bfloat16|quick|paper-tf32|paper   EXPERIMENTS="a b"   DEVICE=cpu|cuda   TORCH_BACKEND=cpu   PYTHON=python3.12'

setup: $(READY)  ## create .venv with everything in it; the other targets do this themselves

cluster: $(READY)  ## add Ray and object stores to .venv, for trainings on several machines
	@.ci/setup cluster

# A stamp that came by a link or a copy says nothing: ready is an environment that imports this clone's code.
ifneq ($(shell test -x $(BIN)/python && $(BIN)/python -I -c 'import os, stages; print(os.path.samefile(*stages.__path__, "stages"))' 2>/dev/null),True)
.PHONY: $(READY)
endif

$(READY): $(wildcard requirements/*) pyproject.toml .ci/setup
	@.ci/setup install $(TORCH_BACKEND)
	@rm -f .venv/ready-* && touch $@

repro: $(READY)  ## run the whole pipeline: data, training, evaluation, database, report
ifneq ($(PROFILE),)
	$(BIN)/claimcheck profile $(PROFILE)
endif
	@$(BIN)/claimcheck repro $(EXPERIMENTS)
	@echo "next: make serve, then open http://127.0.0.1:$(PORT)"

# A process a core with one thread each, and one more, since some tests wait for servers and clocks.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(shell nproc) --dist loadfile --no-loadscope-reorder --durations 20
HERE := not slow(hours=True) and not needs(gpu=True) and not needs(network=True) and not needs(cluster=True)

# Asked for together, both are one run, which starts once and records the published evidence once.
test: $(READY)  ## run the tests (some minutes)
	$(if $(filter test-long,$(MAKECMDGOALS)),@:,$(PARALLEL))

# Fast paths come again as lesser processors run them: `test` takes the highest capability, which PyTorch chooses.
test-long: $(READY)  ## run the slow tests: browsers, servers, whole projects, simulations, fast paths of other processors
	$(PARALLEL) -m "$(if $(filter test,$(MAKECMDGOALS)),,slow and )$(HERE)"
	@case $$($(BIN)/python -c 'import torch; print(torch.backends.cpu.get_cpu_capability())') in \
		AVX512) lesser="avx2 default";; AVX2) lesser=default;; *) lesser=;; \
	esac; for capability in $$lesser; do \
		echo "ATEN_CPU_CAPABILITY=$$capability"; \
		ATEN_CPU_CAPABILITY=$$capability OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist loadfile -k "not compile and not exported and not refused" $(FAST_PATHS) || exit; \
	done

test-cluster: cluster  ## run the tests with a Ray cluster on this machine
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "needs(cluster=True) and not slow(hours=True)" --durations 10 tests/cluster

lint: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## format, lint, types, tests

shape:  ## lines, modules and repeated names of the code (AGAINST=main: next to those of a revision)
	@python3 .ci/shape.py $(AGAINST)

format: $(READY)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

serve: $(READY) | $(if $(CLAIMCHECK_DATABASE),,data/results.db)  ## the service and its page on 127.0.0.1:8000 (PORT=…)
	$(BIN)/python -m service --host 127.0.0.1 --port $(PORT)

docs: report  ## the documentation as a site on 127.0.0.1:8001 (DOCS_PORT=…), built into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site $(or $(DOCS_PORT),8001)

picture: $(READY) data/results.db  ## take docs/page.png, the first screen, again
	PYTHONPATH=. $(BIN)/python .ci/picture.py

# Before any repro the service answers from the evidence in git.
data/results.db: | $(READY)
	@echo "no repro has run here: making the database from the evidence in git, about half a minute"
	@$(BIN)/python -m stages.analyse >/dev/null
	@$(BIN)/python -m stages.record

bench: $(READY)  ## run every benchmark and write docs/performance.md (NAMES="dac yat": only these)
	$(BIN)/python -m benchmarks $(NAMES)

soak: $(READY)  ## the long tests: resume after kill, long trainings
	CLAIMCHECK_SOAK_REPORTS=docs/soak $(BIN)/pytest -m "slow(hours=True) and not needs(gpu=True) and not needs(network=True)" --timeout 1800

# A machine with a GPU has the PyTorch that it has, and nothing of what we install.
OLDEST := torch==2.11.0
oldest: $(READY)  ## run the GPU check on this CPU with the oldest supported PyTorch
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest $(OLDEST) numpy safetensors
	.venv-oldest/bin/python -m benchmarks.gpu_check --device cpu --parts environment planned operators tf32 losses --out /dev/null

report: $(READY)  ## write docs/results.md and docs/findings.md (not in git) from the published evidence
	$(BIN)/python -m stages.report --docs
	$(BIN)/python -m stages.analyse --docs

mirror: $(READY)  ## DEST=folder: write the downloads as a mirror for CLAIMCHECK_MIRROR
	@test -n "$(DEST)" || { echo "make mirror DEST=<folder>" >&2; exit 2; }
	$(BIN)/python -m stages.datasets.mirror "$(DEST)"

lock: $(READY)  ## resolve requirements/*.in into requirements/*.lock
	.ci/lock

sbom: $(READY)  ## write sbom/: the pinned packages of the image (serve) and of .venv (all), as CycloneDX
	@mkdir -p sbom
	.ci/setup lines locked serving | $(CYCLONEDX) --output-file sbom/serve.cdx.json -
	.ci/setup lines locked | $(CYCLONEDX) --output-file sbom/all.cdx.json -

audit: $(READY)  ## list known vulnerabilities of the pinned packages; fails if OSV can't be reached
	@.ci/audit

clean:  ## remove caches and build files
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage *.egg-info build sbom
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

clean-data:  ## remove what `make repro` made, including trained runs; downloads and evidence stay
	rm -rf data/inputs data/raw data/processed data/runs data/results data/metrics data/plots data/report data/logs data/store .dvc/cache .dvc/tmp
	rm -f data/results.db* data/findings.jsonl data/hours.json
