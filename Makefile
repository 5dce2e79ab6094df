# Two commands do everything: `make run` starts the demo, `make test` runs the checks and the tests. The rest is for developers.
PYTHON ?= python3
PORT ?= 8000
BIN := .venv/bin
PIP := $(BIN)/pip install -q --no-deps --require-hashes # a lock names every package
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE # each process of the tests would compile every file again

.PHONY: help run shop setup programs test test-unit test-rest test-changed coverage test-plain test-lowest test-newest check torture mutation bench bench-accept bench-process bench-email bench-scale dist wheel-test release-check docs docs-site lock audit sbom clean
.DEFAULT_GOAL := help

help:
	@echo "make run      install into .venv and start the demo on http://127.0.0.1:$(PORT)"
	@echo "make shop     the worked example: a small shop, on http://127.0.0.1:$(PORT)"
	@echo "make setup    install what the tests need; as root, also server programs that are missing"
	@echo "make test     install what the tests need, start private servers, run the checks and the tests"
	@echo "make test-unit"
	@echo "              only the tests that need no server, no process and no database"
	@echo "make test-changed"
	@echo "              the tests of what differs from the branch main (or BASE=...)"
	@echo "make test-rest"
	@echo "              what make test leaves out: cases of matrices, such as the other database, and tests that take long"
	@echo "make coverage the tests of make test, with the share of lines and branches that they run in each package"
	@echo "make test-lowest, make test-newest"
	@echo "              the tests that depend most on other libraries, with the oldest and newest allowed versions"
	@echo "make test-plain"
	@echo "              the tests of make test with the plain variant of each fast path (fast_paths = false)"
	@echo "make check    only the linters and type checks"
	@echo "make torture  the proof: fault runs, simulation and model, which take long; writes docs/proof.md"
	@echo "make mutation changes the source in one place at a time, and checks that a test fails"
	@echo "make bench    the benchmarks, with tables of ratios (or bench-accept, bench-process, bench-email, bench-scale)"
	@echo "make dist     build the wheel and the source archive"
	@echo "make wheel-test"
	@echo "              the tests against the built wheel, and the unit tests in the source archive"
	@echo "make audit    rules for insecure code, known vulnerabilities of the locked packages, and the SBOM"
	@echo "make lock     write the lock files of requirements/ (UPGRADE=--upgrade for newer versions)"
	@echo "make docs     regenerate the generated blocks of docs/"
	@echo "make docs-site"
	@echo "              build the documentation site in site/, with search; open site/index.html"

run: .venv/installed
	$(BIN)/oncehook demo --port $(PORT)

shop: .venv/ready-for-tests
	$(BIN)/python -m examples.shop $(PORT)

test: programs check
	$(BIN)/python -m pytest -n 5 --dist loadgroup -q --durations=20 --durations-min=0.5 $(ARGS)

setup: programs

# The one step that may install server programs, and that needs root for it.
programs: .venv/ready-for-tests
	$(BIN)/python -m tests.support.program_setup

test-unit: .venv/ready-for-tests
	$(BIN)/python -m pytest -q -m unit $(ARGS)

test-rest: programs
	$(BIN)/python -m pytest -n 5 --dist loadgroup -q -m rest --rest $(ARGS)

test-changed: .venv/ready-for-tests
	@tests="$$($(BIN)/python -m tests.support.changed $(BASE))"; \
	  if [ -z "$$tests" ]; then echo "nothing was changed that has tests"; \
	  else echo "$$tests" | tr ' ' '\n'; $(BIN)/python -m pytest -q $(ARGS) $$tests; fi

# Without the tests that measuring itself changes: which modules an import loads, and a time.
coverage: programs
	$(BIN)/python -m pytest -n 5 --dist loadgroup -q -o timeout=300 --cov --cov-report=json:coverage.json \
	  --deselect tests/system/test_import.py \
	  --deselect tests/providers/test_verify.py::test_verify_takes_at_most_the_time_of_three_hmacs $(ARGS)
	$(BIN)/python -m tests.support.coverage_report coverage.json

