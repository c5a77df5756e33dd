# make quickstart   environment, native build, a small real model, a ready server, one streamed answer
# make test         everything a change must pass, in an environment of its own
# make check        the part of it that runs no tests
# make clients      client libraries of others against the quickstart's server, in environments of their own
# make bench        the quickstart spec, measured with the workloads of docs/benchmarks

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PIP_ARGS ?=
SPEC ?= docs/examples/quickstart.yaml
QUESTION ?= Write a Python function that reverses a string. Answer with the code alone.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?= -n $(JOBS)
BENCH_DIR ?= build/bench
CLIENTS := build/clients
CLIENTS_ARGS ?=

BIN := $(VENV)/bin
APPLIANCE := $(BIN)/appliance
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What pip does for a package it copies. Where Python may not write bytecode, each command would compile the sources.
COMPILE := $(BIN)/python -m compileall -q appliance
NATIVE := $(shell find kernels -name '*.cpp' -o -name '*.h' -o -name '*.map' -o -name CMakeLists.txt)
CXX_SOURCES := $(shell find kernels tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
CONSTRAINTS := requirements/constraints-cpu.txt
# The AVX-512 and AMX sources on emulated instructions, so that tests run their logic on any x86-64 machine.
EMULATED := $(if $(filter x86_64,$(shell uname -m)),build/emulated/libappliance_cpu_emulated.so)

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: quickstart quickstart-down test check lint types layers pytest clients bench clean help

help:
	@sed -n 's/^# make /make /p' Makefile

quickstart: $(VENV)/.base
	@$(APPLIANCE) pull $(SPEC)
	@$(APPLIANCE) apply $(SPEC)
	@echo && echo "> $(QUESTION)"
	@$(APPLIANCE) chat $(SPEC) --quick "$(QUESTION)" --curl

quickstart-down:
	@$(APPLIANCE) down $(SPEC)

test: $(VENV)/.dev
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory pytest

check: lint types layers

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

pytest: $(VENV)/.dev $(EMULATED)
	$(BIN)/pytest $(PYTEST_ARGS)

bench: $(VENV)/.base
	@mkdir -p $(BENCH_DIR)
	@$(APPLIANCE) apply $(SPEC)
	@for preset in single offline64 online16 shared-prefix; do \
	  $(APPLIANCE) bench serve $(SPEC) --preset $$preset --output $(BENCH_DIR)/$$preset.json || exit; done
	@$(APPLIANCE) bench report $(BENCH_DIR)/*.json --output $(BENCH_DIR)/report.html

clients: $(VENV)/.base $(patsubst %,$(CLIENTS)/%/.made,openai-3 openai-2 node)
	$(BIN)/python tests/clients/run.py $(SPEC) $(CLIENTS_ARGS)

$(CLIENTS)/%/.made: tests/clients/%.txt | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) --requirement $<
	@touch $@

$(CLIENTS)/node/.made: tests/clients/node/package.json tests/clients/node/package-lock.json
	@mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && npm ci --no-fund --no-audit --omit-lockfile-registry-resolved
	@touch $@

# The base package needs no torch. -e keeps Python and profiles live; native sources are rebuilt when they change.
$(VENV)/.base: pyproject.toml $(NATIVE) | $(BIN)/python
	$(PIP) install --quiet $(PIP_ARGS) --editable .
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: pyproject.toml $(NATIVE) $(CONSTRAINTS) | $(BIN)/python
	$(PIP) install --quiet $(PIP_ARGS) "$$(sed -n 's/^torch==/torch==/p' $(CONSTRAINTS))"
	$(PIP) install --quiet $(PIP_ARGS) --constraint $(CONSTRAINTS) --editable '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.base

$(EMULATED): $(NATIVE)
	cmake -S kernels -B $(@D) -DAPPLIANCE_EMULATED=ON >/dev/null
	cmake --build $(@D) --target appliance_cpu_emulated appliance_cpu_emulated_amx >/dev/null
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf build dist $(VENV)
