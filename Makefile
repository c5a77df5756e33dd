# make quickstart   environment, native build, a small real model, a ready server, one streamed answer
# make test         everything a change must pass, in an environment of its own
# make check        the part of it that runs no tests
# make sanitize     native tests on libraries that the address, undefined-behaviour and thread sanitizers watch
# make gpu-compile  every Triton kernel compiled for six GPU generations without a device, held against what is recorded
# make wheel        dist/: the sdist and the wheel with every processor level, as releases have them
# make wheel-check  that wheel installed where no compiler can be found: applied, asked, ended
# make clients      client libraries of others against the quickstart's server, in environments of their own
# make clients-pooling  the same for clients that embed and rank: SPEC names a model that embeds
# make ray          tests of what runs on a Ray cluster, in an environment of their own that has Ray
# make bench        the quickstart spec, measured with the workloads of docs/benchmarks

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PIP_ARGS ?=
SPEC ?= docs/examples/quickstart.yaml
QUESTION ?= Write a Python function that reverses a string. Answer with the code alone.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?= -n $(JOBS)
# Of each test that is marked many_cases, others each time; empty for all.
TEST_CASES ?= 48
BENCH_DIR ?= build/bench
CLIENTS := build/clients
RAY := build/ray
WHEEL_TOOLS := build/wheel/tools
COMMA := ,
X86 := $(filter x86_64,$(shell uname -m))
SANITIZERS ?= address thread
# One level shows what threads do; the emulated ones have the logic of all others.
SANITIZE_LEVELS_address ?= $(if $(X86),avx2$(COMMA)emulated$(COMMA)emulated_amx$(COMMA))generic
SANITIZE_LEVELS_thread ?= $(if $(X86),avx2,generic)
SANITIZE_ARGS_address ?= tests/kernels tests/parity
# Parity runs on one thread, which has nobody to race with.
SANITIZE_ARGS_thread ?= tests/kernels
# Of each test of the files that take hours under the thread sanitizer; empty for all cases.
SANITIZE_CASES_thread ?= 2
SANITIZE_ARGS ?=
CLIENTS_ARGS ?=
# Of gpu-compile: --write to record, --arch NAME, names of cases.
GPU_COMPILE_ARGS ?=

BIN := $(VENV)/bin
APPLIANCE := $(BIN)/appliance
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What pip does for a package it copies. Where Python may not write bytecode, each command would compile the sources.
COMPILE := $(BIN)/python -m compileall -q -j 0 appliance
NATIVE := $(shell find kernels -name '*.cpp' -o -name '*.h' -o -name '*.map' -o -name CMakeLists.txt -o -name '*.cmake')
CXX_SOURCES := $(shell find kernels tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
CONSTRAINTS := requirements/constraints-cpu.txt
# The AVX-512 and AMX sources on emulated instructions, so that tests run their logic on any x86-64 machine; the first only where
# the processor has none of its own.
EMULATED := $(if $(X86),build/emulated/.made)
EMULATED_LEVELS := emulated_amx$(if $(shell grep -m1 -w avx512_bf16 /proc/cpuinfo),,$(COMMA)emulated)

# How long each part of `quickstart` and `test` took.
TIMES := build/times
TIMED := @.ci/timed $(TIMES)

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
# A server needs one level; tests compare every level that this processor has, and read the machine code of two that it may lack.
$(VENV)/.base: export APPLIANCE_LEVELS := $(or $(APPLIANCE_LEVELS),auto)
$(VENV)/.dev: export APPLIANCE_LEVELS := $(or $(APPLIANCE_LEVELS),here$(if $(X86),$(COMMA)avx512_bf16$(COMMA)amx))
# A warning is an error to us, and no reason to refuse a user's newer compiler.
$(VENV)/.dev: export APPLIANCE_WARNING_AS_ERROR := ON

.PHONY: quickstart quickstart-down model sanitize test check lint style types layers pytest gpu-compile clients clients-pooling ray bench wheel wheel-check clean help

help:
	@sed -n 's/^# make /make /p' Makefile

# The model is fetched while the compiler works.
quickstart:
	$(TIMED)
	@$(MAKE) --no-print-directory $(VENV)/.packages
	@$(MAKE) --no-print-directory -j2 $(VENV)/.base model
	$(TIMED) start $(APPLIANCE) apply $(SPEC)
	@echo && echo "> $(QUESTION)"
	$(TIMED) answer $(APPLIANCE) chat $(SPEC) --quick "$(QUESTION)" --curl
	$(TIMED) --print

model: $(VENV)/.packages
	$(TIMED) model $(BIN)/python -m appliance.cli.app pull $(SPEC)

quickstart-down:
	@$(APPLIANCE) down $(SPEC)

# The checks have one thread each, and run while the compiler works.
test:
	$(TIMED)
	@$(MAKE) --no-print-directory $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 $(EMULATED) check
	@$(MAKE) --no-print-directory pytest
	$(TIMED) --print

check: lint types layers

lint: $(VENV)/.dev
	$(TIMED) lint $(MAKE) --no-print-directory style

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

types: $(VENV)/.dev
	$(TIMED) types $(BIN)/mypy

layers: $(VENV)/.dev
	$(TIMED) layers $(BIN)/lint-imports

pytest: export APPLIANCE_TEST_CASES := $(TEST_CASES)
pytest: $(VENV)/.dev $(EMULATED)
	$(TIMED) tests $(BIN)/pytest $(PYTEST_ARGS)

sanitize: $(addprefix sanitize-,$(SANITIZERS))

sanitize-%: $(VENV)/.dev
	VENV=$(VENV) SANITIZE_LEVELS=$(SANITIZE_LEVELS_$*) SANITIZE_CASES=$(SANITIZE_CASES_$*) .ci/sanitize $* $(or $(SANITIZE_ARGS),$(SANITIZE_ARGS_$*))

gpu-compile: $(VENV)/.dev
	env -u TRITON_INTERPRET $(BIN)/python -m tests.kernels.triton.compiled $(GPU_COMPILE_ARGS)

ray: $(RAY)/.made
	$(TIMED) ray $(RAY)/bin/python -m pytest tests/ray

$(RAY)/.made: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) --editable '.[dev,ray]'
	@touch $@

