# The commands of this repository; `make` alone lists them. Everything runs in .venv, which the first command makes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := $(CURDIR)/.venv/bin/python

# Spark's workers must run the interpreter that has pyarrow, and nothing here listens beyond this machine.
export PYSPARK_PYTHON := $(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(PYTHON)
export SPARK_LOCAL_IP := 127.0.0.1
# Each worker and child would compile the package again, and pytest rewrite every test's assertions, without bytecode.
unexport PYTHONDONTWRITEBYTECODE
# `.venv/bin` first, so that a child `airflow` or `python` is ours.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Three processes on two cores: one of them often waits for Spark. Each has up to 2 GB, and as much for a Spark session
# where its tests need one. tests/conftest.py deals the files out.
WORKERS := $(or $(PYTEST_WORKERS),-n 3)

WITH_JAVA := JAVA_HOME=$$(tools/ensure_java.sh); export JAVA_HOME;

.PHONY: help venv fetch demo test test-long fuzz histories mutants lint docs docs-serve bench lock audit check-install package workflows compatibility clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

venv: ## make or refresh .venv from constraints.txt and pyproject.toml
	@tools/ensure_venv.sh

fetch: venv ## fetch what the tests run beside: servers of stores, delta-spark, PostgreSQL; `make test` does it, too
	@$(WITH_JAVA) tools/ensure_delta_spark.sh; tools/ensure_spark_classes.sh; tools/ensure_moto.sh; tools/ensure_postgres.sh; tools/ensure_tpchgen.sh; tools/with_stores.sh true

demo: venv ## run the demo pipeline: real Airflow, real Spark, the flights of 2013; STORE=s3 on an S3 server, RUNNER=cluster on a Spark cluster, RUNNER=warm on a shared Spark
	@$(WITH_JAVA) $(if $(filter s3,$(STORE)),tools/with_stores.sh --only s3) $(PYTHON) -m tools.demo $(if $(STORE),--store $(STORE)) $(if $(RUNNER),--runner $(RUNNER))

test: venv ## run the suite; ARGS="-k merge" passes arguments to pytest
	@$(WITH_JAVA) tools/ensure_delta_spark.sh; tools/ensure_spark_classes.sh; tools/ensure_moto.sh; tools/with_stores.sh $(PYTHON) -m pytest $(WORKERS) $(ARGS)

test-long: venv ## run far more of what draws from seeds, and what takes long; TXLOG_TEST_ALL=1 runs all of it
	@$(WITH_JAVA) tools/ensure_delta_spark.sh; tools/ensure_spark_classes.sh; tools/ensure_moto.sh; tools/ensure_postgres.sh; tools/ensure_tpchgen.sh; tools/ensure_chromium.sh; tools/ensure_page_checks.sh; $(if $(filter 1,$(TXLOG_TEST_ALL)),tools/ensure_checkers.sh;) TXLOG_TEST_LONG=1 tools/with_stores.sh $(PYTHON) -m pytest $(WORKERS) $(ARGS)

fuzz: venv ## run jobs on 5,000 damaged tables, some hours; SEEDS="0:500" runs these
	@$(WITH_JAVA) TXLOG_FUZZ_JOBS=$(or $(SEEDS),0:5000) $(PYTHON) -m pytest -s tests/jobs/fuzz

histories: venv ## apply 10,000 random out-of-order histories of each kind by both executors, and compare them with a reference; HISTORIES=500 SEED=7
	@$(WITH_JAVA) $(PYTHON) -m tests.chaos.histories --histories $(or $(HISTORIES),10000) --seed $(or $(SEED),1)

mutants: venv ## put known faults into a copy of the code, and check that the tests catch each; ARGS="--list"
	@$(WITH_JAVA) $(PYTHON) -m tools.mutants $(ARGS)

lint: venv ## ruff check, ruff format --check, mypy --strict
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy airflow_txlog

# MkDocs prints a notice of its vendor otherwise. With --quiet its warnings would be no errors.
MKDOCS := NO_MKDOCS_2_WARNING=1 .venv/site/bin/python -m mkdocs

docs: venv ## build the documentation site in build/site; a warning is an error
	@tools/ensure_docs.sh
	@$(MKDOCS) build
	@echo "docs: build/site/index.html"

docs-serve: venv ## serve the documentation site at http://127.0.0.1:8000, and build it again when a page changes
	@tools/ensure_docs.sh
	@$(MKDOCS) serve --watch tools/site_hooks.py

bench: venv ## time us against PySpark, deltalake and delta-spark; CASES="delete merge" SCALE=0.1 ROUNDS=5 WORKERS=2; DELAY=20 for requests to S3
	@$(WITH_JAVA) tools/ensure_delta_spark.sh; tools/ensure_tpchgen.sh; tools/with_stores.sh --only s3 $(PYTHON) -m tests.benchmarks $(if $(CASES),--cases $(CASES)) $(if $(SCALE),--scale $(SCALE)) \
	    $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(DELAY),--delay $(DELAY))

lock: ## write constraints.txt anew from a clean environment
	@tools/lock.sh

audit: ## look constraints.txt up among known vulnerabilities, over the network; SERVICE=osv asks OSV instead of PyPI
	@tools/audit.sh $(or $(SERVICE),pypi)

check-install: ## install the package into a bare Airflow by the README's commands, run its DAG and Start here; WHEEL=dist/….whl installs a wheel; over the network
	@WHEEL=$(WHEEL) tools/check_install.sh

package: venv ## build wheel, source distribution and SBOM into dist, and check them; REPOSITORY=https://… adds its addresses; over the network
	@$(PYTHON) tools/package.py build $(if $(REPOSITORY),"$(REPOSITORY)")

workflows: venv ## check the hosted workflows with actionlint and zizmor; over the network, needs Go
	@$(PYTHON) tools/package.py check-workflows

compatibility: venv ## run the package with other versions of Airflow, Python, Spark and pyarrow, and write docs/support.md; ONLY="airflow-3.0"
	@$(WITH_JAVA) $(PYTHON) tools/compatibility.py $(ONLY)

clean: ## delete what the other commands made, .venv included
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
