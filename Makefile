# Two commands are all you need: `make demo` and `make test`. Each sets up what it needs, by itself.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CLASSES := .venv/spark-classes.jsa
PYTEST := $(BIN)/python -m pytest
BENCH := .venv-bench
JOBS ?= 2

.PHONY: help demo test test-system test-all verify storm bench bench-quick performance simulate scaling lint format docs site pictures clean

help:
	@echo "make demo         run the main job end to end"
	@echo "make test         lint, types, import contracts and every test that needs only Python and Java"
	@echo "make test-system  the tests that need Debian packages, which it installs where it may"
	@echo "make test-all     both of them, the long matrices, Postgres 16, and the protocol behind PgBouncer"
	@echo "make verify       check the protocol's model (sql/model) with spin, whole and with each guard taken out"
	@echo "make storm        kill everything at random for three minutes, then check every row (SECONDS=3600 SEED=7)"
	@echo "make bench        every goal against the limit and against peers, about an hour (GOAL=1: one of them)"
	@echo "make bench-quick  a small version of each, about five minutes"
	@echo "make performance  docs/performance.md and its pictures, from benchmarks/results"
	@echo "make simulate     a load of up to 64 million files an hour replayed, a few minutes (LEDGER=10000000: a large ledger too)"
	@echo "make scaling      docs/scaling.md, from benchmarks/results"
	@echo "make lint         ruff, mypy and import-linter alone"
	@echo "make format       let ruff rewrite the code"
	@echo "make docs         write the pages that are made from the program: docs/cli.md, docs/sql.md"
	@echo "make site         the pages as a site: build/site/index.html"
	@echo "make pictures     docs/demo.svg and docs/report.png, from a real run of the demo, with chromium"
	@echo "make clean        remove everything that make made, the embedded database included"

# Installed again only when what is installed may have changed.
$(READY): pyproject.toml setup.cfg
	@$(PYTHON) pg_pipeline/__init__.py
	@$(PYTHON) -m venv .venv || { echo "There is no virtual environment without Python's venv module: install it (on Debian: python3-venv)." >&2; exit 1; }
	@echo "Installing pg_pipeline and what it needs into .venv (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

demo: $(READY)
	@$(BIN)/pg-pipeline demo

lint: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "Not formatted: run 'make format'." >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > .venv/lint-imports.log 2>&1 || { cat .venv/lint-imports.log >&2; exit 1; }

format: $(READY)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

docs: $(READY)
	@$(BIN)/python docs/reference.py

site: $(READY)
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --quiet docs build/site
	@echo "build/site/index.html"

pictures: $(READY)
	@$(BIN)/python docs/pictures.py

# Spark's classes for the tests' Java: made once, and each of their sessions starts in half the time.
$(CLASSES): $(READY)
	@$(BIN)/python -m pg_pipeline_tests.quick_java

test: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 lint $(CLASSES)
	@$(PYTEST) -n $(JOBS) --dist loadgroup -m "not system and not long"

test-system: $(READY)
	@.ci/system-packages
	@$(PYTEST) -m "system and not long"

test-all: test test-system
	@$(PYTEST) -m "long"
	@TEST_POSTGRES=16 $(PYTEST) -m "not system and not long" pg_pipeline_tests/coordination
	@TEST_THROUGH_POOLER=1 $(PYTEST) -m "not system and not long and not own_session" pg_pipeline_tests/coordination

verify: $(READY)
	@.ci/system-packages spin gcc libc6-dev
	@$(BIN)/python -m pg_pipeline_tests.verify.check

storm: $(READY)
	@$(BIN)/python -m pg_pipeline_tests.storm.storm $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(DAGSTER),--dagster)

# The peers have an environment of their own: what they bring must not change what is tested.
$(BENCH)/.ready: pyproject.toml setup.cfg
	@$(PYTHON) pg_pipeline/__init__.py
	@$(PYTHON) -m venv $(BENCH)
	@echo "Installing pg_pipeline and its peers into $(BENCH) (once) ..."
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

bench: $(BENCH)/.ready
	@.ci/system-packages libpostgresql-jdbc-java
	@$(BENCH)/bin/python -m benchmarks $(if $(GOAL),--goal $(GOAL)) $(if $(SEED),--seed $(SEED))

bench-quick: $(BENCH)/.ready
	@$(BENCH)/bin/python -m benchmarks --quick $(if $(GOAL),--goal $(GOAL)) $(if $(SEED),--seed $(SEED))

performance: $(BENCH)/.ready
	@$(BENCH)/bin/python -m benchmarks.page

simulate: $(READY)
	@$(BIN)/python -m benchmarks.simulation
	@$(if $(LEDGER),$(BIN)/python -m benchmarks.ledger --files $(LEDGER))
	@$(BIN)/python -m benchmarks.scaling

scaling: $(READY)
	@$(BIN)/python -m benchmarks.scaling

# The embedded server's keeper sees that its folder is gone and ends it.
clean:
	@rm -rf .venv $(BENCH) .pg_pipeline build dist *.egg-info spark-warehouse artifacts
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