bench: $(VENV)/.base
	@mkdir -p $(BENCH_DIR)
	@$(APPLIANCE) apply $(SPEC)
	@for preset in single offline64 online16 shared-prefix; do \
	  $(APPLIANCE) bench serve $(SPEC) --preset $$preset --output $(BENCH_DIR)/$$preset.json || exit; done
	@$(APPLIANCE) bench report $(BENCH_DIR)/*.json --output $(BENCH_DIR)/report.html

clients: $(VENV)/.base $(patsubst %,$(CLIENTS)/%/.made,openai-3 openai-2 node)
	$(BIN)/python tests/clients/run.py $(SPEC) $(CLIENTS_ARGS)

clients-pooling: $(VENV)/.base $(CLIENTS)/pooling/.made
	$(BIN)/python tests/clients/run.py $(SPEC) --only pooling $(CLIENTS_ARGS)

$(CLIENTS)/%/.made: tests/clients/%.txt | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) --requirement $<
	@touch $@

$(CLIENTS)/node/.made: tests/clients/node/package.json tests/clients/node/package-lock.json
	@mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && npm ci --no-fund --no-audit --omit-lockfile-registry-resolved
	@touch $@

wheel: $(WHEEL_TOOLS)/.made
	.ci/wheel $(WHEEL_TOOLS)/bin

wheel-check: $(if $(wildcard dist/*.whl),,wheel)
	PIP_ARGS='$(PIP_ARGS)' .ci/wheel-check $(PYTHON) dist/*.whl $(SPEC)

$(WHEEL_TOOLS)/.made: requirements/wheel.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) --requirement $<
	@touch $@

$(VENV)/.packages: pyproject.toml | $(BIN)/python
	$(TIMED) packages sh -c '$(BIN)/python .ci/requirements | $(PIP) install --quiet $(PIP_ARGS) --requirement /dev/stdin'
	@touch $@

# The base package needs no torch. -e keeps Python and profiles live; native sources are rebuilt when they change.
$(VENV)/.base: $(VENV)/.packages $(NATIVE)
	$(TIMED) native $(PIP) install --quiet $(PIP_ARGS) --no-deps --editable .
	@$(COMPILE)
	@touch $@

$(VENV)/.dev-packages: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(TIMED) torch $(PIP) install --quiet $(PIP_ARGS) "$$(sed -n 's/^torch==/torch==/p' $(CONSTRAINTS))"
	$(TIMED) packages sh -c '$(BIN)/python .ci/requirements dev | $(PIP) install --quiet $(PIP_ARGS) --constraint $(CONSTRAINTS) --requirement /dev/stdin'
	@touch $@ $(VENV)/.packages

$(VENV)/.dev: $(VENV)/.dev-packages $(NATIVE)
	$(TIMED) native $(PIP) install --quiet $(PIP_ARGS) --no-deps --editable .
	@$(COMPILE)
	@touch $@ $(VENV)/.base

$(EMULATED): $(NATIVE)
	$(TIMED) emulated sh -c 'cmake -S kernels -B $(@D) -DAPPLIANCE_LEVELS=$(EMULATED_LEVELS) -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >/dev/null && cmake --build $(@D) >/dev/null'
	@touch $@

$(BIN)/python:
	$(TIMED) environment $(PYTHON) -m venv $(VENV)

clean:
	rm -rf build dist $(VENV)
