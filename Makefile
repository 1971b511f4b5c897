# berth: `make` lists the targets.
SHELL := /bin/bash
GO ?= go
BIN := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unversioned)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Without grpc's request tracing, which nothing here reads, the linker leaves out much more.
BUILD := CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $(BIN)/
PROGRAMS := ./daemon/cmd/berthd ./daemon/cmd/berth-wrap ./rpc/cmd/berthctl ./daemon/cmd/berth-workspace ./plugins/cmd/berth-sandbox-process
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# The race detector needs cgo and a C compiler; without one the tests run without it, and say so.
RACE := $(shell command -v $(firstword $(shell $(GO) env CC)) >/dev/null 2>&1 && echo -race)
TESTFLAGS ?=
ROUNDS ?= 200
KILLS ?= 20
HITS ?= 20

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the programs into bin/
	@mkdir -p $(BIN)
	$(BUILD) $(PROGRAMS)

.PHONY: demo
demo: build ## Show the main job: sessions that survive the daemon
	@packaging/demo/demo $(CURDIR)/$(BIN)

.PHONY: setup
setup: ## Install what the tests use beyond Go (as root, with apt); say what is missing
	@packaging/setup

.PHONY: test
test: setup build ## Run all tests
	@[ -n "$(RACE)" ] || echo "note: no C compiler found, the tests run without the race detector"
	$(GO) test $(RACE) -timeout 20m $(TESTFLAGS) ./...

.PHONY: test-systemd
test-systemd: setup build ## Run the tests that need a booted systemd, each package in a throw-away one (root); test-packages
	$(GO) build -o $(BIN)/ ./systemd/cmd/berth-box
	@$(BIN)/berth-box --check
	$(GO) test $(RACE) -count=1 -timeout 5m $(TESTFLAGS) ./systemd/systemdtest
	BERTH_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test $(RACE) -count=1 -timeout 5m -run TestReboot $(TESTFLAGS) ./systemd
	BERTH_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test $(RACE) -count=1 -timeout 8m -exec $(CURDIR)/$(BIN)/berth-box $(TESTFLAGS) ./systemd ./systemd/journald ./systemd/scope
	BERTH_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test $(RACE) -count=1 -timeout 8m -exec $(CURDIR)/$(BIN)/berth-box $(TESTFLAGS) -run 'Journald|TestScope' ./daemon/internal/daemontest
	@$(MAKE) --no-print-directory test-packages

.PHONY: deb
deb: ## Build the Debian package into dist/
	@packaging/build deb

.PHONY: rpm
rpm: ## Build the RPM package into dist/
	@packaging/build rpm

.PHONY: test-packages
test-packages: ## Build the packages, check them, and try them on a host with a booted systemd (root)
	@packaging/setup packages
	$(GO) build -o $(BIN)/ ./systemd/cmd/berth-box
	@$(BIN)/berth-box --check
	rm -rf dist/test
	DIST=$(CURDIR)/dist/test/old packaging/build deb rpm
	DIST=$(CURDIR)/dist/test/new VERSION=$$(packaging/version)+next packaging/build deb rpm
	$(GO) -C packaging/tools vet ./...
	BERTH_TEST_BIN=$(CURDIR)/dist/test $(GO) test -count=1 -timeout 8m $(TESTFLAGS) ./packaging
	BERTH_TEST_BIN=$(CURDIR)/dist/test $(GO) test -count=1 -timeout 8m -exec $(CURDIR)/$(BIN)/berth-box $(TESTFLAGS) ./packaging/smoke

.PHONY: crash
crash: build ## Kill the daemon at random moments under load, ROUNDS times (200), and KILLS times (20) at each step of a deletion
	$(GO) test $(RACE) -count=1 -timeout 60m -run 'TestCrash|TestDeleteKilled' -v ./daemon/internal/daemontest -rounds $(ROUNDS) -kills $(KILLS)

.PHONY: failpoints
failpoints: ## Kill the daemon between any two steps, at the first HITS (20) hits of each point, and let each step fail
	$(GO) test $(RACE) -count=1 -timeout 90m -run 'TestFailpoints|TestFailingSteps' -v ./daemon/internal/daemontest -hits $(HITS)

.PHONY: states
states: ## Look for work in 200 random states of a git checkout, and save it
	$(GO) test -count=1 -timeout 30m -run TestRandomStates ./daemon/internal/workspace -states 50

.PHONY: bench
bench: setup build ## Measure, with what it is compared with in the same run
	@packaging/bench

.PHONY: lint
lint: ## Check format, vet, static analysis
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "not formatted:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN) dist