test-plain: programs
	ONCEHOOK_FAST_PATHS=false $(BIN)/python -m pytest -n 5 --dist loadgroup -q $(ARGS)

# The receiver on uvicorn's protocol, the HTTP client, the stores and SQLAlchemy: the code that depends on the internals of other libraries.
VERSION_TESTS := tests/receiver/test_steps.py tests/receiver/test_fast_protocol.py \
  tests/receiver/test_limited_protocol.py tests/http_client/test_client.py tests/integrations/sqlalchemy \
  tests/store/test_transaction.py tests/store/test_claims.py tests/store/postgres/test_handler.py \
  tests/store/postgres/test_session.py tests/store/sqlite/test_session.py

test-lowest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	$(PYTHON) -m tests.support.versions $* > .venv-$*/requirements.txt
	.venv-$*/bin/pip install -q -r .venv-$*/requirements.txt -e '.[postgres,sqlalchemy,otel]'
	.venv-$*/bin/pip freeze --exclude-editable
	.venv-$*/bin/python -m pytest -q $(VERSION_TESTS) $(ARGS)

# Builds the two archives in dist/, as the release does.
dist: .venv/ready-for-tests
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

# What a release contains: the tests against the installed wheel, and the unit tests in the unpacked source archive.
wheel-test: dist programs
	PYTHON=$(PYTHON) .ci/wheel-test $(ARGS)

release-check: .venv/ready-for-tests
	$(BIN)/python -m tests.support.release "$(TAG)"

check: .venv/ready-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

# Writes docs/proof.md. ARGS="--only PART" runs one part, and ARGS=--long the tests at the length of a night.
torture: programs
	$(BIN)/python -m proof.torture $(ARGS)

mutation: .venv/ready-for-tests
	nice $(BIN)/python -m proof.mutation $(ARGS)

bench: bench-accept bench-process bench-email bench-scale

bench-accept: programs
	$(BIN)/python -m bench.accept $(ARGS)
	$(BIN)/python -m bench.events

bench-process: programs
	$(BIN)/python -m bench.process $(ARGS)

bench-scale: programs
	$(BIN)/python -m bench.scale $(ARGS)

bench-email: programs
	$(BIN)/python -m bench.email $(ARGS)

docs: .venv/ready-for-tests
	$(BIN)/python -m docs.generate

docs-site: .venv/ready-for-tests
	$(BIN)/python -m docs.site

# The locks of requirements/: UPGRADE=--upgrade for the newest versions, or UPGRADE="--upgrade-package NAME" for one.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
  --no-emit-index-url --no-header $(UPGRADE)
lock: .venv/ready-for-tests
	$(COMPILE) pyproject.toml -o requirements/run.txt
	$(COMPILE) requirements/build.in -c requirements/run.txt -o requirements/build.txt
	$(COMPILE) pyproject.toml --all-extras requirements/dev.in -c requirements/run.txt -c requirements/build.txt -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra postgres --extra otel -c requirements/dev.txt -o requirements/image.txt
	$(COMPILE) requirements/bench.in -o requirements/bench.txt

# Insecure code (ruff's rules S are bandit's), the SBOM, and vulnerabilities that PyPI knows of, which needs the network.
audit: sbom
	$(BIN)/ruff check --select S .
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r requirements/image.txt

# What an installation of the release and the image contain, as CycloneDX. Not in dist/: PyPI takes only archives.
sbom: .venv/ready-for-tests
	mkdir -p build/sbom
	for lock in run image; do $(BIN)/cyclonedx-py requirements requirements/$$lock.txt --pyproject pyproject.toml \
	  --mc-type library --output-reproducible --output-format JSON --output-file build/sbom/oncehook-$$lock.cdx.json \
	  || exit 1; done

clean:
	rm -rf .venv .venv-bench .venv-lowest .venv-newest dist build site

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Oncehook needs Python 3.11 or later; $(PYTHON) is older. Try: make run PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml requirements/run.txt requirements/build.txt
	$(PIP) -r requirements/run.txt -r requirements/build.txt
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@touch $@

.venv/ready-for-tests: .venv/installed requirements/dev.txt
	$(PIP) -r requirements/dev.txt
	@touch $@
