# Needs only Python 3.11 or newer, make and pip, for the tests gcc and g++, and for those of the page Chromium with its driver. Every target sets up .venv by itself; a second run installs nothing.

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile -c constraints.txt
EXTRAS := test lint docs bench ray page

.DEFAULT_GOAL := help
.PHONY: help test test-slow test-page reproduce study lint format docs bench clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## List the targets.
	@echo 'Usage: make TARGET [ARGS="..."] [PYTHON=python3] [WORKERS=2]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

reproduce: .venv/.run.stamp ## Train the paper's agents, evaluate them on its grid, print the table and write the figures.
	@echo '==> deeprok reproduce'
	@$(BIN)/deeprok reproduce $(ARGS)

# The word after `study` is the name of a study, so it must not be looked for among the targets.
STUDY := $(if $(filter study,$(firstword $(MAKECMDGOALS))),$(word 2,$(MAKECMDGOALS)))
ifneq ($(STUDY),)
.PHONY: $(STUDY)
$(STUDY): study ; @:
endif

study: .venv/.run.stamp ## Run a study by name, make study NAME; without a name, list them.
ifeq ($(STUDY),)
	@echo 'Usage: make study NAME [ARGS="..."]'
	@echo
	@$(BIN)/python -m studies list
else
	@echo '==> deeprok reproduce --study $(STUDY)'
	@$(BIN)/deeprok reproduce --study $(STUDY) $(ARGS)
endif

test: .venv/.test.stamp ## Run every test but the slow ones.
	@echo '==> Running the tests (all but the slow ones) with $(WORKERS) workers'
	@$(BIN)/python -m pytest -q -m 'not slow' -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: .venv/.test.stamp .venv/.ray.stamp ## Run the slow tests: learning at full size, kills, damaged files, Ray.
	@echo '==> Running the slow tests with $(WORKERS) workers'
	@XLA_FLAGS="--xla_backend_optimization_level=3 $$XLA_FLAGS" $(BIN)/python -m pytest -v -m slow -n $(WORKERS) --dist worksteal $(ARGS)

test-page: .venv/.test.stamp .venv/.page.stamp .venv/.chromium.stamp ## Run the tests of the page of `deeprok report` in a real browser.
	@echo '==> Running the tests of the page in Chromium with $(WORKERS) workers'
	@$(BIN)/python -m pytest -q tests/browser -n $(WORKERS) --dist load $(ARGS)

lint: .venv/.lint.stamp ## Check style, format and types.
	@echo '==> ruff check'
	@$(BIN)/ruff check .
	@echo '==> ruff format --check'
	@$(BIN)/ruff format --check .
	@echo '==> mypy'
	@$(BIN)/mypy

format: .venv/.lint.stamp ## Format the code and apply ruff's safe fixes.
	@echo '==> ruff check --fix-only, ruff format'
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

docs: .venv/.docs.stamp ## Build the documentation into site/; any warning is an error.
	@echo '==> mkdocs build --strict'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo '==> Built site/index.html'

bench: .venv/.bench.stamp ## Measure speed against other implementations, side by side.
	@echo '==> Running the benchmarks'
	@$(BIN)/python benchmarks/run.py $(ARGS)

clean: ## Remove .venv, caches and built files; runs and results stay.
	@echo '==> Removing .venv, caches and built files'
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site benchmarks/build
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Set-up. A stamp is touched only after all went well, so an interrupted set-up is done again.

.venv/.venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deeprok needs Python 3.11 or newer; say which: make PYTHON=python3.11 ...")'
	@echo '==> Creating .venv'
	@$(PYTHON) -m venv --clear .venv
	@touch $@

.venv/.run.stamp: pyproject.toml constraints.txt | .venv/.venv.stamp
	@echo '==> Installing deeprok into .venv (a minute or two)'
	@$(PIP) -e .
	@touch $@

$(EXTRAS:%=.venv/.%.stamp): .venv/.%.stamp: pyproject.toml constraints.txt | .venv/.venv.stamp
	@echo '==> Installing deeprok[$*] into .venv (a minute or two)'
	@$(PIP) -e '.[$*]'
	@touch $@

# Debian's Chromium, which root gets here; others are told what to install.
.venv/.chromium.stamp: | .venv/.venv.stamp
	@if ! { command -v chromium && command -v chromedriver; } >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo '==> Installing chromium and chromium-driver'; \
	    (apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends chromium chromium-driver) >/dev/null; \
	  else \
	    echo 'make test-page needs chromium and chromedriver; on Debian: apt-get install chromium chromium-driver' >&2; exit 2; \
	  fi; \
	fi
	@touch $@
