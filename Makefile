# Everything installs into .venv, which the first target creates.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   := $(VENV)/.demo
# What `make test` leaves out: the markers of pyproject.toml. `make test-rest` runs it.
REST   := process or browser or build or long
# Tests import the same modules in many processes: each module is compiled once, even where the environment says not to.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-all bits reproduce artefact check docs chaos mutants bench test-flower test-clients test-torch lowest platforms release audit clean

help:  ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(DEMO)  ## two minutes: a federation learns, is attacked and forgets; writes demo.html
	$(BIN)/fedrank run demo
	@echo "Search your own documents in a browser: $(BIN)/fedrank search serve --demo"

test: $(READY)  ## a few minutes: every test that needs no other process, browser or build
	$(PYTEST) -m 'not ($(REST) or smoke)'

test-rest: $(READY)  ## the tests that make test leaves out
	$(PYTEST) -m '($(REST)) and not smoke'

test-all: test test-rest  ## every test; FEDRANK_REQUIRE=browser,compiler,data fails where one of these is missing

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

reproduce: $(READY)  ## about an hour and a half: every table and figure of the papers in its quick form; writes papers.html
	$(BIN)/fedrank papers run all --quick
	$(BIN)/fedrank papers report --out papers.html

artefact: $(READY)  ## a few minutes: tables and figures of fedrank's findings as LaTeX, in artefact/
	$(BIN)/python -m fedrank_papers.artefact

check: $(READY)  ## style, types and prose
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.prose

docs: $(READY)  ## the documentation as a web site: site/index.html
	$(BIN)/mkdocs build --strict

chaos: $(READY)  ## an hour: mutated files that must not crash, hang or lie; a federation that is killed, and one on bad lines
	$(BIN)/python -m tests.fuzz --count 5000
	$(BIN)/python -m tests.fuzz.specs --share 0.05
	$(BIN)/python -m tests.fuzz.options
	$(BIN)/python -m tests.experiments.runner.kills
	$(BIN)/python -m tests.search.kills --count 50
	$(BIN)/python -m tests.search.rerank.kills --count 50
	$(BIN)/python -m tests.trees.grow_kills --count 200
	$(BIN)/python -m tests.deploy.chaos --kills 50
	$(BIN)/python -m tests.deploy.chaos --kills 50 --sum
	$(BIN)/python -m tests.deploy.restored --count 100
	$(BIN)/python -m tests.deploy.journey_kills --kills 100
	$(BIN)/python -m tests.deploy.chaos --kills 50 --dealt --rounds 500
	$(BIN)/python -m tests.deploy.hard_links
	$(BIN)/python -m tests.deploy.hosts

mutants: $(READY)  ## an hour: 100 small changes to the core, of which tests must notice nine in ten; lists the others
	$(BIN)/python -m tests.mutants

bench: $(READY)  ## measure speed, as ratios against references timed in the same run
	$(BIN)/python -m benchmarks.fpdgd
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.targets
	$(BIN)/python -m benchmarks.evaluate
	$(BIN)/python -m benchmarks.letor
	$(BIN)/python -m benchmarks.clients
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.secure_sum
	$(BIN)/python -m benchmarks.protect
	$(BIN)/python -m benchmarks.robust
	$(BIN)/python -m benchmarks.outside
	$(BIN)/python -m benchmarks.log_features
	$(BIN)/python -m benchmarks.async
	$(BIN)/python -m benchmarks.aol4foltr 200
	$(BIN)/python -m benchmarks.rtk --check
	$(BIN)/python -m benchmarks.trees
	$(BIN)/python -m benchmarks.merge
	$(BIN)/python -m benchmarks.live_search --documents 20000
	$(BIN)/python -m benchmarks.compilation

test-flower:  ## the Flower app in Flower's simulation engine and between processes, in .venv-flower
	test -e .venv-flower/.ready || ($(PYTHON) -m venv .venv-flower && .venv-flower/bin/python -m pip install --quiet \
		--disable-pip-version-check 'flwr[simulation]>=1.41' --editable . && touch .venv-flower/.ready)
	.venv-flower/bin/python -m tests.flower

