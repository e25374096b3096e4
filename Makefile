# The names of these targets are a public interface.
PYTHON ?= python3
BIN := .venv/bin
# Nobody's settings for Python or Jupyter outside .venv reach the book.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export JUPYTER_PREFER_ENV_PATH := 1

.DELETE_ON_ERROR:
.PHONY: help book run test dist long colab portability stability mutants clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

book: .venv/.book-ready ## execute what is stale and build the pages, warnings as errors
	@"$(BIN)/python" book/_ext/build.py

run: .venv/.book-ready ## execute every chapter afresh, in parallel
	@"$(BIN)/python" book/_ext/execute.py

# loadscope keeps a module's tests, and a notebook's cells, on one worker; the slowest modules come first by name
test: .venv/.test-ready ## run every test: library, notebooks, reruns, site
	"$(BIN)/python" -m pytest tests -n 2 --dist loadscope --no-loadscope-reorder \
	  --cov=resnorm_lib --cov-report= --cov-fail-under=95
	"$(BIN)/python" -m pytest book --nbval --nbval-current-env --nbval-cell-timeout=600 \
	  --nbval-sanitize-with tests/nbval-sanitize.cfg -n 2 --dist loadscope

dist: .venv/.book-ready ## make one zip of the built book in dist/
	@"$(BIN)/python" book/_ext/build.py --dist

long: .venv/.book-ready ## repeat the stored long runs (minutes each) and write resnorm_lib/data/
	@"$(BIN)/python" book/_ext/long_runs.py

colab: .venv/.test-ready ## run every chapter, in its quick form, as Colab does: three bare environments, two ways
	@"$(BIN)/python" tests/colab.py

portability: .venv/.test-ready ## run every chapter on three CPU paths and every quick setting to its end (an hour)
	"$(BIN)/python" -m pytest tests/test_cpu_paths.py --every-path -n 2
	"$(BIN)/python" -m pytest tests/test_papermill.py --every-setting -n 2 --dist loadscope
	"$(BIN)/python" -m pytest book --nbval --nbval-current-env --nbval-cell-timeout=600 \
	  --nbval-sanitize-with tests/nbval-sanitize.cfg -n 2 --dist loadscope

stability: .venv/.book-ready ## check the coverage of every interval by simulation (a quarter of an hour)
	@"$(BIN)/python" tests/stability_stats.py

mutants: .venv/.test-ready ## change the library's mathematics on purpose; each change must turn a test red
	@"$(BIN)/python" tests/mutants.py

clean: ## remove what was built (.venv stays)
	rm -rf _build dist

# Each stamp is made last, so an interrupted set-up is taken up again.
.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "The book needs Python 3.11 or newer; this is %s: \
	name another with make PYTHON=/path/to/python3." % sys.version.split()[0])'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.book-ready: requirements.txt pyproject.toml .venv/.made
	@echo "Installing what requirements.txt pins (only when it has changed) ..."
	@"$(BIN)/python" -m pip install --quiet -r requirements.txt -e .
	@touch $@

.venv/.test-ready: requirements-dev.txt requirements-peers.txt .venv/.book-ready
	@echo "Installing what requirements-dev.txt pins (only when it has changed) ..."
	@"$(BIN)/python" -m pip install --quiet -r requirements-dev.txt
	@"$(BIN)/python" -m pip install --quiet --no-deps -r requirements-peers.txt
	@touch $@
