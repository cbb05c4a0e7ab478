# make          set up .venv, play the life of a cached block, show the learner's scoreboard
# make test     install what the tests need, once, and run them: one to two minutes on two cores
# make test-all the slow tests as well: five to ten minutes
# make lab-05   run your lab-05 (labs/lab-05/starter.py); every lab has such a command
# make audit    run every lab on right, wrong and missing code; compile every kernel for GPUs that this machine lacks
# make book     set up what the book needs, build it and serve it: two minutes, 300 MB, no PyTorch, npm or browser
# make site     build it into book/site with PyTorch and npm: every fence runs, labs run in their pages
# make book-whole  the published book: with live notebooks and as one PDF; writes what `make book` shows without PyTorch
# make e2e      run the tests in a real browser: this system's Chromium
# make notebooks       open the first notebook in JupyterLab      make notebooks-html   export all, figures alive
# make notebooks-test  run all of them, and drive them in a browser
# make lint     what CI checks besides tests      make constraints, make clean, make help
# make snapshots ARGS=FILE   after rewording: write into a test file the sentences that are said now
# make lint-docs   print what the words of pages say that may be out of date; never an error
# make report   print the sizes of everything     make report SINCE=v1   with an older revision, and the difference
# make upstream VERSION=0.32.0   play the golden scenarios on another vLLM, write what changed; minutes, 3 GB in .upstream
# make sentences   print 200 random sentences for a reader to judge     make sentences SEED=7   another draw
#
# ARGS passes options on to pytest: make test ARGS="-k hash -x"
# Written for GNU make 3.81, which is what macOS has.

VENV := .venv
BIN  := $(VENV)/bin
PIP   = $(BIN)/python -m pip install -qq --disable-pip-version-check
# What constraints.txt pins, and nothing but the files whose hashes stand there. 26.1 is the first pip that does so.
PINNED = $(PIP) --require-hashes -c constraints.txt
OR_SAY = || { echo "pip could not install what is needed for this: see above. Is there a network?" >&2; exit 1; }
ARGS :=
NPM := book
LAB_PAGE := book/docs/assets/kv-lab/packed.json
BROWSER := mini_kv/tests/browser
unexport PYTHONDONTWRITEBYTECODE # with it each process of the tests compiles all modules anew, 10 s of CPU
unexport BROWSER # a user's variable of this name says which browser to open; it must not get our value
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# The first Python that is new enough; `make PY=...` overrides it. Looked for only when .venv is made.
PY = $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
       $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: start test test-all snapshots audit e2e book site book-whole book-test book-instructor book-pages \
        notebooks notebooks-html notebooks-test lint lint-docs report sentences upstream constraints clean help new-venv
.SUFFIXES:

# A student's tree has none of the folders that these need.
WHOLE := test test-all snapshots audit e2e book site book-whole book-instructor book-test book-pages \
         notebooks-test lint lint-docs report sentences upstream constraints
ifeq ($(wildcard solutions),)
ifneq ($(filter $(WHOLE),$(MAKECMDGOALS)),)
$(error this tree has only the labs: type make, make lab-NN or make notebooks)
endif
endif

start: $(VENV)/.ready
	@$(BIN)/mini-kv story share-and-evict
	@echo
	@echo "Your scoreboard"
	@echo "==============="
	@$(BIN)/mini-kv status
	@echo "or, shorter:  make lab-NN        all commands:  make help"
	@echo "To use mini-kv and pytest directly, activate the environment first:"
	@case "$$SHELL" in \
	  *fish) echo "    source $(BIN)/activate.fish" ;; \
	  *csh)  echo "    source $(BIN)/activate.csh" ;; \
	  *)     echo "    source $(BIN)/activate" ;; \
	esac

# `env -u`: a LAB_IMPL left over in the shell must not change what is tested.
# In two processes. More of them: make test ARGS="-n 8"; none, for a debugger: ARGS="-n 0". A file's tests share fixtures,
# so one process runs them all; of audits and tests in a browser, which take long, each process takes the next one.
BY_FILE = -p xdist -n 2 --dist loadfile
BY_TEST = -p xdist -n 2 --dist loadgroup
# A browser on a busy machine may be late. A test that fails is tried twice more, and listed with its errors; a wrong
# result fails each time.
AGAIN = -p rerunfailures -p mini_kv.tests.second_tries --reruns 2 -rR

test: $(VENV)/.torch $(LAB_PAGE)
	@env -u LAB_IMPL $(BIN)/python -m pytest $(BY_FILE) $(ARGS)

