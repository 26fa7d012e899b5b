# Short names for the commands of this repository. `make help` lists them.
# What must pass is decided by .ci/run alone; the targets here call it.

PKG ?= ./...
RUN ?= .
BENCH ?= Plan
COUNT ?= 6
FUZZTIME ?= 30s

GOVULNCHECK = go run golang.org/x/vuln/cmd/govulncheck@v1.8.0
BENCHSTAT = go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
APIDIFF = go run golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "variables: PKG=./pleg RUN=TestName BENCH=Name COUNT=6 FUZZTIME=30s OLD=file NEW=file"

.PHONY: quickstart
quickstart: ## run eleven sample pods as local processes
	go run ./examples/quickstart -for 20s

.PHONY: build
build: ## build all packages
	go build $(PKG)

.PHONY: test
test: ## run the tests of PKG; those that need root or containerd may skip
	go test -run '$(RUN)' $(PKG)

.PHONY: test-race
test-race: ## the same with the race detector, in random order
	go test -race -shuffle=on -run '$(RUN)' $(PKG)

.PHONY: test-root
test-root: ## all tests on real containerds, as root on Debian
	.ci/run tests

.PHONY: test-user
test-user: ## all tests as an ordinary user, started by root
	.ci/run user

.PHONY: harness
harness: ## run the conformance suite on the embedded runtime
	.ci/run harness

.PHONY: e2e
e2e: ## the whole agent on containerd, as root; SUBLET_CONTAINERD2 adds 2.x
	go test -count=1 -v -timeout 30m -run '$(RUN)' ./e2e

.PHONY: fuzz
fuzz: ## each fuzz target of PKG for FUZZTIME
	SUBLET_FUZZ_TIME='$(FUZZTIME)' SUBLET_FUZZ_PACKAGES='$(PKG)' .ci/run fuzz

.PHONY: bench
bench: PKG = ./runtime
bench: ## run benchmark BENCH of PKG (default: Plan of ./runtime), COUNT times
	@go test -run '^$$' -bench '$(BENCH)' -count $(COUNT) $(PKG)

.PHONY: benchstat
benchstat: ## summarize results in NEW, or compare OLD with NEW
	@$(BENCHSTAT) $(OLD) $(NEW)

.PHONY: mutate
mutate: ## list defects planted in PKG (one package) that no test notices
	go run ./internal/mutate $(PKG)

.PHONY: fmt
fmt: ## format the Go files
	.ci/run fmt

.PHONY: lint
lint: ## vet and golangci-lint
	.ci/run lint

.PHONY: generate
generate: ## write generated code and tidy go.mod
	go generate ./...
	go mod tidy
	cd examples/assembly && go mod tidy

.PHONY: static
static: ## all checks without tests, on a committed tree
	.ci/run static

.PHONY: ci
ci: ## everything that a change must pass, as root on Debian
	.ci/run

.PHONY: vuln
vuln: ## report known vulnerabilities that the code reaches
	$(GOVULNCHECK) ./...

.PHONY: apidiff
apidiff: ## compare the exported API with the last release
	APIDIFF='$(APIDIFF)' .ci/apidiff

.PHONY: hooks
hooks: ## check commit messages in this clone
	git config core.hooksPath .githooks
