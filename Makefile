# Commands of the compendium. `make help` lists them. Needed: Python 3.11 or 3.12 with venv, make, git.
# VENV=folder uses another environment, PYTHON=name another interpreter to make it, CORES=n more than two cores.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
CORES ?= 2
BIN := $(abspath $(VENV))/bin
CANDIDATES := python3.11 python3.12 python3

# A user's own Python path, start-up files, kernels and plot styles must not change a result. Without stored bytecode,
# every process compiles the library again.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP JUPYTER_PATH JUPYTER_CONFIG_PATH MATPLOTLIBRC PYTEST_ADDOPTS
unexport PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1
export IPYTHONDIR := $(abspath $(VENV))/user/ipython
export JUPYTER_CONFIG_DIR := $(abspath $(VENV))/user/jupyter
export JUPYTER_DATA_DIR := $(abspath $(VENV))/user/jupyter
export MPLCONFIGDIR := $(abspath $(VENV))/user/matplotlib
export PATH := $(BIN):$(PATH)

# A stamp carries the checksum of what it stands for: the same lock is never installed twice, a changed one always is.
LOCK_STAMP := $(VENV)/.qgcam-lock-$(shell sha256sum requirements.lock | cut -c1-16)
KERNELS := qgcam_lib/metrics/kernels.py qgcam_lib/phrase_detection/matching.py
SELF_STAMP := $(VENV)/.qgcam-self-$(shell cat pyproject.toml $(KERNELS) | sha256sum | cut -c1-16)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
LOCKED := --no-deps --require-hashes -r requirements.lock
QUIETLY = > $(VENV)/install.log 2>&1 || { tail -n 30 $(VENV)/install.log | cut -c1-300; exit 1; }

# Checks must not see settings from the environment, nor reach for a model hub.
CLEANLY := env $(foreach name,$(filter QGCAM_%,$(.VARIABLES)),-u $(name)) HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

# Another processor: the code that each library takes where there is neither AVX nor a second core.
OTHER_HOME := $(abspath $(VENV))/user/other-processor
OTHER := $(CLEANLY) ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem \
  NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" NUMBA_CPU_NAME=generic OMP_NUM_THREADS=1 \
  MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 NUMBA_CACHE_DIR=$(OTHER_HOME)/numba \
  QGCAM_OUTPUTS=$(OTHER_HOME)/outputs

# The scores' machine code, made before anyone waits for it (and before a notebook stores the line that says so).
COMPILE = $(BIN)/python -c "import numpy; from qgcam_lib.metrics import score_maps; \
  from qgcam_lib.phrase_detection import evaluate; from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd; \
  [score_maps(numpy.ones((1, 2, 2), kind), [[0, 0, 1, 1]]) for kind in 'fd']; \
  data = synthetic_tricd(3); evaluate(data, synthetic_predictions(data), n_bootstrap=10)"

.PHONY: help env reproduce papers check test nightly lint exported committed notebooks pytest fuzz lessons other-processor lab docs lock \
  zoo bench bench-gpu live

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

env: $(SELF_STAMP) | $(VENV)/user/ipython  ## make or update the environment in .venv

$(LOCK_STAMP): | $(VENV)/bin/python
	@echo "Installing the locked packages into $(VENV) (about 300, 7 GB; once, one or two minutes and the download) ..."
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.lock
	@$(PIP) install --no-deps --require-hashes -r $(VENV)/uv.lock $(QUIETLY)
	@$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode $(LOCKED) > $(VENV)/install.log 2>&1 || { \
	  echo "uv failed; see $(VENV)/uv.log. Installing with pip, which takes some minutes more ..."; \
	  mv $(VENV)/install.log $(VENV)/uv.log; $(PIP) install $(LOCKED) $(QUIETLY); }
	@rm -f $(VENV)/.qgcam-lock-* && touch $@

$(SELF_STAMP): $(LOCK_STAMP)
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable . $(QUIETLY)
	@$(COMPILE)
	@rm -f $(VENV)/.qgcam-self-* && touch $@

$(VENV)/user/ipython: | $(SELF_STAMP)
	@mkdir -p $@

$(VENV)/bin/python:
	@python="$(PYTHON)"; \
	for name in $$python $(CANDIDATES); do \
	  if $$name -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2> /dev/null; \
	  then echo "Making $(VENV) with $$name"; $$name -m venv $(VENV); exit 0; fi; \
	  if [ -n "$$python" ]; then break; fi; \
	done; \
	echo "Python 3.11 or 3.12 with venv is needed, tried: $${python:-$(CANDIDATES)}. On Debian: apt-get install python3.11-venv;" \
	     "or name one: make PYTHON=/path/to/python3.11" >&2; exit 1

reproduce: env  ## run the paper notebooks, print the score table, compare with the stored pages (STRICT=1: on any processor)
	@snakemake --cores $(CORES) --quiet rules progress host
	@qgcam table q_groundcam_table1
	@qgcam reference $(if $(STRICT),--strict)

papers: env  ## run the paper notebooks; store in each of them what its run shows, and its numbers in outputs/reference
	@qgcam papers --check
	@snakemake --cores $(CORES) --quiet rules progress host || echo "Runs failed; the pages of the others are stored." >&2
	@status=0; qgcam papers || status=$$?; python docs/first_run.py || status=1; python docs/page_tables.py || status=1; nbdev-clean; exit $$status

