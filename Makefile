# Everything a newcomer needs. Each target sets up the virtual environment itself, once, and again when the
# project's metadata or the pinned versions change. Only Python 3.11+ and make have to be there.

.DEFAULT_GOAL := help
SHELL := /bin/sh
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$name"; break; }; \
	done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Two workers: every worker starts a sandbox of its own, and more of them would only wait for each other.
WORKERS ?= 2
FORMATTED := $(wildcard entrypoints evals examples bench graph models nodes policies sandbox testing tests tools src)

.PHONY: help setup demo test lint format diagram studio lock clean

help: ## Show this list (the default)
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Create .venv and install the project with its pinned dependencies

$(INSTALLED): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "Agentic Loop needs Python 3.11 or newer, and none was found on the PATH." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Agentic Loop needs Python 3.11 or newer; $(PYTHON) is older: $$("$(PYTHON)" --version 2>&1)." >&2; exit 1; }
	@if ! [ -x $(BIN)/python ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo "Creating $(VENV) with $(PYTHON)"; \
		"$(PYTHON)" -m venv --clear $(VENV) || { \
			echo "This Python cannot create virtual environments; on Debian and Ubuntu install python3-venv." >&2; exit 1; }; fi
	@echo "Installing the project and its pinned dependencies (a few minutes the first time)"
	@$(PIP) install -c constraints.txt setuptools
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev,studio]'
	@touch $@

demo: setup ## Resolve order 8472 from end to end, on real parts, in about half a minute
	@$(BIN)/agentic-loop demo

test: setup ## Check formatting, lint, types and layers, then run all tests
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/mypy -p agentic_loop -p tests
	$(BIN)/mypy examples
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -n $(WORKERS)

lint: setup ## Only the checks of make test that run nothing
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/mypy -p agentic_loop -p tests
	$(BIN)/mypy examples
	$(BIN)/lint-imports --no-cache

format: setup ## Format the code and apply the lint fixes that are safe
	$(BIN)/ruff check --fix $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)

diagram: setup ## Draw the compiled graph into docs/loop.md
	@$(BIN)/python -m agentic_loop.entrypoints.diagram docs/loop.md

studio: setup ## Open the loop in LangGraph Studio (langgraph dev), with the sandbox next to it
	@$(BIN)/agentic-loop sandbox & sandbox=$$!; trap 'kill $$sandbox 2>/dev/null' EXIT INT TERM; \
	AGENTIC_LOOP_DEVELOPMENT_IDENTITY="$${AGENTIC_LOOP_DEVELOPMENT_IDENTITY:-ravi,asha}" \
	AGENTIC_LOOP_BARE_ANSWERS="$${AGENTIC_LOOP_BARE_ANSWERS:-1}" \
	$(BIN)/langgraph dev $(STUDIO_OPTIONS)

lock: setup ## Write the newest versions that work together into constraints.txt
	@$(PIP) install --upgrade setuptools
	@$(PIP) install --upgrade --upgrade-strategy eager --no-build-isolation -e '.[dev,studio]'
	@{ echo '# The versions that the project is tested with: what make setup installs. Renew with make lock.'; \
		$(PIP) freeze --all --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' | grep -v '^pip==' | LC_ALL=C sort -f; \
	} > constraints.txt
	@touch $(INSTALLED)

clean: ## Remove the virtual environment and everything that was built or cached
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .langgraph_api
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
