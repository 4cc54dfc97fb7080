# straggler: every target first installs what it lacks (vagrant/provision.sh, which is quick when nothing is missing).
#
#   sudo make install   the system packages, .venv and the command `straggler`
#   sudo make demo      the first exercise under four load-balancing policies (about 4 minutes)
#   sudo make test      lint, unit, sanitizers, fuzz and live tests (under 20 minutes on two cores)
#   sudo make bench     against stock Mininet, TCLink and OVS: a table, and results/bench.json
#   sudo make vm-test   in a fresh Debian 12 VM with its full kernel, and the kernel's datapath (under 40 minutes where
#                       the VM's processor is emulated); SUITES="bookworm trixie" also in Debian 13
#   make lint           ruff, mypy, shellcheck, Vagrantfile
#   make clean          removes what was built and cached; keeps .venv and results/
#
# Parts of `test`: test-unit (no root once installed), test-sanitizers, test-fuzz, test-live.
# FUZZ_SECONDS=N is the time given to each fuzzer; PYTEST_ARGS is passed to pytest.

FUZZ_SECONDS ?= 20
PYTEST_ARGS ?=
SUITES ?= bookworm

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest $(PYTEST_ARGS)
# A hanging test must end with a message, not with the machine's patience: TERM, then KILL.
LIMIT := timeout --kill-after=15

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install install-dev install-vm demo test test-unit test-sanitizers test-fuzz test-live bench lint clean vm-test

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

install:
	@vagrant/provision.sh

install-dev:
	@vagrant/provision.sh --dev

install-vm:
	@vagrant/provision.sh --vm

demo: install
	@.venv/bin/straggler demo

# Cheap and sure to fail first.
test: lint test-unit test-sanitizers test-fuzz test-live

test-unit: install-dev
	@$(LIMIT) 240 $(PYTEST) tests/unit

test-sanitizers: install-dev
	@$(LIMIT) 400 tests/sanitizers/run.sh

test-fuzz: install-dev
	@$(LIMIT) 240 tests/fuzz/run.sh $(FUZZ_SECONDS)

test-live: install-dev
	@$(LIMIT) 1300 $(PYTEST) tests/live

bench: install-dev
	@$(PYTHON) -m tests.bench.run

lint: install-dev
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@shellcheck vagrant/*.sh tests/*/*.sh
	@if command -v vagrant >/dev/null; then \
	    cd vagrant && VAGRANT_HOME=../build/vagrant VAGRANT_CHECKPOINT_DISABLE=1 vagrant validate --ignore-provider; \
	else echo "Vagrantfile: not validated, this distribution has no vagrant."; fi

clean:
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis ./*.egg-info topologies/fabricd/_core.* \
	    topologies/fabricd/*/*.o || \
	    { echo "error: some of it belongs to root."; echo "  do: sudo make clean"; exit 1; }
	@find labs controllers topologies tests -name __pycache__ -prune -exec rm -rf {} +

vm-test: install-vm
	@tests/vm/run.sh $(SUITES)
