# Creates .venv from requirements/*.lock, then runs commands from it.

# TORCH_BACKEND=cpu: a small install without CUDA. Default: the backend of .venv or, without one, the locked wheels.
TORCH_BACKEND ?= $(or $(patsubst .venv/ready-%,%,$(firstword $(wildcard .venv/ready-*))),locked)
# PROFILE=smoke|quick-bfloat16|quick|thirty-bfloat16|paper-tf32|paper: written into params.yaml before a repro. Default: as in params.yaml.
PROFILE ?=
# EXPERIMENTS="a b": train and evaluate only these, and fetch only their data. Default: all.
EXPERIMENTS ?=
KNOWN := $(patsubst params/%.yaml,%,$(wildcard params/*.yaml))
UNKNOWN := $(filter-out $(KNOWN),$(EXPERIMENTS))
NEAREST = $(shell python3 -c 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))' $(firstword $(UNKNOWN)) $(KNOWN))
$(if $(UNKNOWN),$(error no experiment $(firstword $(UNKNOWN)); $(if $(NEAREST),did you mean $(NEAREST)?,known: $(KNOWN))))
# DEVICE=cpu|cuda: device of training and service. Default: training uses cuda if available, the service cpu.
DEVICE ?=
PORT ?= 8000

BIN := .venv/bin
READY := .venv/ready-$(TORCH_BACKEND)

# dvc.yaml runs `python -m stages.…`, which must find our python.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Waiting threads of torch sleep instead of spinning, so that other work on the machine isn't slowed down.
export OMP_WAIT_POLICY ?= PASSIVE
# Our files are UTF-8 in every locale.
export PYTHONUTF8 := 1
# Some images set it, which would make each of hundreds of processes recompile our modules.
unexport PYTHONDONTWRITEBYTECODE
ifneq ($(DEVICE),)
export CLAIMCHECK_DEVICE := $(DEVICE)
endif

# Hides the warning that a lock doesn't list the project's direct dependencies.
CYCLONEDX := PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible

# Tests of our C++ code, whose instructions depend on the processor.
FAST_PATHS := $(patsubst %,tests/ops/fast/test_%.py,attention dac dropout stacks wide_attention)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup cluster repro test test-long test-cluster lint check shape format serve docs picture bench soak oldest report mirror lock sbom audit clean clean-data

help:  ## show this list
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-12s%s\n", $$1, $$2}' Makefile
	@echo
	@echo '  PROFILE=smoke|quick-bfloat16|quick|thirty-bfloat16|paper-tf32|paper   EXPERIMENTS="a b"   DEVICE=cpu|cuda   TORCH_BACKEND=cpu   PYTHON=python3.12'

setup: $(READY)  ## create .venv with everything in it; other targets do this if needed

cluster: $(READY)  ## add Ray and object stores to .venv, for trainings on several machines
	@.ci/setup cluster

# A stamp may have been linked or copied, so check that the environment imports this clone's code.
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

# One single-threaded process per core.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(shell nproc) --dist loadfile --no-loadscope-reorder --durations 20
# NETWORK=1: include the tests that install packages.
NETWORK ?=
HERE := not slow(hours=True) and not needs(gpu=True) and not needs(cluster=True)$(if $(NETWORK),, and not needs(network=True))

# `make test test-long` is one pytest run, which records the published evidence once.
test: $(READY)  ## run the tests (some minutes)
	$(if $(filter test-long,$(MAKECMDGOALS)),@:,$(PARALLEL))

# Repeats tests of fast paths as on lesser processors; `test` uses the highest capability, PyTorch's default.
test-long: $(READY)  ## run the slow tests: browsers, servers, whole projects, simulations, fast paths of other processors
	$(PARALLEL) -m "$(if $(filter test,$(MAKECMDGOALS)),,slow and )$(HERE)"
	@case $$($(BIN)/python -c 'import torch; print(torch.backends.cpu.get_cpu_capability())') in \
		AVX512) lesser="avx2 default";; AVX2) lesser=default;; *) lesser=;; \
	esac; for capability in $$lesser; do \
		echo "ATEN_CPU_CAPABILITY=$$capability"; \
		ATEN_CPU_CAPABILITY=$$capability OMP_NUM_THREADS=1 $(BIN)/pytest -q -k "not compile and not exported and not refused" $(FAST_PATHS) & \
		processes="$$processes $$!"; \
	done; for process in $$processes; do wait $$process || exit; done

test-cluster: cluster  ## run the tests with a Ray cluster on this machine
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "needs(cluster=True) and not slow(hours=True)" --durations 10 tests/cluster

lint: $(READY)  ## check format, lint rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## run lint and test

shape:  ## print lines, modules and repeated names of the code (AGAINST=main: compared with a revision)
	@python3 .ci/shape.py $(AGAINST)

format: $(READY)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

serve: $(READY) | $(if $(CLAIMCHECK_DATABASE),,data/results.db)  ## run the service and its pages on 127.0.0.1:8000 (PORT=…)
	$(BIN)/python -m service --host 127.0.0.1 --port $(PORT)

docs: report  ## build the documentation into build/site and serve it on 127.0.0.1:8001 (DOCS_PORT=…)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site $(or $(DOCS_PORT),8001)

picture: $(READY) data/results.db  ## retake the documentation's pictures (NAMES="page judge": only these)
	PYTHONPATH=. $(BIN)/python .ci/picture.py $(NAMES)

# Without a repro, the service uses the evidence in git.
data/results.db: | $(READY)
	@echo "no repro has run here: building the database from the evidence in git, about half a minute"
	@$(BIN)/python -m stages.analyse >/dev/null
	@$(BIN)/python -m stages.record

bench: $(READY)  ## run every benchmark and write docs/performance.md (NAMES="dac yat": only these)
	$(BIN)/python -m benchmarks $(NAMES)

soak: $(READY)  ## run the long tests: resuming after kills, long trainings
	CLAIMCHECK_SOAK_REPORTS=docs/soak $(BIN)/pytest -m "slow(hours=True) and not needs(gpu=True) and not needs(network=True)" --timeout 1800

# GPU machines have their own PyTorch and none of our other packages.
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

clean-data:  ## remove the outputs of `make repro`, including trained runs, but not downloads and evidence
	rm -rf data/inputs data/raw data/processed data/runs data/results data/metrics data/plots data/report data/logs data/store .dvc/cache .dvc/tmp
	rm -f data/results.db* data/findings.jsonl data/hours.json
