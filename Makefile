# `make` alone lists the targets. Each sets up what it needs first and skips that when it is done.

PYTHON ?= python3
# How long `make fuzz` takes, all targets together.
SECONDS ?= 60
# Options for the engine that builds the image, such as --secret id=pip.conf,src=pip.conf.
BUILD ?=
IMAGE := mirror:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BIN := .venv/bin
# The name carries the lock's checksum: a changed lock or project file is set up again, a touched one is not.
READY := .venv/.ready-$(shell cat requirements-dev.lock pyproject.toml | cksum | cut -d ' ' -f 1)
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links
# The extra `docs` alone: a site of pages needs no PySpark.
DOCS := $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")'
DOCS_READY := .venv-docs/.ready-$(shell cksum < requirements-docs.lock | cut -d ' ' -f 1)

# Where nobody may write to the source tree, tools keep no caches there.
ifneq ($(shell test -w . || echo read-only),)
export RUFF_NO_CACHE := true
export MYPY_CACHE_DIR := /dev/null
export PYTEST_ADDOPTS := -p no:cacheprovider $(PYTEST_ADDOPTS)
endif

.DEFAULT_GOAL := help
.PHONY: help setup java jars demo check test test-long test-spark docker-test fuzz image lint lock pack reference docs clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: java $(READY) ## create .venv from the lock
	@$(BIN)/python -m mirror.spark.class_archive

java:
	@scripts/need-java

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mirror needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "setup: creating .venv"
	@$(PYTHON) -m venv .venv
	@echo "setup: installing the locked dependencies (PySpark is a download of 450 MB; one to two minutes)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@echo "setup: installing mirror itself"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f .venv/.ready-*
	@touch $@

jars: setup ## fetch the brokers' jars (44 MB, kept in the user's cache folder)
	@$(BIN)/python -m mirror.lab.embedded

demo: setup ## two real clusters, eight topics, and the proof that the copy is equal
	@$(BIN)/mirror demo

check: lint ## lint, types and the pure tests: for every few minutes
	$(BIN)/pytest --numprocesses 2 tests/pure

test: check ## all of that, and the tests on real brokers and with Spark: for every change
	$(BIN)/pytest -rs --numprocesses 3 --dist loadgroup tests/contract tests/spark

test-long: setup ## kills, elections, old releases, hunts: hours, or AREA=restore for one folder of tests/long
	$(BIN)/pytest -rs --numprocesses 2 --dist loadfile tests/long/$(AREA)

test-spark: setup ## what a flow needs of Spark, on each version from 3.5 to 4.3: half an hour, and 2 GB of downloads
	@$(BIN)/python scripts/test-spark $(SPARK)

image: ## the container image
	DOCKER_BUILDKIT=1 docker build $(BUILD) --tag $(IMAGE) .

docker-test: setup image ## the tests of the image and of docker-compose.yml; five minutes, needs Docker with Compose
	$(BIN)/pytest -rs -m docker

fuzz: setup ## hostile bytes for all that reads what brokers send, for a minute or SECONDS=600
	$(BIN)/python fuzz/run.py --seconds $(SECONDS)

lint: setup ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

lock: setup ## pin the newest allowed versions of all dependencies, with hashes
	@env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(LOCK) pyproject.toml --upgrade -o requirements.lock
	@env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(LOCK) pyproject.toml --upgrade --extra dev --extra bench -c requirements.lock -o requirements-dev.lock
	@$(DOCS) | env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(LOCK) - --upgrade -c requirements.lock -o requirements-docs.lock

pack: setup ## an archive of the environment for the executors of a Spark cluster: dist/mirror-env.tar.gz
	@scripts/pack-environment $(BIN) dist/mirror-env.tar.gz

reference: setup ## write the reference of settings, commands and invariants, and the figures of the README
	@$(BIN)/python scripts/make-reference

# Not --quiet: MkDocs then counts no warnings, and --strict passes over broken links.
docs: $(DOCS_READY) ## build the documentation as a site in build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

$(DOCS_READY):
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@rm -f .venv-docs/.ready-*
	@touch $@

clean: ## remove .venv, .venv-docs, caches and build products
	rm -rf .venv .venv-docs build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
	find mirror tests fuzz scripts -name __pycache__ -type d -prune -exec rm -rf {} +