test-all: $(VENV)/.torch $(LAB_PAGE)
	@env -u LAB_IMPL $(BIN)/python -m pytest -m "not (audit or browser or book or notebooks or prose)" $(BY_FILE) $(ARGS)

# A snapshot that is mended counts as an error of that run; the second one says what is still wrong.
snapshots: $(VENV)/.lint
	@env -u LAB_IMPL PATH="$(abspath $(BIN)):$$PATH" \
	  $(BIN)/python -m pytest -p inline_snapshot --inline-snapshot=fix -q $(ARGS) >/dev/null || true
	@git --no-pager diff -U0 -- $(ARGS)
	@env -u LAB_IMPL $(BIN)/python -m pytest -q $(ARGS)

audit: $(VENV)/.torch
	@env -u LAB_IMPL $(BIN)/python -m pytest -m audit $(BY_TEST) $(ARGS)

e2e: $(VENV)/.e2e $(VENV)/.book $(VENV)/.torch $(LAB_PAGE) $(BROWSER)/node_modules/.ready
	@env -u LAB_IMPL $(BIN)/python -m pytest -m browser $(BY_TEST) $(AGAIN) $(ARGS)

# app_settings_dir: our JupyterLab does not ask whether it may fetch news, and looks for no updates.
notebooks: $(VENV)/.notebooks
	@$(BIN)/jupyter lab --LabApp.app_settings_dir="$(CURDIR)/notebooks/.jupyterlab" $(ARGS) \
	  notebooks/01-blocks-and-waste.ipynb

