# Each target makes the environment it needs; only Python 3.11+ and make must be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INTEROP := .venv-interop
BENCH := .venv-bench

.DEFAULT_GOAL := help
.PHONY: help demo test check format test-interop evaluate calibration bench results clean

help:
	@echo "make demo          fit built-in data, print the table, write figures to demo-output/"
	@echo "make test          run the tests"
	@echo "make check         lint and type-check"
	@echo "make test-interop  test GPflow kernels in an environment of their own"
	@echo "make evaluate      compare the default fit with NUTS and grids (needs STEINGP_DATA)"
	@echo "make calibration   rank truths among draws of 3 x 1000 fits (hours on a CPU)"
	@echo "make bench         time fits and gradients beside GPflow, GPyTorch and NUTS (hours)"
	@echo "make results       docs/results.md from results/*.jsonl of steingp reproduce"

demo: $(VENV)/installed
	$(BIN)/steingp demo --out demo-output

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

check: $(VENV)/installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/installed-check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-interop: $(INTEROP)/installed
	TF_CPP_MIN_LOG_LEVEL=3 $(INTEROP)/bin/python -m pytest -q --rootdir tests_interop \
	    -c tests_interop/pytest.ini tests_interop

results: $(VENV)/installed
	$(BIN)/python benchmarks/results_page.py

evaluate: $(VENV)/installed
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/evaluate.py machine servo concreteslump --cost
	$(BIN)/python benchmarks/evaluate.py --page

calibration: $(VENV)/installed
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/calibration.py --page

bench: $(BENCH)/installed
	$(BENCH)/bin/python benchmarks/bench.py
	$(BENCH)/bin/python benchmarks/bench.py --page

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[test]"
	@touch $@ $(VENV)/installed

$(VENV)/installed-check: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[check,test]"
	@touch $@ $(VENV)/installed $(VENV)/installed-test

$(INTEROP)/installed: pyproject.toml tests_interop/requirements.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install -q --disable-pip-version-check -e . \
	    -r tests_interop/requirements.txt
	$(INTEROP)/bin/python -m pip install -q --disable-pip-version-check --no-deps gpflow
	@touch $@

$(BENCH)/installed: pyproject.toml benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install -q --disable-pip-version-check -e . \
	    -r benchmarks/requirements.txt
	$(BENCH)/bin/python -m pip install -q --disable-pip-version-check --no-deps gpflow
	@touch $@

clean:
	rm -rf $(VENV) $(INTEROP) $(BENCH) demo-output
