# fedrank: the words to know. Everything installs into .venv, which the first target creates.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test bits check docs chaos bench lowest clean

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY)  ## three minutes: a federation learns, is attacked, forgets; a story in pictures to open
	$(BIN)/fedrank demo --out runs --report demo.html
	@echo "Search on your own device, to try in a browser: $(BIN)/fedrank search demo"

test: $(READY)  ## run all tests
	$(BIN)/python -m pytest -n auto

# The vector instructions of this processor that NumPy would choose for its loops.
VECTORS := from numpy._core._multiarray_umath import __cpu_dispatch__ as known, __cpu_features__ as has
VECTORS := $(VECTORS); print(*(name for name in known if has[name]))
OLD_LIBM := glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX,-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ
BITS := $(BIN)/python -m pytest tests/test_golden.py

bits: $(READY)  ## the bit-exact tests under other processors' names (x86-64)
	OPENBLAS_CORETYPE=Haswell $(BITS)
	OPENBLAS_CORETYPE=Zen $(BITS)
	OPENBLAS_CORETYPE=Prescott $(BITS)
	NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python -c '$(VECTORS)')" $(BITS)
	NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= $(BITS)
	NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python -c '$(VECTORS)')" GLIBC_TUNABLES=$(OLD_LIBM) \
		NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= OPENBLAS_CORETYPE=Prescott $(BITS)

check: $(READY)  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)  ## the documentation as a web site: site/index.html
	$(BIN)/mkdocs build --strict

chaos: $(READY)  ## an hour: mutated files that must not crash, hang or lie; a federation that is killed, and one on bad lines
	$(BIN)/python -m tests.fuzz --count 5000
	$(BIN)/python -m tests.search.kills --count 50
	$(BIN)/python -m tests.trees.grow_kills --count 200
	$(BIN)/python -m tests.deploy.chaos --kills 50
	$(BIN)/python -m tests.deploy.chaos --kills 50 --sum
	$(BIN)/python -m tests.deploy.hard_links

bench: $(READY)  ## measure speed, as ratios against references timed in the same run
	$(BIN)/python benchmarks/fpdgd.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/targets.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/letor.py
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/secure_sum.py
	$(BIN)/python benchmarks/protect.py
	$(BIN)/python benchmarks/robust.py
	$(BIN)/python benchmarks/log_features.py
	$(BIN)/python benchmarks/async.py
	$(BIN)/python benchmarks/published_log.py 200
	$(BIN)/python benchmarks/rtk.py --check
	$(BIN)/python benchmarks/trees.py
	$(BIN)/python benchmarks/merge.py
	$(BIN)/python benchmarks/live_search.py --documents 20000
	$(BIN)/python benchmarks/compilation.py

lowest:  ## a smoke of everything with the lowest versions that pyproject.toml allows, in .venv-lowest; records that it passed
	$(PYTHON) tests/lowest.py

clean:  ## remove what the other targets made, except results in runs/
	rm -rf $(VENV) .venv-lowest site report.html demo.html .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fedrank needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)
