# Everything is built and tested from here; `make` lists the targets. Programs are static Go: no C compiler is needed.
MODULE   := github.com/hibernate-runtime/hibernate
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PREFIX   ?= /usr/local
DESTDIR  ?=
JOBS     ?= 2
PROGRAMS := containerd-shim-hibernate-v1 hibernated hibernatectl hibernate-helper
IMAGES   ?=

export CGO_ENABLED := 0
export GOFLAGS     := -buildvcs=false

RING    := sh tools/ring.sh
TOOLS   := .tools
LDFLAGS := -s -w -X $(MODULE)/internal/version.Version=$(VERSION)
ROOT_RINGS = HIBERNATE_REQUIRE_ROOT=1

# A package is of the root ring when its tests import testroot, or the harness; of the end-to-end ring when it is below
# integration, too; all others are the unit ring.
LIST = go list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... | \
       awk '{ r = "unit"; for (i = 2; i <= NF; i++) if ($$i ~ /\/(internal\/testroot|integration\/harness)$$/) r = "root"; print r, $$1 }'
UNIT = $(shell $(LIST) | awk '$$1 == "unit" { print $$2 }')
ROOT = $(shell $(LIST) | awk '$$1 == "root" && $$2 !~ "^$(MODULE)/integration" { print $$2 }')
E2E  = $(filter-out %/conformance %/faults %/client %/critest %/kubernetes %/network %/flat %/store %/move,$(shell $(LIST) | awk '$$1 == "root" && $$2 ~ "^$(MODULE)/integration" { print $$2 }'))

# Packages of the end-to-end ring that mostly wait, and run two at a time.
PAIRED = %/aftersleep %/checkpointverbs %/cri %/ctl %/drain %/fork %/harness %/hooks %/ownhooks %/refusals %/verbs

# Others that wait for a quarter of their time, and run beside each other.
BESIDE = %/crash %/cycles

# What pulls from a registry pulls from this one.
BUILD_REGISTRY = cd integration/images && go build -o $(CURDIR)/$(TOOLS)/ -trimpath -ldflags '-s -w' ./registry ./standin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build tools images promtool protos deps test check fmt vet staticcheck unit root test-conformance test-network test-faults full-faults test-store test-seaweedfs full-store test-move full-move test-flat full-flat test-client test-cri test-kubernetes full-kubernetes e2e shimtest race full-moment full-network demo bench short-bench bench-shim bench-network bench-flat bench-store bench-move install clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: deps tools images build ## The main job, shown: redis sleeps when idle and wakes when someone talks to it (root)
	@go run ./integration/demo

test: ## Everything that is tested: checks, then the rings unit, root and e2e (root)
	@$(RING) setup $(MAKE) --no-print-directory deps tools images build
	@$(RING) check $(MAKE) --no-print-directory check
	@$(RING) unit $(MAKE) --no-print-directory unit
	@$(RING) root $(MAKE) --no-print-directory root
	@$(RING) conformance $(MAKE) --no-print-directory test-conformance
	@$(RING) e2e $(MAKE) --no-print-directory e2e

bench: deps tools images build ## Measure, print a table and write .bench/bench.jsonl (root)
	@go run ./integration/bench

short-bench: deps tools images build ## The same with fewer runs and sizes: four minutes (root)
	@go run ./integration/bench -short

bench-shim: deps tools images build ## Measure the shim and write .bench/bench-shim.jsonl: two minutes (root)
	@go run ./integration/bench -shim

# In parts: BENCH_PARTS='path|held'; BENCH_PARTS=flat, …
bench-network: deps tools images build ## Measure the network and the wake proxy and write .bench/bench-network.jsonl: ten minutes (root)
	@go run ./integration/bench -network -only '$(BENCH_PARTS)'

# In parts: BENCH_PARTS='sizes|cold'; BENCH_PARTS=many, … BENCH_FLAGS='-short -sizes 16,1024'
bench-flat: deps tools images build ## Measure wakes whose memory comes later and write .bench/bench-flat.jsonl: half an hour (root)
	@go run ./integration/bench -flat -only '$(BENCH_PARTS)' $(BENCH_FLAGS)

