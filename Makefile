# tinkermesh needs Python 3.11+ and make; everything else is installed into .venv.
#   make demo        the whole thing: install, start the mesh, train and sample with the SDK
#   make test        install and pass the tests
#   make up          install and start the mesh; Ctrl-C stops it
#   make sdk-matrix  the main path under four SDK releases
#   make fuzz        ten minutes of fuzzing the decoders
#   make numbers     measure what is claimed of the numbers; the table is out/numbers.md
#   make cookbook    recipes of the cookbook against real local meshes
#   make chaos       500 seeded histories with processes killed at named points and at random, 20 on the real trainer
#   make redis       Redis killed, failing over, losing power; the contract on a cluster; ten minutes
#   make soak        MINUTES=60 of random kills under the load of eight tenants
#   make alerts      faults that turn the alerts on, seen by a real Prometheus; some minutes
#   make chart-test  the Helm chart with helm 3, helm 4 and all validators
#   make kube-test   the chart's releases against a real Kubernetes API server
#   make images      container images of the services, with docker, podman or buildah
#   make prefill-decode  a real prefill and a real decode sampler under a whole mesh, killed; six minutes
#   make bench       measure everything that docs/performance.md quotes

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The CPU build of torch is on the ordinary index for some platforms only. Where plain
# installation fails, set this to PyTorch's own CPU wheel index.
TORCH_INDEX ?=
PYTEST_ARGS ?=

export TOKENIZERS_PARALLELISM = false

.PHONY: help install prefill-decode up demo demo-two-tenants test test-fast numbers lint protos protos-check locks bench fuzz redis chaos soak sdk-venvs sdk-matrix cookbook chart-helm prometheus alerts chart-test images podman-test kube-server kube-test clean

help:
	@sed -n 's/^#  *make/make/p' Makefile

install: $(VENV)/.installed

$(VENV)/.installed: requirements/test.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("tinkermesh needs Python 3.11 or newer; set PYTHON=... to one") if sys.version_info < (3, 11) else None'
	@echo "installing into $(VENV): about 3 GB, a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r requirements/test.txt \
	  || { test -n "$(TORCH_INDEX)" \
	       && $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --extra-index-url "$(TORCH_INDEX)" -r requirements/test.txt; } \
	  || { echo "Installation failed. If torch's CPU build was not found, run: make TORCH_INDEX=<PyTorch's CPU wheel index> $(MAKECMDGOALS)"; exit 1; }
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

up: install
	$(BIN)/tinkermesh up $(ARGS)

demo: install
	$(BIN)/tinkermesh demo $(ARGS)

demo-two-tenants: install
	$(BIN)/tinkermesh demo --two-tenants $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy services

protos: install
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tools/make_protos.py

protos-check: install
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tools/make_protos.py --check

locks: install
	$(BIN)/python tools/lock.py

sdk-venvs: install
	$(BIN)/python tools/sdk_venv.py 0.26.2

# The main path under every SDK release the mesh promises to serve; `make test` runs the oldest and the newest.
sdk-matrix: install
	$(BIN)/python tools/sdk_venv.py 0.26.2 0.30.4 0.34.0
	TINKERMESH_TEST_WHOLE_MATRIX=1 $(BIN)/python -m pytest -v tests/mesh/test_sdk_scenario.py tests/contract/sdk

# Five starts of an engine: too many for `make test`, which compares one pair with one mixed engine.
prefill-decode: install
	$(BIN)/python -m pytest -v -m legs tests/e2e/test_prefill_decode_mesh.py

# Recipes of tinker-cookbook, unmodified, against real local meshes: about a quarter of an hour.
cookbook: install
	$(BIN)/python -m tools.cookbook_venv
	$(BIN)/python -m pytest -v -m cookbook tests/cookbook

# Both helm versions (70 MB). Without them the tests of the chart are skipped, saying so.
chart-helm: install
	@$(BIN)/python tools/chart_tools.py || echo "helm could not be fetched"

# Prometheus itself (60 MB), Debian's. Without it the tests of alerts and dashboard are skipped, saying so.
prometheus: install
	@$(BIN)/python tools/prometheus_tool.py || echo "prometheus could not be fetched"

