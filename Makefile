# From a clean clone: `make demo` runs an example, `make test` runs all checks.
# Both first set up .venv here, with the CUDA packages if there is a GPU. `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
EXTRAS := test,plot,docs
DEMO ?= laplace3d:n=48 -k 10 --which SA

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-clients docs bench kernels format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(READY) ## compute the ten lowest eigenvalues of a 3-D Laplacian with multiplicities; draws demo.png
	$(BIN)/blockvec-eigs $(DEMO) --profile --plot demo.png

test: $(READY) ## check lint, types, documentation, tests and doctests, without those marked slow
test-all: $(READY) ## the same, with all tests
test: SELECTED := -m "not slow"
test test-all:
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy --no-error-summary
	$(BIN)/sphinx-build -W --keep-going -q -D plot_gallery=0 docs docs/_build/html
	$(BIN)/pytest -q --tb=short -n auto --maxprocesses 8 --dist worksteal $(SELECTED)

test-clients: .venv-clients/ready ## run tests of other packages with our eigsh in SciPy's place; prints counts
	BLOCKVEC_CLIENT_SOURCES=.venv-clients/sources .venv-clients/bin/pytest -q -rsP --tb=short tests/clients

docs: $(READY) ## run the examples and build the documentation in docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: $(READY) ## time dot, combine and apply over widths, beside NumPy or cuBLAS
	$(BIN)/blockvec bench

kernels: $(READY) ## build a wheel of compiled CUDA kernels in dist/, without a GPU: pip install it to save compilations
	$(BIN)/python -m tests.benchmarks.kernel_package --output dist

format: $(READY) ## format the code
	$(BIN)/ruff check --quiet --fix
	$(BIN)/ruff format --quiet

clean: ## remove .venv, caches and build results
	rm -rf .venv .venv-clients build dist docs/_build docs/gallery .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks demo.png
	find blockvec solvers tests docs -name __pycache__ -prune -exec rm -rf {} +

.venv-clients/ready: pyproject.toml tests/clients/requirements.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install -qq --disable-pip-version-check -e ".[test]"
	@# Each alone and as a wheel: one that cannot be had here does not stop the others; its tests are skipped.
	@while read -r package; do \
	    .venv-clients/bin/python -m pip install -qq --disable-pip-version-check --only-binary :all: "$$package" \
	    || echo "$$package cannot be installed: its tests will be skipped"; \
	done < tests/clients/requirements.txt
	@mkdir -p .venv-clients/sources; cd .venv-clients/sources; \
	../bin/python -m pip download -qq --disable-pip-version-check --no-deps --no-binary quimb quimb \
	&& tar xzf quimb-*.tar.gz || echo "quimb's tests are not available: they will be skipped"
	@touch $@

# pip does not byte-compile: Python does so on the first import of a module.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "blockvec needs Python 3.11 or newer; '$(PYTHON)' is not: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	    echo "'$(PYTHON)' cannot set up .venv, it lacks ensurepip: apt install python3-venv (Debian, Ubuntu)," \
	         "or name another Python: make PYTHON=..."; exit 1; }
	@cuda=$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Z ]*Version: *\([0-9]*\).*/\1/p' | head -n 1); \
	case "$$cuda" in \
	    '') extra= ;; \
	    [1-9]|1[01]) extra=; echo "This driver's CUDA $$cuda is older than 12: continuing without the GPU." ;; \
	    12) extra=,cuda12 ;; \
	    *) extra=,cuda13 ;; \
	esac; \
	echo "Setting up .venv with blockvec[$(EXTRAS)$$extra]: a few minutes the first time ..."; \
	$(PYTHON) -m venv .venv && \
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile -e ".[$(EXTRAS)$$extra]"
	@touch $@
