# Every target works from a fresh clone on Debian 12 with Rust; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
BACKEND ?= auto

.PHONY: help agent build console demo up test test-console test-tools lint package edges fixtures bench-box bench-rsh bench-density bench-state bench-oauth soak fuzz

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

agent: ## builds the guest's binary, static: target/agent/cocoonbox-agent
	@scripts/agent.sh

build: agent ## builds the agent and every binary
	$(CARGO) build --workspace --bins

console: ## builds the console's pages; the next build takes them in
	@scripts/console.sh

demo: ## does the main job on a temporary data directory and proves it
	@scripts/demo.sh

up: build ## serves on the default data directory until Ctrl-C
	@scripts/need.sh run
	target/debug/cocoonbox up

test: ## installs what the tests need and runs everything
	@scripts/test.sh

test-console: ## runs the tests of the console's pages, in a browser, too
	@scripts/console.sh test

test-tools: ## installs what the tests need and stops
	@scripts/need.sh test

lint: ## formatting, clippy, docs, licences and bans, packages
	@scripts/lint.sh

package: ## packs each library crate as it would be published
	@scripts/package.sh

edges: ## writes the list of edges between our crates anew
	COCOONBOX_REGENERATE=1 $(CARGO) test -q -p cocoonbox-house-tests --test graph

fixtures: ## writes the list of fixture digests anew
	COCOONBOX_REGENERATE=1 $(CARGO) test -q -p cocoonbox-house-tests --test fixtures

bench-box: ## measures a box's start beside its peers
	@benches/bench-box.sh

bench-rsh: ## measures remote commands beside ssh
	@benches/bench-rsh.sh

bench-density: ## measures what a thousand boxes cost that nobody uses
	@benches/bench-density.sh

bench-state: ## measures saves and restores beside restic and borg
	@benches/bench-state.sh

bench-oauth: ## measures sign-in beside another authorization server
	@benches/bench-oauth.sh

fuzz: ## fuzzes what reads foreign bytes, 30 s for each target
	@scripts/fuzz.sh

soak: ## the long tests: 200 kills, thousands of connections, saves of a million files, the contract on Docker
	@scripts/soak.sh
