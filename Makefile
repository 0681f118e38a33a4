# Every target works on a bare clone: what it needs is set up first.
#
#   make setup    .venv with hyperslab (editable) and everything the checks need
#   make demo     small files, both jobs, a table and a picture in demo-output/
#   make test     the tests
#   make lint     ruff, mypy, the import floors, the docs built strictly
#   make bench    hyperslab against h5py and hidefix, in ratios (PLOT=FILE.png draws them)
#   make bench-training   loaders for training, against what the web advises
#   make bench-viewing    scrolling, opening and materialising, against what viewers use
#   make bench-repacking  a cohort in chunks of one slice, against h5repack
#   make bench-converting an image as OME-Zarr, against dask over h5py
#   make bench-advising   what the doctor predicts, against what is measured
#   make docs     the docs, in site/
#   make fuzz     the property tests, for much longer and with new random cases
#   make clean    remove what the targets above wrote, .venv excepted

PYTHON ?= python3
PYTEST_ARGS ?=
PLOT ?=

# mkdocs-material announces its successor on every build; this is its own switch for that.
export NO_MKDOCS_2_WARNING := 1

BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test lint bench bench-training bench-viewing bench-repacking bench-converting bench-advising docs fuzz clean
.DELETE_ON_ERROR:

setup: $(READY)

# pip and not uv: where a machine offers its own build of PyTorch (one for CPUs only, say), pip
# prefers it to the general one, which is gigabytes.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "hyperslab needs Python 3.11 or newer, and '$(PYTHON)' is not." \
	        "Name one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.13" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
	    echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	    exit 2; }
	@echo "Installing into .venv: a minute or two"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
	    -c constraints.txt -e '.[dev,torch,plot,bench,dask,napari,zarr,medical]'
	@touch $@

demo: $(READY)
	$(BIN)/hyperslab demo --out demo-output

test: $(READY)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python -m benchmarks $(if $(PLOT),--plot $(PLOT))

bench-training: $(READY)
	$(BIN)/python -m benchmarks.training

bench-viewing: $(READY)
	$(BIN)/python -m benchmarks.viewing

bench-repacking: $(READY)
	$(BIN)/python -m benchmarks.repacking

bench-converting: $(READY)
	$(BIN)/python -m benchmarks.converting

bench-advising: $(READY)
	$(BIN)/python -m benchmarks.advising

docs: $(READY)
	$(BIN)/mkdocs build --strict

fuzz: $(READY)
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n 2 tests/property $(PYTEST_ARGS)

clean:
	rm -rf build dist site demo-output bench-output mr_to_ct-output *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
