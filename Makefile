# `make run` and `make test` do everything on a machine that has Python 3.11 to 3.14 and make.

PYTHON ?=
ARGS ?=
LANE ?=
BENCH ?=
JOBS ?= 3
UPGRADE ?=
MODULES ?=
COUNT ?= 6
SEED ?= 1

# Images of Python often set it. Without stored bytecode each process compiles all that it imports: a command of half a
# second takes two, and the tests start thousands of processes.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# The name contains the path of the checkout, so that a copied or moved checkout is set up again.
STAMP := .venv/.setup-$(shell pwd | cksum | cut -d ' ' -f 1)
SERVERS := .cache/servers/.made
JARS := .cache/hadoop-aws/.made
CLASSES := .cache/spark-classes/.made
COMPILE = "$$uv" pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-header $(if $(UPGRADE),--upgrade)

DAEMON_EXTRAS := daemon s3 object-store lmdb tracing
SPARK_EXTRAS := s3 spark java

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup run test lint types generate slow spark41 spark42 bench wheel lock mutants versitygw minio clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 20
	@echo '  PYTHON=path chooses the interpreter, ARGS="..." goes to pytest or the demo'

setup: $(STAMP) ## make .venv from the locked requirements (the other targets do this when needed)

$(STAMP): pyproject.toml .ci/setup $(wildcard requirements/*.txt)
	PYTHON="$(PYTHON)" .ci/setup
	@touch $@

$(SERVERS): $(STAMP) requirements/servers.txt .ci/servers
	@if PYTHON="$(PYTHON)" .ci/servers; then touch $@; else \
		echo "warning: S3 servers could not be installed; their tests will be skipped" >&2; test -z "$$ALPHEUS_REQUIRE_SERVERS"; fi

$(JARS): $(STAMP) clients/alpheus/spark/hadoop_aws.lock .ci/hadoop-aws
	@if PYTHON="$(PYTHON)" .ci/hadoop-aws; then touch $@; else \
		echo "warning: the jars of hadoop-aws could not be downloaded; tests of Spark on S3 will be skipped" >&2; test -z "$$ALPHEUS_REQUIRE_SERVERS"; fi

$(CLASSES): $(STAMP) tests/spark_class_archive.py
	@$(BIN)/python tests/spark_class_archive.py $(@D)/classes.jsa >$(@D).log 2>&1 && touch $@ || \
		echo "warning: no class archive of Spark, so its tests start slowly (see $(@D).log)" >&2

run: $(STAMP) ## run the demonstration: a daemon, writers, a pipeline and their results
	$(BIN)/python -m alpheus.demo $(ARGS)

test: lint types $(STAMP) $(SERVERS) $(JARS) $(CLASSES) ## run lint, types, drift of generated code, and every test at small counts (JOBS=3 processes; one has the Spark session that tests share)
	$(BIN)/python -m alpheus_pb --check
	$(BIN)/python -m alpheus.sync --check
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## check rules and formatting with ruff
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP) ## check types with mypy, strict
	$(BIN)/python -m mypy

generate: $(STAMP) ## write the protobuf code from the .proto files, and the synchronous client from the asynchronous one
	$(BIN)/python -m alpheus_pb
	$(BIN)/python -m alpheus.sync

slow: $(STAMP) $(SERVERS) $(JARS) $(CLASSES) ## LANE=word: run tests whose name or file contains the word, at full counts (LANE=all: every test)
	@test -n "$(LANE)" || { echo "name the tests: make slow LANE=word, or LANE=all" >&2; exit 2; }
	ALPHEUS_SLOW=1 $(BIN)/python -m pytest -m slow -o faulthandler_timeout=28800 $(if $(filter-out all,$(LANE)),-k "$(LANE)") $(ARGS)

SPARK_TESTS ?= tests/clients/spark tests/clients/test_readme.py tests/clients/test_guide.py tests/clients/test_demo.py \
	tests/faults/test_pipeline_kills.py

define RUN_SPARK
	PYTHON="$(PYTHON)" .ci/spark $@
	.cache/$@/bin/python -m pytest $(SPARK_TESTS) $(ARGS)
endef

spark41: $(STAMP) $(JARS) ## run the tests of Spark on the oldest supported PySpark (SPARK_TESTS="files"; ALPHEUS_SLOW=1: full counts)
	$(RUN_SPARK)

spark42: $(STAMP) $(JARS) ## run the tests of Spark on PySpark 4.2, which is between the oldest and the newest
	$(RUN_SPARK)

bench: $(STAMP) ## BENCH=name: run tests/bench/bench_name.py (without a name: all benchmarks)
	@case "$(BENCH)" in "" | peers) PYTHON="$(PYTHON)" .ci/peers || echo "warning: peers could not be installed; the benchmark leaves them out" >&2;; esac
	@case "$(BENCH)" in "" | delta) PYTHON="$(PYTHON)" .ci/delta || echo "warning: delta-spark could not be installed; the benchmark leaves it out" >&2;; esac
	@for script in tests/bench/bench_$(or $(BENCH),*).py; do \
		echo "== $$script"; $(BIN)/python "$$script" $(ARGS) || exit 1; \
	done

wheel: $(STAMP) ## build dist/alpheus-VERSION-py3-none-any.whl, which pip installs anywhere
	$(BIN)/python -m hatchling build --target wheel

mutants: $(STAMP) ## MODULES="writer watch" COUNT=6 SEED=1: put faults into modules one at a time, and show faults that no test notices
	$(BIN)/python tests/mutants/mutant_run.py $(MODULES:%=--module %) --count $(COUNT) --seed $(SEED) $(ARGS)

lock: ## compile requirements/*.txt again (UPGRADE=1: to the newest releases that pyproject.toml allows)
	@set -e; uv=$$(PYTHON="$(PYTHON)" .ci/setup --uv); \
	$(COMPILE) requirements/bootstrap.in -o requirements/bootstrap.txt; \
	$(COMPILE) requirements/build.in -o requirements/build.txt; \
	$(COMPILE) requirements/generator.in -o requirements/generator.txt; \
	$(COMPILE) requirements/servers.in -o requirements/servers.txt; \
	$(COMPILE) requirements/bench.in -o requirements/bench.txt; \
	$(COMPILE) pyproject.toml requirements/delta.in --extra s3 -o requirements/delta.txt; \
	$(COMPILE) requirements/go.in -o requirements/go.txt; \
	$(COMPILE) pyproject.toml --all-extras --group dev --group demo -o requirements/dev.txt; \
	for name in spark41 spark42; do \
		$(COMPILE) pyproject.toml requirements/$$name.in --all-extras --group dev --group demo -o requirements/$$name.txt; \
	done; \
	$(COMPILE) pyproject.toml -c requirements/dev.txt $(DAEMON_EXTRAS:%=--extra %) -o requirements/daemon.txt; \
	$(COMPILE) pyproject.toml -c requirements/dev.txt $(SPARK_EXTRAS:%=--extra %) -o requirements/spark.txt

versitygw: $(STAMP) ## build once the S3 server that tests may kill (takes some minutes, needs the Go module proxy)
	PYTHON="$(PYTHON)" .ci/versitygw

minio: $(STAMP) ## build once the S3 server with sessions and keys, for tests (takes some minutes, needs the Go module proxy)
	PYTHON="$(PYTHON)" .ci/minio

clean: ## remove the environment, caches and files that runs left behind
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts dist spark-warehouse \
		metastore_db derby.log
	find protos journal daemon clients tests -name __pycache__ -type d -prune -exec rm -rf {} +