check: exported lint  ## after an edit: exports, style, changed notebooks, the tests that the edit reaches (SINCE=commit, SECONDS=30)
	@$(CLEANLY) $(ONE_THREAD) SINCE=$(SINCE) SECONDS=$(SECONDS) CORES=$(CORES) python .ci/check.py

test: env lint exported notebooks pytest committed  ## on every push: style, who imports whom, library notebooks, pytest, exports

nightly: env  ## reproduce, all notebooks, the tests marked nightly (kills, doors, browsers, hostile data, trainings), fuzz (hours)
	@$(MAKE) reproduce
	@$(CLEANLY) $(ONE_THREAD) nbdev-test --n-workers $(CORES)
	@$(CLEANLY) $(ONE_THREAD) EVERY_MUTANT=1 pytest -m nightly --numprocesses $(CORES) --dist loadfile
	@$(MAKE) fuzz

lint: env
	@ruff check .
	@lint-imports --no-logo

exported: env  # what is tested is what stands in the notebooks
	@python .ci/export.py

committed: exported  # is all that in git? The last check, so that uncommitted work is tested too
	@git diff --exit-code --stat -- nbs qgcam_lib || \
	  { echo "All checks above passed. The files above are not committed as nbdev writes them: commit (or undo) your changes." >&2; exit 1; }
	@new="$$(git ls-files --others --exclude-standard -- nbs qgcam_lib)"; \
	if [ -n "$$new" ]; then echo "Not in git, though the package needs them: $$new" >&2; exit 1; fi

notebooks: env  # but for trainings and solutions, which make nightly runs too
	@$(CLEANLY) $(ONE_THREAD) nbdev-test --n-workers $(CORES) --skip-folder-re '^([_.]|finetune$$|solutions$$)'

pytest: env
	@$(CLEANLY) $(ONE_THREAD) pytest --numprocesses $(CORES) --dist loadfile --junitxml=.pytest_cache/durations.xml

fuzz: env  ## hostile inputs for every reader: N= a target (10,000), TARGETS= of their names, as in pytest -k, SEED=
	@$(CLEANLY) OMP_NUM_THREADS=1 N=$(or $(N),10000) SEED=$(SEED) pytest tests/fuzz -m "nightly or not nightly" -k "$(TARGETS)" -o faulthandler_timeout=120

lessons: env  ## do the stored outputs of the lessons still come out?
	@$(CLEANLY) pytest --nbval nbs/lessons --nbval-current-env -p no:cacheprovider

other-processor: env  ## stored numbers, the README's run and the lessons' outputs, computed as on another processor
	@rm -rf $(OTHER_HOME)/outputs
	@$(OTHER) $(COMPILE)
	@$(OTHER) pytest tests/test_golden.py --numprocesses $(CORES)
	@$(OTHER) qgcam run nbs/papers/q_groundcam.ipynb
	@$(OTHER) qgcam reference q_groundcam --strict
	@$(OTHER) pytest --nbval nbs/lessons --nbval-current-env -p no:cacheprovider --numprocesses $(CORES) --dist loadfile

lab: env  ## open JupyterLab on its start page, nbs/00_start.ipynb
	@env -u JUPYTER_CONFIG_DIR -u JUPYTER_DATA_DIR JUPYTER_CONFIG_PATH=$(abspath .ci/jupyter) \
	  jupyter lab --notebook-dir . nbs/00_start.ipynb  # .ci/jupyter: no question about news, no look for updates

docs: env  ## build the pages: docs/_build/html/index.html
	@$(CLEANLY) python docs/pages.py
	@$(CLEANLY) sphinx-build --quiet --jobs $(CORES) --fail-on-warning --keep-going -d docs/_build/doctrees docs docs/_build/html
	@echo "Pages: docs/_build/html/index.html"

live: env  ## a model for the page "Try it" (needs npm, onnx, onnxscript); then make docs
	@$(CLEANLY) python docs/live_model.py

lock: env  ## resolve requirements.in again (needs the network), keep what still fits
	@grep -v '^#' requirements.lock > $(VENV)/lock.tmp
	@uv pip compile requirements.in --override requirements.overrides.txt --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file $(VENV)/lock.tmp $(UPGRADE) > /dev/null
	@{ grep '^#' requirements.lock; cat $(VENV)/lock.tmp; } > $(VENV)/lock.new && mv $(VENV)/lock.new requirements.lock
	@python .ci/environment.py requirements.lock > $(VENV)/environment.new && mv $(VENV)/environment.new environment.yml

zoo: env  ## train the mini models that data/zoo lacks (4 to 35 minutes each on two quiet cores)
	@qgcam zoo --missing

bench: env  ## measure the fast paths against the published ways, and what intervals hold; store both pages
	@qgcam papers --check
	@qgcam run nbs/papers/benchmarks.ipynb --force
	@qgcam run nbs/papers/interval_coverage.ipynb
	@qgcam papers benchmarks interval_coverage
	@nbdev-clean

bench-gpu: env  ## measure every explainer on this machine's GPU of NVIDIA's; store the page
	@python -c "import torch; torch.cuda.init()"
	@qgcam papers --check
	@qgcam run nbs/papers/benchmarks_gpu.ipynb --force
	@qgcam papers benchmarks_gpu
	@nbdev-clean
