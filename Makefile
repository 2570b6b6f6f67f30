RECIPE ?= chat_smollm2
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve test lint clean chromium
serve: $(VENV)/.serve
	$(BIN)/servekit +recipe=$(RECIPE) $(ARGS)

test: $(VENV)/.test chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

lint: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

# The browser that the live page is tried in. Where it is missing and cannot be installed, its tests say so.
chromium:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && apt-get install -q -y --no-install-recommends chromium || true; fi

# torch first and alone: whatever depends on it must find it installed, at the pinned version.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt torch
	touch $@

$(VENV)/.serve: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.test: $(VENV)/.serve
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV)
