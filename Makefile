# The front door: `make demo` and `make test` set up what they need. Needs Python 3.11 or newer, and nothing else.

.DEFAULT_GOAL := help
VENV := .venv
LONGBOAT := $(VENV)/bin/longboat
READY := $(VENV)/.ready
NATIVE := $(VENV)/.native

# The machine's own Python if it is new enough, else a newer one beside it. `make PYTHON=…` chooses another.
# A chosen one must also be able to make virtual environments (Debian keeps that in python3-venv).
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$python; break; }; done)

# A virtual environment knows its own path: one that was moved with its folder is made anew.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

$(READY): pyproject.toml requirements/bootstrap.txt requirements/dev.txt tools/bootstrap.py
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer with venv is needed and was not found."; \
		echo "Install one (on Debian and Ubuntu: python3 and python3-venv), or say which: make PYTHON=/path/to/python"; \
		exit 1; } >&2
	@$(PYTHON) tools/bootstrap.py $(VENV)
	@printf '%s\n' "$(CURDIR)" > $@

# What a request runs through is compiled when Longboat is installed, and here when a source is newer.
$(NATIVE): $(READY) $(wildcard hatch_build.py $(addprefix src/longboat/,compiled.py gateway/native/*.c routing/prefixes/*.c simulator/traces/*.c gateway/*/*.py gateway/*/*/*.py routing/*/*.py routing/*.py simulator/*.py simulator/*/*.py planner/*/*.py catalog/shape/*.py))
	@test ! -e hatch_build.py || $(VENV)/bin/python hatch_build.py
	@touch $@

##@ Run
.PHONY: demo
demo: venv  ## serve the built-in model with two real replicas, ENGINE=vllm or llama.cpp; stays up until Ctrl-C
	@trap : INT; $(LONGBOAT) demo --engine $(or $(ENGINE),vllm) || test $$? -eq 130

.PHONY: bench-start
bench-start: venv engine  ## measure how long a replica takes to start, part by part; ARGS="--engine sglang --only 1"
	@$(VENV)/bin/python benchmarks/bench_start.py $(ARGS)

.PHONY: bench-recovery
bench-recovery: venv engine  ## measure how long a split model is away after one of its parts was killed
	@$(VENV)/bin/python benchmarks/bench_recovery.py

.PHONY: bench-liveness
bench-liveness: venv  ## measure how soon gateways find out that a replica was cut off, stopped or killed
	@$(VENV)/bin/python benchmarks/bench_liveness.py

.PHONY: bench-control
bench-control: venv  ## measure what commands cost, and an idle node; ARGS="--replicas 64 --idle-s 60"
	@$(VENV)/bin/python benchmarks/bench_control.py $(ARGS)

.PHONY: bench-head-loss
bench-head-loss: venv  ## lose the cluster's head for AWAY_S (600) seconds under load; everything must be adopted
	@LONGBOAT_TEST_HEAD_AWAY_S=$(or $(AWAY_S),600) $(VENV)/bin/pytest -s -m ray -k adopted tests/fleet/test_three_hosts.py

.PHONY: bench-gateway
bench-gateway: venv  ## measure the gateway beside other proxies; ARGS="--quick --part proxies" chooses
	@$(VENV)/bin/python benchmarks/bench_gateway.py $(ARGS)

.PHONY: bench-index
bench-index: venv  ## measure the index of prefixes: events, memory, and a decision beside a copy of the same bytes
	@$(VENV)/bin/python benchmarks/bench_index.py $(ARGS)

.PHONY: bench-reuse
bench-reuse: venv  ## measure what prefix-aware routing saves on real vLLM, beside round robin and the twin
	@$(VENV)/bin/python benchmarks/bench_reuse.py $(ARGS)

.PHONY: bench-sglang-prefixes
bench-sglang-prefixes: venv  ## measure what telling its prefixes costs SGLang's scheduler; ARGS="--python PATH --pages 16 64"
	@$(VENV)/bin/python benchmarks/bench_sglang_prefixes.py $(ARGS)

.PHONY: bench-routing
bench-routing: venv  ## compare routing policies in the twin; ARGS="--traces FOLDER --quick" chooses
	@$(VENV)/bin/python benchmarks/bench_routing.py $(ARGS)

.PHONY: bench-console
bench-console: venv  ## measure what ten open consoles cost a gateway; ARGS="--viewers 10 --rounds 5"
	@$(VENV)/bin/python benchmarks/bench_console.py $(ARGS)

.PHONY: bench-scaling
bench-scaling: venv  ## compare autoscalers in the twin; ARGS="--traces FOLDER --quick" chooses
	@$(VENV)/bin/python benchmarks/bench_scaling.py $(ARGS)

.PHONY: bench-scale
bench-scale: venv  ## measure the control plane with 1,000 fake replicas and 16 gateways; ARGS="--replicas 100,300" chooses
	@$(VENV)/bin/python benchmarks/bench_scale.py $(ARGS)

.PHONY: bench-prediction
bench-prediction: venv  ## compare predictions with measured rows: DATA=ROWS.csv; writes docs/benchmarks/prediction.md
	@$(VENV)/bin/python benchmarks/bench_prediction.py $(DATA)

.PHONY: bench-plan
bench-plan: venv engine  ## compare the planner with real engines on this machine; ARGS="--part single|network --json FILE"
	@$(VENV)/bin/python benchmarks/bench_plan.py $(ARGS)

.PHONY: bench-twin
bench-twin: venv engine  ## compare the simulation with engines under the same load; ARGS="--part fake|vllm --worst 10"
	@$(VENV)/bin/python benchmarks/bench_twin.py $(ARGS)

.PHONY: what-fits
what-fits: venv  ## write docs/guides/what-fits.md: what a guide prints, beside what the planner computes
	@$(VENV)/bin/python tools/what_fits.py

.PHONY: check-deploy
check-deploy: venv  ## render the Helm chart for ten files of values, and check it, the images and the clouds by their schemas
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python --no-deps --target .deploy-tools -r requirements/deploy.txt
	@PYTHONPATH=.deploy-tools $(VENV)/bin/pytest -q tests/deploy

.PHONY: check-image
check-image: venv  ## build the image for processors without an engine, serve fleets in it, and try the compose files; needs root, buildah, podman, runc
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python --no-deps --target .deploy-tools -r requirements/deploy.txt
	@PYTHONPATH=.deploy-tools $(VENV)/bin/pytest -v -rs -m hosts --randomly-dont-reorganize --timeout 1800 \
		tests/deploy/test_built_image.py tests/deploy/test_built_compose.py

.PHONY: bench-gpu
bench-gpu: venv  ## predictions beside measurements on an NVIDIA GPU; ARGS="--environment /opt/vllm"
	@$(VENV)/bin/python benchmarks/bench_gpu.py $(ARGS)

.PHONY: bench-peers
bench-peers: venv  ## install the other proxies for bench-gateway, each in an environment of its own
	@$(VENV)/bin/python benchmarks/bench_gateway.py --install $(ARGS)

##@ Check
.PHONY: test
test: $(READY)  ## everything this machine allows; ONLY="lint quick" runs only these
	@$(VENV)/bin/python tools/run_tests.py $(ONLY)

.PHONY: quick
quick: venv  ## the tests that need no engine, no cluster and no root
	@$(VENV)/bin/pytest

.PHONY: lint types
lint types: venv  ## ruff, the import contracts and the prose; mypy
	@$(VENV)/bin/python tools/run_tests.py $@

.PHONY: test-hosts
test-hosts: venv  ## boot two Debian hosts with systemd and sshd, and install on them; needs root, systemd-nspawn, mmdebstrap
	@$(VENV)/bin/pytest -v -m hosts --randomly-dont-reorganize --timeout 3600 tests/hosts

.PHONY: test-console
test-console: venv  ## open the console in headless Chromium; installs playwright, and names what else is missing
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python -r requirements/console.txt
	@$(VENV)/bin/pytest -rs -m browser tests/gateway/test_console_browser.py tests/gateway/test_sign_in_browser.py

.PHONY: check-adapters
check-adapters: engine  ## make LoRA adapters with PEFT, compare vLLM's answers with PEFT's, and serve 20 of them under kills (five minutes)
	@$(VENV)/bin/uv pip install --quiet --require-hashes --no-deps --target build/peft -r requirements/peft.txt
	@LONGBOAT_TEST_PEFT=$(CURDIR)/build/peft LONGBOAT_TEST_PLATFORM=cpu LONGBOAT_TEST_ENGINE_PYTHON="$$($(LONGBOAT) engines list --json \
		| sed -n 's/.*"python": "\(.*\/vllm-.*\)",/\1/p' | tail -n 1)" $(VENV)/bin/pytest -rs -s -m engine --randomly-dont-reorganize \
		tests/engines/test_peft_adapters.py tests/fleet/shared/vllm/test_adapters_engine.py

.PHONY: console-pictures
console-pictures: venv  ## make the pictures of the console that README and docs show, with headless Chromium
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python -r requirements/console.txt
	@$(VENV)/bin/python tools/console_pictures.py

.PHONY: site
site: venv  ## build the site from docs/ into build/site, and check every link; SERVE=8080 then serves it there
	@$(VENV)/bin/uv venv --quiet --allow-existing --python $(VENV)/bin/python build/site-env
	@$(VENV)/bin/uv pip install --quiet --require-hashes --python build/site-env/bin/python -r requirements/site.txt
	@build/site-env/bin/python -m sphinx --quiet --fail-on-warning --keep-going -n -b html -c tools/site . build/site
	@$(VENV)/bin/python tools/check_site.py build/site
	@test -z "$(SERVE)" || $(VENV)/bin/python -m http.server --bind 127.0.0.1 --directory build/site $(SERVE)

.PHONY: chaos
chaos: venv  ## kill parts under load and compare every answer; SEED=7 STREAMS=500 FAULTS=60 ENGINE=fake|vllm|sglang ARGS="--kinds kill,stop"
	@$(VENV)/bin/python benchmarks/chaos.py --seed $(SEED) --streams $(STREAMS) --faults $(FAULTS) --engine $(ENGINE) $(ARGS)
chaos: SEED ?= 7
chaos: STREAMS ?= 500
chaos: FAULTS ?= 60
chaos: ENGINE ?= fake

.PHONY: kills
kills: venv  ## kill every part of a node and every pair of parts under load; prints how long each took to mend
	@LONGBOAT_TEST_ALL_KILLS=1 $(VENV)/bin/pytest -s -m ray -k lost_parts --randomly-dont-reorganize tests/fleet/test_kept_node.py

.PHONY: fuzz
fuzz: venv  ## throw bytes at the gateway for SECONDS (3600); READER=body: at its readers; needs atheris in .venv
	@mkdir -p build/fuzz/$(READER)
	@$(VENV)/bin/python tests/gateway/fuzz/fuzz_$(READER).py build/fuzz/$(READER) $(wildcard tests/gateway/fuzz/corpus) \
		-dict=tests/gateway/fuzz/http.dict -artifact_prefix=build/fuzz/ -max_len=4096 -timeout=30 \
		-max_total_time=$(SECONDS)
fuzz: READER ?= http
fuzz: SECONDS ?= 3600

.PHONY: check-alerts
check-alerts: venv  ## let Prometheus' promtool check the alerts: each fires with its fault and ends with it
	@$(VENV)/bin/python tools/check_alerts.py

.PHONY: check-boards
check-boards: venv  ## check the dashboards by the types of Grafana's own schema package; needs npm
	@$(VENV)/bin/python tools/check_boards.py

.PHONY: check-watch
check-watch: venv  ## let a real Prometheus watch a real fleet: no panel is empty, each alert fires with its fault and ends with it
	@$(VENV)/bin/pytest -rs -m watch --randomly-dont-reorganize tests/fleet/test_watched_fleet.py

##@ Set up
.PHONY: venv
venv: $(READY) $(NATIVE)  ## Longboat's own environment, in .venv
	@:

.PHONY: engine
engine: venv  ## the engine environment (vLLM), apart from .venv
	@$(LONGBOAT) engines install vllm

.PHONY: lock
lock: venv  ## write the locks anew; UPGRADE=1 moves to newer versions
	@UPGRADE=$(UPGRADE) $(VENV)/bin/python tools/lock.py

.PHONY: tiny-model
tiny-model: venv engine  ## train the built-in tiny model again
	@$$($(LONGBOAT) engines python vllm) tools/tiny_model/train.py --out src/longboat/builtin/tiny

.PHONY: clean
clean:  ## remove .venv and caches; engine environments stay
	rm -rf $(VENV) src/longboat/gateway/native/*.so src/longboat/_compiled build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help:
	@awk -F ':.*## ' '/^##@/ {print "\n" substr($$0, 5)} /^[a-z].*:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile
