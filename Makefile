# make demo    trains the embedded example, plain DDP and gradwire side by side
# make test    everything CI checks: lint, types, native tests under sanitizers, Python tests
# Both set up what they need (a virtual environment in .venv, torch, the native core) and are quick the second time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# Where there is a ccache, what was compiled here once is not compiled again for the wheel.
export CCACHE_BASEDIR := /
export CCACHE_NOHASHDIR := 1
NATIVE := $(shell find native -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt') CMakeLists.txt

.PHONY: demo test setup stubs lint types build-native test-native test-python dashboard dashboard-check formal fuzz docs clean

demo: setup
	$(BIN)/gradwire demo

# The sanitized native tests are compiled beside the checks that read files only, and run last.
test: setup
	@mkdir -p build
	@nice -n 10 $(MAKE) --no-print-directory build-native > build/native-build.log 2>&1 & native=$$!; \
	$(MAKE) --no-print-directory lint types dashboard-check $(VENV)/.extras; checked=$$?; \
	wait $$native || { cat build/native-build.log; exit 1; }; \
	[ $$checked -eq 0 ] && $(MAKE) --no-print-directory test-python test-native

setup: $(VENV)/.native

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
stubs: setup
	$(BIN)/python -m nanobind.stubgen -q -m gradwire._native -o src/gradwire/_native.pyi

lint: setup
	$(BIN)/ruff check src tests benchmarks examples scripts
	$(BIN)/ruff format --check src tests benchmarks examples scripts

types: setup
	$(BIN)/mypy

build-native: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/native-tests -G Ninja -DGRADWIRE_BINDINGS=OFF -DGRADWIRE_TESTS=ON -DGRADWIRE_SANITIZE=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native-tests
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/native-tsan -G Ninja -DGRADWIRE_BINDINGS=OFF -DGRADWIRE_TESTS=ON -DGRADWIRE_TSAN=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native-tsan --target test_io test_stream

test-native: build-native
	ctest --test-dir build/native-tests --output-on-failure -j 2
	build/native-tsan/native/tests/test_io
	build/native-tsan/native/tests/test_stream
	native/tests/fuzz/run 20

# Fuzzes parsers and protocols for longer: make fuzz SECONDS=600
SECONDS ?= 20
fuzz:
	native/tests/fuzz/run $(SECONDS)

# Tests that neither measure nor make a network run beside torch's own; the rest has the machine to itself.
UNTIMED := tests/exchange tests/compress tests/decide tests/network tests/plan tests/release tests/sense tests/simulate tests/tree
BESIDE := tests/torch_suite tests/clients tests/observe
test-python: setup $(VENV)/.extras
	@mkdir -p build
	@nice -n 5 $(BIN)/python -m pytest $(UNTIMED) > build/untimed-tests.log 2>&1 & untimed=$$!; \
	$(BIN)/python -m pytest $(BESIDE); beside=$$?; \
	wait $$untimed; untimed=$$?; cat build/untimed-tests.log; [ $$beside -eq 0 ] && [ $$untimed -eq 0 ]
	$(BIN)/python -m pytest $(addprefix --ignore=,$(UNTIMED) $(BESIDE))

# The documentation site, into build/site; a warning is an error.
docs: setup $(VENV)/.extras
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The dashboard's front end: built into the package and committed, so that users need no node.
dashboard:
	scripts/dashboard-build

dashboard-check:
	scripts/dashboard-build --check

# The plan-change protocol, every interleaving of a small model (needs spin).
formal:
	formal/check

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
