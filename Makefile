# sotscope: two commands do everything. `make demo` records real runs of a real model; `make test` runs the whole suite.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)
DEMO_PROMPT ?= Why is the sky blue?
DEMO_TEXT ?= The sky is blue because air scatters short waves of light more than long ones.

.PHONY: help demo test dashboard browser lint docs clean

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.all  ## install, fetch the embedded model, record a run in each mode, and say what to type next
	$(BIN)/sotscope fetch smollm2
	@echo "== mode ar: the model's own words one by one, every state of every layer"
	$(BIN)/sotscope record "$(DEMO_PROMPT)" --sites all --max-new-tokens 64 --out "$(DEMO)/ar.sot"
	@echo "== modes lookup, sot, dmtd, combine: several tokens a step, the same text"
	@set -e; for mode in lookup sot dmtd combine; do \
		$(BIN)/sotscope record "$(DEMO_PROMPT)" --mode $$mode --max-new-tokens 64 --out "$(DEMO)/$$mode.sot" --quiet; done
	@echo "== mode forced: the same states along a given text"
	$(BIN)/sotscope record "$(DEMO_PROMPT)" --force "$(DEMO_TEXT)" --sites resid --out "$(DEMO)/forced.sot"
	@echo "== what was recorded"
	$(BIN)/sotscope list "$(DEMO)"
	@echo "== the same prompt in each mode (the run of ar also wrote every state, so its speed is not the others')"
	$(BIN)/sotscope compare $(foreach mode,ar lookup sot dmtd combine,"$(DEMO)/$(mode).sot")
	@echo "== what the states of the ar run say, and the report"
	$(BIN)/sotscope analyze "$(DEMO)/ar.sot" --html "$(DEMO)/report.html"
	@echo "== the last tokens of the sot run"
	$(BIN)/sotscope show "$(DEMO)/sot.sot" --last 12
	@echo
	@echo "Next: make dashboard, to see it live; or open $(DEMO)/report.html in a browser"
	@echo "      or open docs/tutorial.md, which goes on in Python with these runs."

test: $(VENV)/.test browser  ## install, also a browser, and run the whole suite
	$(BIN)/sotscope fetch smollm2
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

dashboard: $(VENV)/.all  ## serve the live page with the embedded model; Ctrl-C ends it
	$(BIN)/sotscope fetch smollm2
	-$(BIN)/sotscope dashboard

browser:  ## the Chromium that tests use (Debian's package), where there is none
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
		echo "installing chromium for the browser tests"; sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends chromium; }

lint: $(VENV)/.test  ## ruff, mypy --strict, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.test  ## write docs/reference.md anew from the code
	$(BIN)/python docs/make_reference.py

clean:  ## remove the virtual environment and caches; runs and the model cache stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("sotscope needs Python 3.11 or newer, this is %s" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.all: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing sotscope (a few minutes the first time)"
	@$(PIP) -e '.[all]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing sotscope with its test tools (a few minutes the first time)"
	@$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.all
