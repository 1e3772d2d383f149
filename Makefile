# The two jobs of this project, on any Linux machine: `make start` and `make check`.
# Everything lands in .venv and .cache of this folder; PYTHON=... names another Python.
# A failed target ends make with status 2; the tool's own status is in make's message.

BIN := .venv/bin
CODE := python overlay pkgs nix tests
TYPED := python $(wildcard overlay/vllm_exl3)
CONFIG := python/pyproject.toml
PYTEST := $(BIN)/python -m pytest -c $(CONFIG) --rootdir .
BOOTSTRAP := python=$$(PYTHON='$(PYTHON)' sh python/find-python) && \
	"$$python" python/bootstrap.py

.DEFAULT_GOAL := help
.PHONY: help start stop restart status logs check check-full lint bench-start bench-weights lock clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.* ## /  make \1\t/p' Makefile | expand -t 22

start: ## Set everything up, start the two ranks, wait until they answer
	@$(BOOTSTRAP) engine
	@$(BIN)/glmspark start

stop: ## Stop the ranks
	@if [ -x $(BIN)/glmspark ]; then $(BIN)/glmspark stop; \
	else echo "nothing is installed here, so nothing runs from here" >&2; fi

restart: ## Stop the ranks and start them again
	@$(BOOTSTRAP) engine
	@$(BIN)/glmspark restart

status: ## What runs, and whether it answers
	@if [ -x $(BIN)/glmspark ]; then $(BIN)/glmspark status; \
	else echo "nothing is installed here, so nothing runs from here" >&2; exit 6; fi

logs: ## Follow the ranks' logs
	@if [ -x $(BIN)/glmspark ]; then $(BIN)/glmspark logs -f; \
	else echo "nothing is installed here, so there are no logs" >&2; exit 3; fi

lint: ## Style and types
	@$(BOOTSTRAP) check
	@$(BIN)/ruff check --config $(CONFIG) $(wildcard $(CODE))
	@$(BIN)/ruff format --check --config $(CONFIG) $(wildcard $(CODE))
	@$(BIN)/mypy --config-file $(CONFIG) $(TYPED)

check: lint ## Style, types and the tests (at most 20 minutes on two cores)
	@$(PYTEST) -m "not full and not gpu"

check-full: lint ## The tests that take longer too
	@$(PYTEST) -m "not gpu"

bench-start: ## What `start` adds to raw vLLM, as JSON
	@$(BOOTSTRAP) check
	@$(BIN)/python tests/bench/bench_start.py

bench-weights: ## The weights store against rsync, openssl and the disk, as JSON
	@$(BOOTSTRAP) check
	@$(BIN)/python tests/bench/bench_weights.py

lock: ## Resolve python/requirements/*.in anew (needs uv)
	@python=$$(PYTHON='$(PYTHON)' sh python/find-python) && \
	"$$python" python/requirements/lock.py

clean: ## Stop the ranks, then remove all that was made here
	@if $(BIN)/glmspark --version >/dev/null 2>&1; then $(BIN)/glmspark stop; \
	else echo "no working tool in .venv, so no ranks were stopped" >&2; fi
	@rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache bench-*.json
	@find $(wildcard $(CODE)) -name __pycache__ -type d -prune -exec rm -rf {} +
