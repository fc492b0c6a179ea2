# Two commands: `make bench` measures this host, `make test` checks this tree. Each sets itself up.
#
#   make bench MODEL=/models/llama STORAGE=/mnt/nvme LOADER=parallel ARGS='--passes=8 --budget=600s'
#
# PHASE (host_to_device, slice, quantise, layout, assemble, w8a8, ranks) measures that phase whole.
# MODEL, STORAGE (several: with spaces between), LOADER, DEVICE, CACHE, SIZE, PASSES, ARGS are passed
# on to pytest, always as --storage=/mnt/nvme: after a space, pytest would take the path for its own.

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python -m
INSTALL := $(RUN) pip install --quiet --constraint constraints.txt --editable .

OPTIONS = $(if $(MODEL),--model='$(MODEL)') $(foreach s,$(STORAGE),--storage='$(s)') \
  $(foreach l,$(LOADER),--loader='$(l)') $(if $(DEVICE),--device=$(DEVICE)) \
  $(if $(CACHE),--cache=$(CACHE)) \
  $(if $(SIZE),--size=$(SIZE)) $(if $(PASSES),--passes=$(PASSES)) $(ARGS)

.PHONY: bench test lint smoke clean

bench: $(VENV)/.bench
	$(RUN) pytest --benchmark-only $(foreach p,$(PHASE),bench/bench_$(p).py) $(OPTIONS)

test: lint smoke
	$(RUN) pytest tests

lint: $(VENV)/.test
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy

smoke: $(VENV)/.test
	$(RUN) pytest bench --benchmark-disable -q $(OPTIONS)

clean:
	rm -rf $(VENV) .coldload .benchmarks .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'coldload needs Python 3.11 or newer; $(PYTHON) is' "$$($(PYTHON) -V 2>&1)"; \
	  echo 'Install one and name it: make PYTHON=python3.12 ...'; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  v=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "$(PYTHON) can't make virtual environments: its package python$$v-venv is missing."; \
	  echo "Debian, Ubuntu: apt install python$$v-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.bench: $(VENV)/.pip pyproject.toml constraints.txt
	@echo 'Installing into $(VENV) (torch is large: this takes a while the first time)'
	$(INSTALL)
	@touch $@

$(VENV)/.test: $(VENV)/.pip pyproject.toml constraints.txt
	@echo 'Installing into $(VENV) (torch is large: this takes a while the first time)'
	$(INSTALL) --group dev
	@touch $@ $(VENV)/.bench