# In parts: BENCH_PARTS='uploads|wakes'; BENCH_FLAGS='-short', or of chaos '-rounds 50 -seed 51'
bench-store: deps tools images build ## Measure the durable tier with a server on the loopback and write .bench/bench-store.jsonl: half an hour (root)
	@go run ./tools/toolchain -p $(JOBS) versitygw
	@go run ./integration/bench -store -only '$(BENCH_PARTS)' $(BENCH_FLAGS)

# In parts: BENCH_PARTS='peer|fork'; of chaos: BENCH_FLAGS='-rounds 50 -seed 51'
bench-move: deps tools images build ## Measure workloads that move between two nodes and are forked, and write .bench/bench-move.jsonl: ten minutes (root)
	@go run ./tools/toolchain -p $(JOBS) versitygw
	@go run ./integration/bench -move -only '$(BENCH_PARTS)' $(BENCH_FLAGS)

build: ## Build the programs into bin/
	@mkdir -p bin
	@go build -tags no_grpc -trimpath -p $(JOBS) -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(filter-out hibernatectl,$(PROGRAMS)))
	@go build -trimpath -p $(JOBS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/hibernatectl
	@cd sidecar && go build -trimpath -p $(JOBS) -ldflags '-s -w' -o ../bin/hibernate-bin/ ./checkpointgofer

tools: ## Build the pinned outside programs (runsc, containerd, CNI plugins, …) once, and link them in .tools/
	@go run ./tools/toolchain -p $(JOBS)

images: tools ## Pack the test images from Debian packages once, and link them in .tools/images/
	@go build -o $(TOOLS)/testserver -trimpath -ldflags '-s -w' ./integration/testserver
	@cd integration/images && go run . -links $(CURDIR)/$(TOOLS)/images -testserver $(CURDIR)/$(TOOLS)/testserver $(IMAGES)

protos: ## Generate api/*/v1/*.go from the protos
	@sh tools/deps.sh protos
	@go run ./tools/toolchain protoc
	@for p in api/*/v1/*.proto; do \
	  PATH="$(CURDIR)/$(TOOLS):$$PATH" protoc -I . --go_out=. --go_opt=paths=source_relative \
	    --go-ttrpc_out=. --go-ttrpc_opt=paths=source_relative --go-ttrpc_opt=prefix=TTRPC $$p || exit 1; done

deps: ## Install the Debian packages that tests and the demo need, when missing (root)
	@sh tools/deps.sh

check: fmt vet staticcheck ## gofmt, go vet and staticcheck

fmt: ## Fail when a file is not as gofmt has it
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); [ -z "$$out" ] || { echo "not gofmt'ed:"; echo "$$out"; exit 1; }

vet: ## go vet, this module and the nested ones
	@go vet ./...
	@cd integration/images && go vet ./...
	@cd sidecar && go vet ./...

staticcheck: ## staticcheck
	@go run ./tools/toolchain staticcheck
	@$(TOOLS)/staticcheck ./...
	@cd sidecar && ../$(TOOLS)/staticcheck ./...

promtool: ## Bring Prometheus's promtool to .tools/, which checks the alert rules
	@sh tools/promtool.sh

unit: tools promtool ## Tests that need no root
	@HIBERNATE_PROMTOOL=1 sh tools/gotest.sh -together -p $(JOBS) -timeout 5m -- $(UNIT)
	@cd integration/images && go test ./...
	@cd sidecar && go test ./...

root: tools ## Tests of single packages with the kernel and real runsc (root)
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -parallel 4 -timeout 10m -- $(ROOT)

test-conformance: ## The shim alone over ttrpc, with no containerd, awake and asleep (root)
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -parallel 3 -timeout 10m -- ./integration/conformance

test-faults: deps tools images build ## Each step of hibernations and wakes made to fail, hang and die; random sequences (root)
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -parallel 4 -timeout 15m -- ./integration/faults

# In parts: FAULTS_RUN=TestWake; FAULTS_RUN=TestModel FAULTS_SEED=7000 FAULTS_SEQUENCES=50, then 7050, …
full-faults: deps tools images build ## test-faults with 200 random sequences of operations; FAULTS_SEED=… for the same ones again (root)
	@cd integration/faults && FAULTS_SEQUENCES=$(or $(FAULTS_SEQUENCES),200) $(ROOT_RINGS) \
	  go test -count=1 -parallel 4 -timeout 30m -run '$(FAULTS_RUN)'

test-store: deps tools images build ## The durable tier against a real S3 server, versitygw, over http and TLS, and against a directory (root)
	@go run ./tools/toolchain -p $(JOBS) versitygw
	@HIBERNATE_STORE=1 sh tools/gotest.sh -together -count=1 -p $(JOBS) -timeout 10m -- $(MODULE)/snapshot/store/... $(MODULE)/snapshot/durable/...
	@HIBERNATE_STORE=1 $(ROOT_RINGS) sh tools/gotest.sh -count=1 -timeout 10m -- ./integration/store

SEAWEEDFS := TestWakesFromTheStore|TestALateBadChunkIsMended|TestWakeFrom|TestStartsFromTheStoreInAnotherPod

test-seaweedfs: deps tools images build ## The durable tier against another S3 server, SeaweedFS, over http and TLS: once for a release (root)
	@go run ./tools/toolchain -p $(JOBS) seaweedfs
	@HIBERNATE_SEAWEEDFS=1 sh tools/gotest.sh -count=1 -timeout 15m -run '^TestContractOfSeaweedFS$$' -- $(MODULE)/snapshot/store/s3store
	@HIBERNATE_SEAWEEDFS=1 sh tools/gotest.sh -count=1 -timeout 5m -run '^TestOnEachStore$$/^seaweedfs' -- $(MODULE)/snapshot/durable
	@HIBERNATE_SEAWEEDFS=1 $(ROOT_RINGS) sh tools/gotest.sh -count=1 -timeout 10m -run '^($(SEAWEEDFS))$$/^seaweedfs$$' -- ./integration/store

test-move: deps tools images build ## Workloads with an identity on two nodes that share a store: moved, taken over, partitioned (root)
	@go run ./tools/toolchain -p $(JOBS) versitygw
	@HIBERNATE_STORE=1 $(ROOT_RINGS) sh tools/gotest.sh -count=1 -timeout 10m -- ./integration/move

full-move: deps tools images build ## test-move, and 300 random runs on two nodes with a witness; MOVE_CHAOS, MOVE_SEED, three pairs of nodes beside each other (root)
	@go run ./tools/toolchain -p $(JOBS) versitygw
	@HIBERNATE_STORE=1 MOVE_CHAOS=$(or $(MOVE_CHAOS),300) $(ROOT_RINGS) go test -count=1 -v -parallel 3 -timeout 120m $(if $(MOVE_RUN),-run '$(MOVE_RUN)') ./integration/move

full-store: deps tools images build ## test-store, the search of the protocol at size, and 300 random runs of chaos; STORE_CHAOS, STORE_SEED (root)
	@go run ./tools/toolchain -p $(JOBS) versitygw
	@HIBERNATE_STORE=1 HIBERNATE_MODEL=1 sh tools/gotest.sh -together -count=1 -p $(JOBS) -timeout 30m -- $(MODULE)/snapshot/store/... $(MODULE)/snapshot/durable/...
	@HIBERNATE_STORE=1 STORE_CHAOS=$(or $(STORE_CHAOS),300) $(ROOT_RINGS) go test -count=1 -v -timeout 90m ./integration/store

test-flat: deps tools images build ## Workloads that run before their memory is loaded, and what may happen meanwhile (root)
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -parallel 4 -timeout 10m -- ./integration/flat

full-flat: deps tools images build ## 1,000 late corruptions of a snapshot; FLAT_CORRUPTIONS, FLAT_SEED (root)
	@$(ROOT_RINGS) FLAT_CORRUPTIONS=$(or $(FLAT_CORRUPTIONS),1000) go test -count=1 -v -timeout 60m -run TestLateCorruptions ./integration/flat

test-client: deps tools images build ## containerd's own client integration tests against this runtime, awake and asleep (root)
	@sh tools/deps.sh client
	@go run ./tools/toolchain -p $(JOBS) client
	@$(BUILD_REGISTRY)
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -timeout 20m -- ./integration/client

# In parts: CRITEST_FOCUS='Streaming|Networking'
test-cri: deps tools images build ## critest against containerd's CRI with this runtime: awake, and with every pod asleep after each call (root)
	@go run ./tools/toolchain -p $(JOBS) critest
	@$(BUILD_REGISTRY)
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -timeout 20m -- ./integration/critest

# The tools take some minutes to build, the first time.
test-kubernetes: deps tools images build ## A real Kubernetes of one node, whose pods are this runtime's by a RuntimeClass and nothing else (root)
	@go run ./tools/toolchain -p $(JOBS) kube
	@$(BUILD_REGISTRY)
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -timeout 20m -- ./integration/kubernetes

full-kubernetes: deps tools images build ## test-kubernetes; a hundred pods that sleep, and a boot of the node (root)
	@go run ./tools/toolchain -p $(JOBS) kube
	@$(BUILD_REGISTRY)
	@$(ROOT_RINGS) HIBERNATE_FULL=1 sh tools/gotest.sh -count=1 -v -timeout 40m -- ./integration/kubernetes

shimtest: tools build ## containerd's own suite for shims, built elsewhere: SHIMTEST=path/to/shimtest.test (root)
	@[ -n "$(SHIMTEST)" ] || { echo "give the suite's binary: make shimtest SHIMTEST=path/to/shimtest.test"; exit 2; }
	@sh integration/conformance/shimtest.sh "$(SHIMTEST)" $(SHIMTEST_FLAGS)

e2e: ## Tests of the whole, with real containerd, runsc and servers (root)
	@$(ROOT_RINGS) sh tools/gotest.sh -together -count=1 -p 2 -timeout 10m -- $(filter $(PAIRED),$(E2E))
	@$(ROOT_RINGS) sh tools/gotest.sh -together -count=1 -p 2 -timeout 10m -- $(filter $(BESIDE),$(E2E))
	@$(ROOT_RINGS) sh tools/gotest.sh -count=1 -timeout 10m -- $(filter-out $(PAIRED) $(BESIDE),$(E2E))

full-moment: deps tools images build ## Data in the very moment of sleeping and waking, over 1000 transitions (root)
	@$(ROOT_RINGS) HIBERNATE_FULL=1 go test -count=1 -timeout 30m ./integration/moment

# Those of integration/network are in no other ring: NETWORK=integration/network runs them alone.
test-network: deps tools images build ## The tests that docs/NETWORK.md names: a sleeper's network is that of a running container (root)
	@$(ROOT_RINGS) sh tools/named.sh docs/NETWORK.md $(NETWORK)

full-network: deps tools images build ## test-network at size; keep-alives on 1,000 connections; 5,000 clients on each of four workloads (root)
	@$(ROOT_RINGS) HIBERNATE_FULL=1 go test -count=1 -v -timeout 60m ./integration/network ./integration/keepalive
	@unshare -n sh -c 'ip link set lo up && sysctl -qw net.core.somaxconn=65535 && \
	  HIBERNATE_FULL=1 go test -count=1 -v -run TestThousandsAreHeld ./daemon'

race: ## The unit ring under the race detector (needs a C compiler)
	@CGO_ENABLED=1 go test -race -p $(JOBS) -timeout 10m $(UNIT)

install: tools build ## Install programs, runsc and configuration below $(DESTDIR) (PREFIX=/usr/local)
	@PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) RUNSC=$(TOOLS)/runsc sh contrib/install.sh install

clean: ## Remove what was built here; the user's cache of tools and images stays
	rm -rf bin $(TOOLS) .bench
