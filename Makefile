# Every target installs what it needs first: see `tools/setup --help`.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build up test lint gen bench bench-cluster image image-of-release image-of-dev kaniko cluster cluster-down test-cluster test-conformance test-gitea test-opentofu test-upgrade deploy push

SCRIPTS := tools/setup tools/chart-check tools/push tools/gitea/check tools/opentofu/instead .ci/run examples/seeds/world examples/seeds/000/tour.sh examples/seeds/001/tour.sh $(addprefix tools/cluster/,checking.sh cluster conformance credentials node previous processes rights storage)
# Resolved when a recipe runs, not before: the directory may not exist yet.
TOOLS = $$(tools/setup path)
TARGET = $${CARGO_TARGET_DIR:-target}
# What the images are made of: the release, or with `dev` the program that `make test` has built, which is larger and slower.
IMAGE_PROFILE ?= release
# Of the suite on the cluster, only these: see tools/cluster/check.
TOPICS ?=
# The version that `test-upgrade` begins with: the last release, and until there is one a commit of before.
UPGRADE_FROM ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo f952fffbe53bb043fa36d150d50e78939481bccf)

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what build, up, test and lint need
	@tools/setup build up test lint

build: ## Build target/release/terrane
	@tools/setup build
	cargo build --release --locked --package terrane

up: build ## Run Terrane on this machine with a demo
	@tools/setup up
	PATH="$$PATH:$(TOOLS)" target/release/terrane up --demo

# Other people's programs and the tests are built at the same time: while one waits for a download or a linker, the other works.
test: ## Run every test, those on a real Kubernetes API included
	@tools/setup build
	@tools/setup test 2> >(cat >&2) & setup=$$!; trap 'kill $$setup 2>/dev/null || true' EXIT; \
	cargo test --workspace --locked --no-run; wait $$setup
	TERRANE_TOOLS="$(TOOLS)" cargo suite

lint: ## Check formatting, lints, dependencies, generated files, scripts and the Helm chart
	@tools/setup lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	"$(TOOLS)/cargo-deny" --locked check bans licenses sources
	@if timeout 60 "$(TOOLS)/cargo-deny" fetch db >/dev/null 2>&1; then \
		set -x; "$(TOOLS)/cargo-deny" --locked check --disable-fetch advisories; \
	else \
		echo "The database of advisories cannot be fetched: advisories are not checked."; \
	fi
	cargo xtask gen --check
	"$(TOOLS)/shellcheck" --external-sources $(SCRIPTS)
	"$(TOOLS)/shellcheck" --external-sources --check-sourced --exclude SC2034 tools/cluster/check tools/cluster/upgrade
	tools/chart-check

gen: ## Write the generated files
	cargo xtask gen

bench: ## Measure speed and memory beside what they are compared with (BENCH=--quick for a rough look)
	@tools/setup test
	cargo build --release --locked --package bench --package terrane
	TERRANE_TOOLS="$(TOOLS)" target/release/bench api --results bench/results $(BENCH)
	PATH="$$PATH:$(TOOLS)" TERRANE_TOOLS="$(TOOLS)" target/release/bench engine --results bench/results $(BENCH)
	PATH="$$PATH:$(TOOLS)" TERRANE_TOOLS="$(TOOLS)" target/release/bench doors --results bench/results $(BENCH)

bench-cluster: image ## Measure the controllers with 2,000 layers on a real Kubernetes API (BENCH=--quick for a rough look)
	@tools/setup test
	cargo build --release --locked --package bench
	TERRANE_TOOLS="$(TOOLS)" "$(TARGET)/release/bench" cluster --terrane "$(TARGET)/$(PROGRAM_OF_$(IMAGE_PROFILE))" --images "$(TARGET)/image" \
		--results bench/results $(BENCH)

image: image-of-$(IMAGE_PROFILE) ## Make the container images of Terrane in target/image