notebooks-html: $(VENV)/.notebooks
	@$(BIN)/jupyter nbconvert --to html --execute --config notebooks/.nbconvert/offline.json \
	  --output-dir site/notebooks notebooks/*.ipynb

notebooks-test: $(VENV)/.notebooks $(VENV)/.e2e $(BROWSER)/node_modules/.ready
	@env -u LAB_IMPL $(BIN)/python -m pytest -m notebooks $(BY_TEST) $(AGAIN) $(ARGS)

lab-%: $(VENV)/.ready
	@LAB_IMPL=starter $(BIN)/python -m pytest labs/$@ $(ARGS)

# The book. book: where .venv has PyTorch, every fence runs; else the outputs of some are those in book/data/outputs. It asks
# for no npm, so labs run in their pages only after `make site` or `make test`. book-test: build it and look at every page in a browser. book-instructor: with solutions and notes behind
# folds, into book/site-instructor. book-pages: the pages and the navigation that follow from modules, labs and headings;
# the pages are not in git, and MkDocs has them written by itself.
# No -q for MkDocs: it would silence the warnings before strict has counted them.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

book: $(VENV)/.book
	$(MKDOCS) serve -f book/mkdocs.yml $(ARGS)

site: $(VENV)/.book $(VENV)/.torch $(LAB_PAGE)
	$(MKDOCS) build -f book/mkdocs.yml
	@$(BIN)/python -m mini_kv_book.leaks book/site
	@$(BIN)/python -m mini_kv_book.course --notice

# The notebooks first: chapters lead to those that are there. Then the outputs, which the build uses again.
book-whole: $(VENV)/.book $(VENV)/.torch $(VENV)/.notebooks $(VENV)/.e2e $(LAB_PAGE)
	@$(BIN)/jupyter nbconvert --to html --execute --config notebooks/.nbconvert/offline.json \
	  --output-dir book/docs/notebooks notebooks/*.ipynb
	@$(BIN)/python -m mini_kv_book.outputs
	@$(MAKE) --no-print-directory site
	@$(BIN)/python -m mini_kv_book.publish book/site

book-instructor: $(VENV)/.book $(VENV)/.torch $(LAB_PAGE)
	MINI_KV_BOOK=instructor $(MKDOCS) build -f book/mkdocs.yml -d site-instructor

book-test: $(VENV)/.book $(VENV)/.torch $(VENV)/.e2e $(LAB_PAGE) $(BROWSER)/node_modules/.ready
	@env -u LAB_IMPL $(BIN)/python -m pytest -m book $(BY_TEST) $(AGAIN) $(ARGS)

book-pages: $(VENV)/.book
	@$(BIN)/python -m mini_kv_book.generate

lint: $(VENV)/.lint $(VENV)/.torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@for lab in $(notdir $(wildcard labs/lab-*)); do \
	  echo "mypy labs/$$lab"; MYPYPATH=labs $(BIN)/mypy -p $$lab || exit 1; \
	  echo "mypy solutions/$$lab"; $(BIN)/mypy solutions/$$lab/*.py || exit 1; done
	$(BIN)/lint-imports
	$(BIN)/codespell

# What a reviewer looks at. It is no reason for red, so it exits 0.
lint-docs: $(VENV)/.book $(VENV)/.torch
	-@env -u LAB_IMPL $(BIN)/python -m pytest -m prose -q $(ARGS)

report:
	@$(PY) .ci/report.py $(if $(SINCE),--since "$(SINCE)")

sentences:
	@$(PY) .ci/sentences.py $(SEED)

upstream: $(VENV)/.ready
	@[ -n "$(VERSION)" ] || { echo "make upstream VERSION=0.32.0: which version of vLLM?" >&2; exit 1; }
	@$(BIN)/python -m mini_kv.dev.recorders.upstream "$(VERSION)"

# torch stands here by hand, and without hashes: resolving it would pin CUDA packages that a CPU does not need, and its build
# for a CPU is another file than the default index's. So the extras that need it are not asked; their packages are named.
OF_TORCH := filelock fsspec jinja2 networkx setuptools sympy typing-extensions # what torch itself needs
SERVED := starlette uvicorn prometheus-client openai pyzmq msgspec # mini-kv serve, its clients and listeners
SWEPT := joblib distributed # --jobs and --dask of mini-kv replay and curve
WITH_TORCH := $(OF_TORCH) $(SERVED) $(SWEPT) numpy safetensors transformers matplotlib psutil valkey
constraints: $(VENV)/.lint
	@{ echo "# Every version that CI and make install, and the hashes of its files. Written by: make constraints"; \
	   printf '%s\n' $(WITH_TORCH) 'setuptools>=77' 'transformers>=5.17' "triton==3.7.1 ; sys_platform == 'linux'" \
	   | $(BIN)/uv pip compile -q --no-header --no-annotate --universal --python-version 3.11 --generate-hashes \
	     --group dev --extra notebooks --extra events --extra sweep pyproject.toml - \
	   && $(BIN)/uv pip compile -q --no-header --no-annotate --universal --python-version 3.11 --generate-hashes \
	     --no-deps --group peers \
	   && echo "torch==2.13.0"; \
	 } > constraints.txt.new && mv constraints.txt.new constraints.txt || { rm -f constraints.txt.new; exit 1; }

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf $(NPM)/node_modules $(NPM)/.cache $(BROWSER)/node_modules $(dir $(LAB_PAGE)) book/docs/notebooks
	rm -rf .upstream book/docs/api/mini_kv.*.md book/docs/labs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# The environment. A stamp file is the proof that a step was done; it is redone when its inputs change. Two makes at once
# would tear it, so a stamp is made by a second make, which holds the lock and looks again at what is left to do.

STAMPS := $(addprefix $(VENV)/,.ready .torch .book .notebooks .e2e .lint .peers) \
  $(NPM)/node_modules/.ready $(LAB_PAGE) $(BROWSER)/node_modules/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
$(VENV)/.torch $(VENV)/.e2e $(VENV)/.book: $(VENV)/.ready
$(VENV)/.peers: $(VENV)/.torch # with numpy
$(VENV)/.notebooks: $(VENV)/.torch
$(VENV)/.lint: $(VENV)/.torch # whose types mypy reads
$(NPM)/node_modules/.ready: $(NPM)/package.json $(NPM)/package-lock.json constraints.txt | $(VENV)/.ready
$(LAB_PAGE): $(NPM)/node_modules/.ready $(wildcard $(NPM)/pack_labs.* $(NPM)/course.toml $(NPM)/mini_kv_book/assets/* conftest.py pyproject.toml \
  mini_kv/core/*.py mini_kv/core/*/*.py mini_kv/policy/*.py mini_kv/story/*.py mini_kv/story/languages/* mini_kv/course/*.py \
  mini_kv/course/*/*.py mini_kv/course/verify/*/* labs/lab-*/*)
$(BROWSER)/node_modules/.ready: $(BROWSER)/package.json $(BROWSER)/package-lock.json

ifndef HAVE_LOCK
# Nothing where Python is missing, which new-venv says, or has no fcntl.
LOCK = $(shell $(PY) -c 'import fcntl' 2>/dev/null && echo "$(PY) .ci/alone.py")

$(STAMPS):
	@$(LOCK) $(MAKE) -s HAVE_LOCK=1 $@
else

