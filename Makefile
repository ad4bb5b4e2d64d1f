# `make run` and `make test` do everything on a machine that has Python 3.11 to 3.14 and make.

PYTHON ?=
ARGS ?=
LANE ?=
BENCH ?=
JOBS ?= 2
UPGRADE ?=
MODULES ?=
COUNT ?= 6
SEED ?= 1

BIN := .venv/bin
# The name carries the checkout's place, so that a copied or moved one is set up again.
STAMP := .venv/.setup-$(shell pwd | cksum | cut -d ' ' -f 1)
SERVERS := .cache/servers/.made
COMPILE = "$$uv" pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-header $(if $(UPGRADE),--upgrade)

DAEMON_EXTRAS := daemon s3 object-store lmdb tracing
SPARK_EXTRAS := s3 spark java

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup run test lint types generate slow spark41 bench wheel lock mutants versitygw clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 20
	@echo '  PYTHON=path chooses the interpreter, ARGS="..." goes to pytest or the demo'

setup: $(STAMP) ## make .venv from the locked requirements (done by the other targets when needed)

$(STAMP): pyproject.toml .ci/setup $(wildcard requirements/*.txt)
	PYTHON="$(PYTHON)" .ci/setup
	@touch $@

$(SERVERS): $(STAMP) requirements/servers.txt .ci/servers
	@if PYTHON="$(PYTHON)" .ci/servers; then touch $@; else \
		echo "warning: S3 servers could not be installed; their tests will be skipped" >&2; test -z "$$ALPHEUS_REQUIRE_SERVERS"; fi

run: $(STAMP) ## the demonstration: a daemon, writers, a pipeline, what came of it
	$(BIN)/python -m alpheus.demo $(ARGS)

test: lint types $(STAMP) $(SERVERS) ## lint, types, drift of generated code, and every test at small counts (JOBS=2 files at once)
	$(BIN)/python -m alpheus_pb --check
	$(BIN)/python -m alpheus.sync --check
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP) ## mypy, strict
	$(BIN)/python -m mypy

generate: $(STAMP) ## write the protobuf code anew from the .proto files, the synchronous client from the asynchronous
	$(BIN)/python -m alpheus_pb
	$(BIN)/python -m alpheus.sync

slow: $(STAMP) $(SERVERS) ## LANE=word: tests whose name or file has the word, at full counts (LANE=all: every one)
	@test -n "$(LANE)" || { echo "say which: make slow LANE=word, or LANE=all" >&2; exit 2; }
	ALPHEUS_SLOW=1 $(BIN)/python -m pytest -m slow -o faulthandler_timeout=28800 $(if $(filter-out all,$(LANE)),-k "$(LANE)") $(ARGS)

SPARK_TESTS ?= tests/clients/spark tests/clients/test_readme.py tests/clients/test_guide.py tests/clients/test_demo.py \
	tests/faults/test_pipeline_kills.py

spark41: $(STAMP) ## the tests of Spark on the oldest PySpark that is supported (SPARK_TESTS="files"; ALPHEUS_SLOW=1: full counts)
	PYTHON="$(PYTHON)" .ci/spark41
	.cache/spark41/bin/python -m pytest $(SPARK_TESTS) $(ARGS)

bench: $(STAMP) ## BENCH=name: run tests/bench/bench_name.py (all of them without a name)
	@case "$(BENCH)" in "" | peers) PYTHON="$(PYTHON)" .ci/peers || echo "warning: peers could not be installed; they will be left out" >&2;; esac
	@case "$(BENCH)" in "" | delta) PYTHON="$(PYTHON)" .ci/delta || echo "warning: delta-spark could not be installed; it will be left out" >&2;; esac
	@for script in tests/bench/bench_$(or $(BENCH),*).py; do \
		echo "== $$script"; $(BIN)/python "$$script" $(ARGS) || exit 1; \
	done

wheel: $(STAMP) ## dist/alpheus-VERSION-py3-none-any.whl, which pip installs anywhere
	$(BIN)/python -m hatchling build --target wheel

mutants: $(STAMP) ## MODULES="writer watch" COUNT=6 SEED=1: faults put into modules one at a time, and which no test noticed
	$(BIN)/python tests/mutants/mutant_run.py $(MODULES:%=--module %) --count $(COUNT) --seed $(SEED) $(ARGS)

lock: ## compile requirements/*.txt anew (UPGRADE=1: newest releases that pyproject.toml allows)
	@set -e; uv=$$(PYTHON="$(PYTHON)" .ci/setup --uv); \
	$(COMPILE) requirements/bootstrap.in -o requirements/bootstrap.txt; \
	$(COMPILE) requirements/build.in -o requirements/build.txt; \
	$(COMPILE) requirements/generator.in -o requirements/generator.txt; \
	$(COMPILE) requirements/servers.in -o requirements/servers.txt; \
	$(COMPILE) requirements/bench.in -o requirements/bench.txt; \
	$(COMPILE) pyproject.toml requirements/delta.in -o requirements/delta.txt; \
	$(COMPILE) requirements/go.in -o requirements/go.txt; \
	$(COMPILE) pyproject.toml --all-extras --group dev --group demo -o requirements/dev.txt; \
	$(COMPILE) pyproject.toml requirements/spark41.in --all-extras --group dev --group demo -o requirements/spark41.txt; \
	$(COMPILE) pyproject.toml -c requirements/dev.txt $(DAEMON_EXTRAS:%=--extra %) -o requirements/daemon.txt; \
	$(COMPILE) pyproject.toml -c requirements/dev.txt $(SPARK_EXTRAS:%=--extra %) -o requirements/spark.txt

versitygw: $(STAMP) ## build the S3 server that tests may kill, once (some minutes; needs the Go module proxy)
	PYTHON="$(PYTHON)" .ci/versitygw

clean: ## remove the environment, caches and what runs left behind
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts dist spark-warehouse \
		metastore_db derby.log
	find protos journal daemon clients tests -name __pycache__ -type d -prune -exec rm -rf {} +