test-clients:  ## rerank clients (cohere, LangChain, LlamaIndex, LightRAG, MCP) against a real server, in .venv-clients
	test -e .venv-clients/.ready || ($(PYTHON) -m venv .venv-clients && .venv-clients/bin/python -m pip install --quiet \
		--disable-pip-version-check cohere langchain-cohere llama-index-postprocessor-cohere-rerank lightrag-hku \
		pytest hypothesis httpx psutil --editable '.[search,mcp]' && touch .venv-clients/.ready)
	.venv-clients/bin/python -m pytest -p no:cacheprovider -rs tests/search/rerank/test_clients.py

test-torch:  ## the privacy filter with models of PyTorch, in .venv-torch
	test -e .venv-torch/.ready || ($(PYTHON) -m venv .venv-torch && .venv-torch/bin/python -m pip install --quiet \
		--disable-pip-version-check torch==2.13.0 pytest hypothesis psutil --editable '.[deploy]' && touch .venv-torch/.ready)
	.venv-torch/bin/python -m pytest -m 'process or not process' -rs -k torch tests/privacy/test_updates.py tests/deploy/test_flare_filter.py

lowest:  ## a smoke of everything with the lowest versions that pyproject.toml allows, in .venv-lowest; records that it passed
	$(PYTHON) tests/lowest.py

platforms: $(READY)  ## types as on macOS and Windows: names of the standard library that these systems lack
	$(BIN)/mypy --platform darwin
	$(BIN)/mypy --platform win32

# Files of a release: the same bytes from the same commit (what is not committed is left out), at any time. DIST/about describes what the wheel installs.
DIST  := dist
TOOLS := .venv-release
WHEEL := $(TOOLS)/wheel
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)

release: $(TOOLS)/.ready  ## wheel and sdist in dist/, built twice and compared; in dist/about their SBOM and licences
	rm -rf $(DIST) $(WHEEL) $(TOOLS)/source $(TOOLS)/again
	git archive --prefix=source/ HEAD | tar -x -C $(TOOLS)
	for out in $(CURDIR)/$(DIST) again; do \
		(cd $(TOOLS) && bin/python -m build --no-isolation --outdir $$out source) || exit 1; done
	for file in $(DIST)/*; do cmp $$file $(TOOLS)/again/$$(basename $$file) || exit 1; done
	$(TOOLS)/bin/twine check --strict $(DIST)/*
	$(TOOLS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet --disable-pip-version-check $(DIST)/*.whl
	$(WHEEL)/bin/python -m pip uninstall --quiet --yes pip setuptools
	mkdir -p $(DIST)/about
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file $(DIST)/about/sbom.cdx.json $(WHEEL)/bin/python
	$(TOOLS)/bin/pip-licenses --python $(WHEEL)/bin/python --format markdown --with-urls \
		--output-file $(DIST)/about/licences.md
	cd $(DIST) && sha256sum *.whl *.tar.gz about/* > SHA256SUMS

audit: $(TOOLS)/.ready  ## after make release: known vulnerabilities of what the wheel installs; asks a data base on the network
	$(TOOLS)/bin/python -m pip list --format freeze --path $(WHEEL)/lib/python3*/site-packages | grep -v '^fedrank=' \
		> $(TOOLS)/audited.txt
	$(TOOLS)/bin/pip-audit --strict --disable-pip --no-deps --requirement $(TOOLS)/audited.txt

$(TOOLS)/.ready:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check build 'hatchling>=1.27' twine cyclonedx-bom \
		pip-licenses pip-audit 'check-jsonschema>=0.37'
	@touch $@

clean:  ## remove what the other targets made, except results in runs/
	rm -rf $(VENV) .venv-lowest .venv-flower .venv-clients .venv-torch $(TOOLS) $(DIST) site artefact report.html demo.html .pytest_cache .mypy_cache .ruff_cache .hypothesis

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fedrank needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]' $(BESIDE)
	@touch $@
endef

$(READY): EXTRAS := dev
$(READY): BESIDE := --editable ./reproduction
$(DEMO): EXTRAS := privacy,search
$(READY) $(DEMO): pyproject.toml reproduction/pyproject.toml
	$(install)