# `make test` leaves out the faults that must last (test_alert_pauses.py).
alerts: prometheus
	TINKERMESH_TEST_PROMETHEUS_REQUIRED=1 TINKERMESH_TEST_WHOLE_ALERTS=1 $(BIN)/python -m pytest -v \
	  tests/chart/test_alert_rules.py tests/mesh/test_alerts.py tests/mesh/test_alert_faults.py tests/mesh/test_alert_pauses.py \
	  tests/mesh/test_alert_tier.py

# The chart's tests with kubernetes-validate and checkov (another 400 MB), and nothing skipped.
chart-test: install
	$(BIN)/python tools/chart_tools.py --validators
	TINKERMESH_TEST_CHART_TOOLS_REQUIRED=1 $(BIN)/python -m pytest tests/chart $(PYTEST_ARGS)

# The CPU variants; IMAGES="trainer-cuda sampler-cuda" makes those for GPUs. IMAGE_ARGS go to the builder.
BUILDER      ?= $(firstword $(foreach tool,docker podman buildah,$(shell command -v $(tool) 2>/dev/null)))
IMAGES       ?= control trainer-cpu sampler-cpu
IMAGE_PREFIX ?= localhost/tinkermesh-
IMAGE_TAG    ?= 0.1.0
IMAGE_ARGS   ?=
images:
	@test -n "$(BUILDER)" || { echo "make images needs docker, podman or buildah"; exit 1; }
	for image in $(IMAGES); do \
	  $(BUILDER) build $(IMAGE_ARGS) $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) \
	    -f images/$$image/Containerfile -t $(IMAGE_PREFIX)$$image:$(IMAGE_TAG) . || exit 1; \
	done

# The chart's pods as real containers; needs root, podman and the images of `make images`.
podman-test: chart-helm
	$(BIN)/python -m pytest -v -m podman tests/podman $(PYTEST_ARGS)

# A Kubernetes control plane, built from Debian 12's source package: a quarter of an hour, 3 GB; needs root and deb-src.
kube-server: install
	$(BIN)/python tools/kube_server.py

# helm install, test, upgrade, rollback and uninstall against that control plane; a few minutes.
kube-test: chart-helm
	$(BIN)/python -m pytest -v -m kube tests/kube $(PYTEST_ARGS)

# WORKERS=0 runs the tests in one process, as a debugger wants them.
WORKERS ?= 2
test: lint protos-check sdk-venvs chart-helm prometheus
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

# Everything that starts neither vLLM nor Megatron processes.
test-fast: install
	$(BIN)/python -m pytest -m "not engine" $(PYTEST_ARGS)

# Each claim against an independent reference, with a control that must fail; a few minutes.
numbers: install
	$(BIN)/python -m pytest -q -m numbers $(PYTEST_ARGS)

bench: install
	$(BIN)/python -m benchmarks $(ARGS)

# Coverage-guided, over all decoders and the whole gateway; what breaks goes to fuzz-findings/.
SECONDS ?= 600
fuzz: install
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)
	TINKERMESH_FUZZ_EXAMPLES=1000 $(BIN)/python -m pytest -q tests/contract/gateway/test_fuzz.py

# Redis killed and losing power under load, with sentinels, and all of the scheduler's contract on a cluster; ten minutes.
redis: install
	TINKERMESH_TEST_WHOLE_REDIS=1 $(BIN)/python -m pytest -v tests/mesh/test_redis_kills.py tests/contract/scheduler/storage
	TINKERMESH_TEST_REDIS=cluster $(BIN)/python -m pytest -q tests/contract/scheduler

# Seeded histories of clients whose mesh is killed again and again, checked bitwise; goes on where it was cut off.
# SEEDS="17 44" plays those once more. Results and the logs of violations are in out/chaos.
HISTORIES ?= 500
SHARDS    ?= 3
REAL      ?= 20
chaos: install
	$(BIN)/python -m tests.chaos --shards $(SHARDS) $(if $(SEEDS),--seed $(SEEDS),--histories $(HISTORIES)) $(ARGS)
	$(if $(SEEDS),,$(BIN)/python -m tests.chaos.real --histories $(REAL))

MINUTES ?= 60
soak: install
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) $(ARGS)

clean:
	rm -rf $(VENV) .venvs .pytest_cache .mypy_cache .ruff_cache
