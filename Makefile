# What a person types is what CI runs. Each step is skipped when it is already done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test quality bench build docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/mathneuro demo --output demo-out --overwrite

test: $(READY)
	$(BIN)/python -m pytest --quiet

quality: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/run.py

docs: $(READY)
	$(BIN)/python docs/generate.py

build: $(READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tests/check_wheel.py dist

clean:
	rm -rf $(VENV) dist demo-out