image-of-release: build
	@tools/setup image
	cargo xtask image --binary "$(TARGET)/$(PROGRAM_OF_release)" $(IMAGE_ARGUMENTS)

# The same command as in `test`, so that nothing is built again for it.
image-of-dev:
	@tools/setup build image
	cargo test --workspace --locked --no-run --quiet
	cargo xtask image --binary "$(TARGET)/$(PROGRAM_OF_dev)" --or-newest-packages $(IMAGE_ARGUMENTS)

PROGRAM_OF_release := release/terrane
PROGRAM_OF_dev := debug/terrane
# The builder's image only where kaniko has been built: it takes minutes, and most of what is done with images needs none.
IMAGE_ARGUMENTS = --out "$(TARGET)/image" --debs "$$(dirname "$(TOOLS)")/debs" \
	--tool "$$(find "$(TOOLS)" -name terraform -o -name tofu | sort | head -n1)" \
	$$([[ ! -x "$(TOOLS)/kaniko" ]] || echo --kaniko "$(TOOLS)/kaniko")

kaniko: ## Build kaniko, so that `make image` also makes the image that builds images
	@tools/setup kaniko

cluster: ## Run a real Kubernetes of one node on this machine, with the images of Terrane, as root: eval "$(make -s cluster)"
	@$(MAKE) --no-print-directory image >&2
	@tools/setup cluster >&2
	@tools/cluster/cluster up "$(TARGET)/image"

cluster-down: ## Stop it and remove what it kept
	@tools/cluster/cluster down

# The cases of the topic `conformance` are a test of the workspace: built by the same command as in `test`, so that nothing is built again for it.
test-cluster: image ## Check that cluster, the images and the chart on it, and that nothing of it stays (TOPICS=... for some of it)
	@tools/setup "$$([[ $$(id -u) -eq 0 || -n $${CI:-} ]] && echo cluster || echo test)"
	@[[ -n "$(TOPICS)" && " $(TOPICS) " != *" conformance "* ]] || cargo test --workspace --locked --no-run --quiet
	@TERRANE_PROGRAM="$(TARGET)/$(PROGRAM_OF_$(IMAGE_PROFILE))" tools/cluster/check "$(TARGET)/image" $(TOPICS)

test-conformance: ## Run the cases that the embedded API is held to on that cluster
	@tools/setup build cluster
	@TERRANE_TOOLS="$(TOOLS)" tools/cluster/conformance

test-gitea: ## Let a real Gitea tell a real `terrane up` of a push
	@tools/setup build gitea
	cargo build --locked --package terrane
	tools/gitea/check "$(TARGET)/debug/terrane"

# Of the test programs, those that start the tool.
test-opentofu: ## Run the tests that use the tool with OpenTofu, as where no terraform is
	@tools/setup test tofu
	tools/opentofu/instead cargo suite attempt up doors runs

# The earlier version first: both are made in the same place.
test-upgrade: ## Upgrade an earlier version with work under way, roll back, upgrade again (UPGRADE_FROM=COMMIT)
	@tools/setup build image cluster
	@tools/cluster/previous "$(UPGRADE_FROM)" "$(IMAGE_PROFILE)" "$(TARGET)" >/dev/null
	@$(MAKE) --no-print-directory image >&2
	@tools/cluster/upgrade "$(TARGET)/image" "$$(tools/cluster/previous "$(UPGRADE_FROM)" "$(IMAGE_PROFILE)" "$(TARGET)")"

deploy: ## Install Terrane, or upgrade it, on the cluster of the current context (HELM_ARGUMENTS for values of your own)
	@tools/setup helm
	"$(TOOLS)/helm" upgrade --install terrane charts/terrane --namespace terrane-system --create-namespace \
		--wait --timeout 5m $(HELM_ARGUMENTS)

push: kaniko image ## Push images and chart: make push REGISTRY=example.org/team, as whom `helm registry login` says
	@tools/setup helm push-image
	@tools/push "$(REGISTRY)" "$(TARGET)/image"
