# make          set up .venv, play the life of a cached block, show the learner's scoreboard
# make test     set up what the tests need and run them all
# make lab-05   run your lab-05 (labs/lab-05/starter.py); so for every lab
# make audit    run every lab on right, wrong and missing code
# make book     set up what the book needs, build it, serve it      make site   build it into book/site, no more
# make lint     what CI checks besides tests      make size, make constraints, make clean, make help
#
# ARGS passes options on to pytest: make test ARGS="-k hash -x"
# Written for GNU make 3.81, which is what macOS has.

VENV := .venv
BIN  := $(VENV)/bin
PIP   = $(BIN)/python -m pip install -qq --disable-pip-version-check
ARGS :=
PYODIDE := mini_kv/tests/pyodide
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# The first Python that is new enough; `make PY=...` overrides it. Looked for only when .venv is made.
PY = $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
       $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: start test audit book site book-instructor book-zensical book-pages lint size constraints clean help new-venv
.SUFFIXES:

start: $(VENV)/.ready
	@$(BIN)/mini-kv story share-and-evict
	@echo
	@echo "Your scoreboard"
	@echo "==============="
	@$(BIN)/mini-kv status
	@echo "or, shorter:  make lab-NN        everything that there is:  make help"
	@echo "To use mini-kv and pytest directly, activate the environment first:"
	@case "$$SHELL" in \
	  *fish) echo "    source $(BIN)/activate.fish" ;; \
	  *csh)  echo "    source $(BIN)/activate.csh" ;; \
	  *)     echo "    source $(BIN)/activate" ;; \
	esac

# `env -u`: a LAB_IMPL left over in the shell must not change what is tested.
test: $(VENV)/.torch $(PYODIDE)/node_modules/.ready
	@env -u LAB_IMPL $(BIN)/python -m pytest $(ARGS)

audit: $(VENV)/.torch
	@env -u LAB_IMPL $(BIN)/python -m pytest -m audit $(ARGS)

lab-%: $(VENV)/.ready
	@LAB_IMPL=starter $(BIN)/python -m pytest labs/$@ $(ARGS)

# The book. book-instructor: with solutions and notes behind folds, into book/site-instructor. book-zensical: the same
# pages by MkDocs' successor. book-pages: the pages and the navigation that follow from modules and labs.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

book: site
	$(MKDOCS) serve -f book/mkdocs.yml $(ARGS)

site: $(VENV)/.book
	$(MKDOCS) build -q -f book/mkdocs.yml
	@$(BIN)/python -m mini_kv_book.leaks book/site

book-instructor: $(VENV)/.book
	MINI_KV_BOOK=instructor $(MKDOCS) build -q -f book/mkdocs.yml -d site-instructor

book-zensical: $(VENV)/.book
	@$(PIP) --group zensical && cd book && ../$(BIN)/zensical build --strict

book-pages: $(VENV)/.book
	@$(BIN)/python -m mini_kv_book.generate

lint: $(VENV)/.lint $(VENV)/.torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@for lab in $(wildcard labs/lab-* solutions/lab-*); do \
	  echo "mypy $$lab"; $(BIN)/mypy $$lab/*.py || exit 1; done
	$(BIN)/lint-imports
	@$(BIN)/python .ci/size.py

size:
	@$(PY) .ci/size.py

# torch stands here by hand: resolving it would pin CUDA packages that a CPU does not need.
constraints: $(VENV)/.lint
	@{ echo "# Every version that CI and make install. Written by: make constraints"; \
	   $(BIN)/uv pip compile -q --no-header --universal --python-version 3.11 --group dev --extra notebooks pyproject.toml \
	   && echo "torch==2.13.0" && echo "    # by hand: the extra attention" \
	   && echo "triton==3.7.1 ; sys_platform == 'linux'" && echo "    # by hand: the extra triton"; \
	 } > constraints.txt.new && mv constraints.txt.new constraints.txt || { rm -f constraints.txt.new; exit 1; }

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf $(PYODIDE)/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# The environment. A stamp file is the proof that a step was done; it is redone when its inputs change.

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(MAKE) -s new-venv
	@$(PIP) 'pip>=25.1' && $(PIP) -c constraints.txt -e . --group test \
	  || { echo "pip could not install what mini_kv needs: see above. Is there a network?" >&2; exit 1; }
	@touch $@

$(VENV)/.book: $(VENV)/.ready
	@$(PIP) -c constraints.txt --group book && touch $@

$(VENV)/.lint: $(VENV)/.ready
	@$(PIP) -c constraints.txt --group dev && touch $@

# torch and what the kernels need. First the build for a CPU, since the default index brings gigabytes of CUDA on Linux;
# where its address cannot be reached, whatever pip finds elsewhere.
$(VENV)/.torch: $(VENV)/.ready
	@$(BIN)/python -c 'import torch' 2>/dev/null \
	  || $(PIP) --no-deps --retries 0 --timeout 10 --index-url $(TORCH_INDEX) "$$(grep ^torch== constraints.txt)" 2>/dev/null \
	  || true
	@$(PIP) -c constraints.txt -e '.[triton]' && touch $@

# A browser's Python, and pytest for it. Whoever has no npm, or cannot reach its registry, loses these tests alone:
# they are skipped and say what is missing. Inside node_modules, so that whatever empties it has this done again.
$(PYODIDE)/node_modules/.ready: $(PYODIDE)/package.json $(PYODIDE)/package-lock.json constraints.txt | $(VENV)/.ready
	@! command -v npm >/dev/null || { cd $(PYODIDE) && npm ci --loglevel=error >/dev/null \
	  && PATH="$(abspath $(BIN)):$$PATH" npm run --silent wheels && touch node_modules/.ready; } \
	  || echo "the browser's Python could not be installed: see above; its tests are left out" >&2

new-venv:
	@[ -n "$(PY)" ] || { echo "mini_kv needs Python 3.11 or newer and found none: install one (macOS: brew install" \
	  "python@3.13; Debian or Ubuntu: apt install python3 python3-venv) or name yours: make PY=/path/to/python3" >&2; exit 1; }
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "mini_kv needs Python 3.11 or" \
	  "newer, and $(PY) is older or missing: name another one: make PY=/path/to/python3" >&2; exit 1; }
	@$(PY) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PY) cannot make a virtual environment: on Debian or" \
	  "Ubuntu type 'sudo apt install python3-venv', then make again" >&2; exit 1; }
	@echo "setting up $(VENV) (once, under a minute)"
	@$(PY) -m venv --clear $(VENV) || { rm -rf $(VENV); echo "$(PY) could not make $(VENV): see above" >&2; exit 1; }
