# `make help` lists the targets. Each sets up what it needs (a virtual environment in .venv, torch, the native core) and is
# quick the second time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# Where there is a ccache, what was compiled here once is not compiled again for the wheel.
export CCACHE_BASEDIR := /
export CCACHE_NOHASHDIR := 1
# Hundreds of processes import the package in a test run: what Python compiled is kept.
unexport PYTHONDONTWRITEBYTECODE
NATIVE := $(shell find native -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt') CMakeLists.txt

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: help check unit-tests-1 unit-tests-2 demo results test setup stubs lint types format-native tidy build-native test-native test-python dashboard dashboard-check formal fuzz docs clean

demo: setup ## two minutes: plain DDP, PowerSGD and gradwire on a network that becomes slow half-way
	$(BIN)/gradwire demo

# Continues where it stopped: make results ARGS="--quick", ARGS="peers delays", ARGS=--write.
results: setup ## measure the published results: hours, resumable (ARGS=--quick: minutes)
	$(BIN)/python benchmarks/results.py $(ARGS)

# Lint, types and unit tests run side by side; the output of each is printed when it ends.
check: setup ## lint, types and unit tests: no network, no other processes, under a minute
	@$(MAKE) --no-print-directory -j 2 -O lint types unit-tests-1 unit-tests-2

# The sanitized native tests are compiled beside the checks that read files only, and run last.
test: setup ## everything that CI runs: lint, types, native tests under sanitizers, all Python tests
	@mkdir -p build
	@nice -n 10 $(MAKE) --no-print-directory build-native > build/native-build.log 2>&1 & native=$$!; \
	$(MAKE) --no-print-directory -j 2 -O lint types dashboard-check $(VENV)/.extras; checked=$$?; \
	wait $$native || { cat build/native-build.log; exit 1; }; \
	[ $$checked -eq 0 ] && $(MAKE) --no-print-directory test-python test-native

setup: $(VENV)/.native ## create .venv and build the native core

$(VENV)/.deps: pyproject.toml constraints.txt
	@scripts/build-tools
	@scripts/preflight $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch numpy scikit-build-core nanobind ninja
	$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/.native: $(VENV)/.deps $(NATIVE)
	@scripts/preflight $(BIN)/python
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

# What only tests and the documentation need: training frameworks that gradwire is tried with, the site's generator.
$(VENV)/.extras: $(VENV)/.deps scripts/extras
	$(BIN)/python scripts/extras clients docs > $(VENV)/extras.txt
	$(PIP) install -q -c constraints.txt -r $(VENV)/extras.txt
	@touch $@

# The native module's stub is generated, kept in the tree for type checkers and editors, and compared by a test.
stubs: setup ## generate the native module's type stub
	$(BIN)/python -m nanobind.stubgen -q -m gradwire._native -o src/gradwire/_native.pyi

lint: setup tidy ## check style, format and likely mistakes
	$(BIN)/ruff check src tests benchmarks examples scripts
	$(BIN)/ruff format --check src tests benchmarks examples scripts
	$(BIN)/clang-format --dry-run -Werror $(filter %.cpp %.h,$(NATIVE))

format-native: setup ## format the C++ code
	$(BIN)/clang-format -i $(filter %.cpp %.h,$(NATIVE))

# clang-tidy reads the sources of a folder as one, because the headers take most of its time: this is four times faster
# than file by file, but names in anonymous namespaces must be unique in a folder. A folder is checked again when one of its
# sources, a header or the configuration has changed. Tests and bindings are left out: they would triple the time.
TIDIED := $(filter-out tests bindings,$(patsubst native/%/CMakeLists.txt,%,$(wildcard native/*/CMakeLists.txt)))
TIDY_HEADERS := $(filter-out native/tests/% native/bindings/%,$(filter %.h,$(NATIVE)))
tidy: $(TIDIED:%=build/tidy/%.ok) ## check the C++ code with clang-tidy

.SECONDEXPANSION:
build/tidy/%.ok: $$(wildcard native/$$*/*.cpp) $(TIDY_HEADERS) .clang-tidy | setup
	@mkdir -p build/tidy
	@printf '#include "%s"  // NOLINT(bugprone-suspicious-include)\n' $(patsubst native/%,%,$(filter %.cpp,$^)) > build/tidy/$*.cpp
	$(BIN)/clang-tidy --quiet build/tidy/$*.cpp -- -std=c++20 -Inative 2> build/tidy/$*.log || { cat build/tidy/$*.log; exit 1; }
	@touch $@

types: setup ## check types
	$(BIN)/mypy

build-native: setup ## build the native tests with sanitizers
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/native-tests -G Ninja -DGRADWIRE_BINDINGS=OFF -DGRADWIRE_TESTS=ON -DGRADWIRE_SANITIZE=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native-tests
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/native-tsan -G Ninja -DGRADWIRE_BINDINGS=OFF -DGRADWIRE_TESTS=ON -DGRADWIRE_TSAN=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native-tsan --target test_ltp_io test_stream

test-native: build-native ## run the native tests and fuzz for 20 s
	ctest --test-dir build/native-tests --output-on-failure -j 2
	build/native-tsan/native/tests/test_ltp_io
	build/native-tsan/native/tests/test_stream
	native/tests/fuzz/run 20

# Fuzzes parsers and protocols for longer: make fuzz SECONDS=600
SECONDS ?= 20
fuzz: ## fuzz parsers and protocols for SECONDS
	native/tests/fuzz/run $(SECONDS)

# Unit tests in two halves, one for each core; tests/conftest.py and the markers in pyproject.toml say what is left out.
UNIT := $(BIN)/python -m pytest -q -m "not slow and not processes and not lab and not release"
unit-tests-1: setup
	$(UNIT) $(addprefix tests/,decide exchange network plan sense simulate) tests/test_*.py
unit-tests-2: setup
	$(UNIT) $(addprefix tests/,compress device integrations observe runtime sites)

# Tests that decide claims about real time have the machine to themselves. All others run before them, in two processes side
# by side that take about equally long; a folder that is not named here is in the second.
FIRST_HALF := $(addprefix tests/,bench compress decide exchange integrations network plan release runtime sense simulate sites train tree)
SECOND_HALF := $(filter-out $(FIRST_HALF),$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
test-python: setup $(VENV)/.extras ## run all Python tests
	@mkdir -p build
	@nice -n 5 $(BIN)/python -m pytest -m "not timed" $(FIRST_HALF) > build/first-half.log 2>&1 & first=$$!; \
	$(BIN)/python -m pytest -m "not timed" $(SECOND_HALF); second=$$?; \
	wait $$first; first=$$?; cat build/first-half.log; [ $$second -eq 0 ] && [ $$first -eq 0 ]
	$(BIN)/python -m pytest -m timed

# The documentation site, into build/site; a warning is an error.
docs: setup $(VENV)/.extras ## build the documentation site into build/site
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The dashboard's front end: built into the package and committed, so that users need no node.
dashboard: ## build the dashboard's front end into the package
	scripts/dashboard-build

dashboard-check: ## check that the committed front end is up to date
	scripts/dashboard-build --check

# The plan-change protocol, every interleaving of a small model (needs spin).
formal: ## model-check the plan-change protocol (needs spin)
	formal/check

clean: ## remove .venv, builds and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
