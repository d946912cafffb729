# Every target installs what it needs first: see `tools/setup --help`.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build up test lint gen bench image cluster cluster-down test-cluster

SCRIPTS := tools/setup tools/chart-check .ci/run $(addprefix tools/cluster/,check checking.sh cluster credentials install-check node rights storage)
# Resolved when a recipe runs, not before: the directory may not exist yet.
TOOLS = $$(tools/setup path)

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
	tools/chart-check

gen: ## Write the generated files
	cargo xtask gen

bench: ## Measure speed and memory beside what they are compared with (BENCH=--quick for a rough look)
	@tools/setup test
	cargo build --release --locked --package bench --package terrane
	TERRANE_TOOLS="$(TOOLS)" target/release/bench api --results bench/results $(BENCH)
	PATH="$$PATH:$(TOOLS)" TERRANE_TOOLS="$(TOOLS)" target/release/bench engine --results bench/results $(BENCH)

image: build ## Make the container images of Terrane in target/image
	@tools/setup image
	cargo xtask image --tool "$$(find "$(TOOLS)" -name terraform -o -name tofu | sort | head -n1)"

cluster: ## Run a real Kubernetes of one node on this machine, with the images of Terrane, as root: eval "$(make -s cluster)"
	@$(MAKE) --no-print-directory image >&2
	@tools/setup cluster
	@tools/cluster/cluster up target/image

cluster-down: ## Stop it and remove what it kept
	@tools/cluster/cluster down

test-cluster: image ## Check that cluster (pods, Services, DNS, volumes), the images on it, that stopping it leaves nothing, and the chart
	@tools/setup cluster
	@tools/cluster/check target/image
	@tools/cluster/install-check target/image