$(VENV)/.ready:
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(MAKE) -s new-venv
	@$(PIP) 'pip>=26.1' && $(PINNED) setuptools --group test && $(PIP) --no-deps --no-build-isolation -e . $(OR_SAY)
	@touch $@

$(VENV)/.book:
	@echo "adding MkDocs to $(VENV) (once, about a minute)"
	@$(PINNED) --group book $(OR_SAY)
	@touch $@

$(VENV)/.notebooks:
	@echo "adding JupyterLab to $(VENV) (once, a minute or two)"
	@$(PINNED) jupyterlab ipywidgets anywidget matplotlib --group nb $(OR_SAY)
	@touch $@

$(VENV)/.e2e:
	@echo "adding Playwright to $(VENV) (once, under a minute)"
	@$(PINNED) --group e2e $(OR_SAY)
	@touch $@

$(VENV)/.lint:
	@echo "adding linters to $(VENV) (once, about a minute)"
	@$(PINNED) --group dev $(OR_SAY)
	@touch $@

# The simulator that four eviction policies are held against, and DuckDB, which reads Parquet in a test. Without their
# dependencies: for a stream of ids the simulator uses numpy alone, and boto3, which reads traces from S3, asks for an
# older python-dateutil than the rest.
$(VENV)/.peers:
	@echo "adding libcachesim and duckdb to $(VENV)"
	@$(PINNED) --no-deps --group peers $(OR_SAY)
	@touch $@

# torch, what kernels, engine and server need, matplotlib for the charts in the book, and psutil, which transformers'
# continuous batching asks for: we compare with it. First the build of torch for a CPU, since the default index brings gigabytes of
# CUDA on Linux; where its address cannot be reached, whatever pip finds elsewhere. No hash is asked of torch alone.
$(VENV)/.torch:
	@echo "adding PyTorch, Triton, transformers, a web server and clients to $(VENV) (once, 2 GB on the disk: minutes, as the network allows)"
	@$(PINNED) $(WITH_TORCH) "triton ; sys_platform == 'linux'" $(OR_SAY)
	@$(BIN)/python -c 'import torch' 2>/dev/null \
	  || $(PIP) --no-deps --retries 0 --timeout 10 --index-url $(TORCH_INDEX) "$$(grep ^torch== constraints.txt)" 2>/dev/null \
	  || true
	@$(PIP) "$$(grep ^torch== constraints.txt)" $(OR_SAY)
	@touch $@

# A browser's Python, an editor, and pytest for both. Whoever has no npm, or cannot reach its registry, loses what runs
# in a browser alone: tests are skipped and say what is missing, and the book's labs say how to run them at home. Inside
# node_modules, so that whatever empties it has this done again.
$(NPM)/node_modules/.ready:
	@! command -v npm >/dev/null || { echo "adding a browser's Python to $(NPM) (once, about a minute)" \
	  && cd $(NPM) && npm ci --loglevel=error >/dev/null \
	  && PATH="$(abspath $(BIN)):$$PATH" npm run --silent wheels && touch node_modules/.ready; } \
	  || echo "the browser's Python could not be installed: see above; what needs it is left out" >&2

# The same with mini_kv and the labs, packed for the pages that run them.
$(LAB_PAGE):
	@[ ! -f $< ] || (cd $(NPM) && npm run --silent labs) || echo "the labs could not be packed for their pages: see above" >&2

$(BROWSER)/node_modules/.ready:
	@! command -v npm >/dev/null || { echo "adding the accessibility checker (once, seconds)" \
	  && cd $(BROWSER) && npm ci --loglevel=error >/dev/null && touch node_modules/.ready; } \
	  || echo "the accessibility checker could not be installed: see above; its tests are left out" >&2

endif

new-venv:
	@[ -n "$(PY)" ] || { echo "mini_kv needs Python 3.11 or newer and found none: install one (macOS: brew install" \
	  "python@3.13; Debian or Ubuntu: apt install python3 python3-venv) or name yours: make PY=/path/to/python3" >&2; exit 1; }
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "mini_kv needs Python 3.11 or" \
	  "newer, and $(PY) is older or missing: name another one: make PY=/path/to/python3" >&2; exit 1; }
	@$(PY) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PY) cannot make a virtual environment: on Debian or" \
	  "Ubuntu type 'sudo apt install python3-venv', then make again" >&2; exit 1; }
	@echo "setting up $(VENV) (once, about a minute)"
	@$(PY) -m venv --clear $(VENV) || { rm -rf $(VENV); echo "$(PY) could not make $(VENV): see above" >&2; exit 1; }
