# Berth's index: each line of `make help` is one thing that can be done here.
# The doing is in hack/, one script per job.

BIN      ?= $(CURDIR)/bin
SANDBOX  ?= /var/lib/berth-sandbox
PROFILE  ?= a100x8-40g
RUN      ?= .
export BIN SANDBOX PROFILE RUN

.DEFAULT_GOAL := help
.PHONY: help demo stop test test-short unit lint fuzz e2e soak bench bench-scheduler bench-scheduler-gangs bench-scheduler-large build sandbox-build images push release generate clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## /\1|/' | awk -F'|' '{printf "  make %-21s %s\n", $$1, $$2}'

demo: ## a real one-node Kubernetes with 8 simulated GPUs, a pod with 2 of them, and which ones they are
	@hack/demo.sh

stop: ## end what `make demo` or `make e2e` started; leaves nothing behind
	@hack/stop.sh

test: ## everything that must pass: unit tests, end to end, lint, fuzzing (CI runs this)
	@hack/test.sh

test-short: ## for a first try: unit tests, the demo, and one path through the real cluster
	@hack/test.sh short

unit: ## unit tests of all modules, with the race detector where goroutines meet
	@hack/unit.sh

lint: ## gofmt, go vet, berthlint (staticcheck and others), the import rules
	@hack/lint.sh

fuzz: ## each fuzz target for FUZZTIME (default 5s)
	@hack/fuzz.sh

e2e: ## end-to-end tests chosen by RUN=regexp, on a sandbox that stays up between runs
	@hack/e2e.sh

soak: ## the large counts, for hours: 200 pods, 50 agent restarts, 100,000 random walks; goes on where it stopped (docs/soak.md)
	@hack/soak.sh

bench: ## Go benchmarks with the figures of docs/performance.md; RUN=pairs: only the calls in pairs, beside their bars
	@hack/bench.sh

bench-scheduler: ## berth-scheduler beside kube-scheduler, 500 nodes, single pods and gangs: pods per second, CPU time, memory, ratios, how long other pods wait beside gangs (20 minutes)
	@hack/bench-scheduler.sh

bench-scheduler-gangs: ## the loads of bench-scheduler with gangs, also berth-scheduler with Kubernetes' own gang scheduling (10 minutes)
	@hack/bench-scheduler.sh gangs

bench-scheduler-large: ## berth-scheduler with 5,000 nodes and 50,000 pods (some 15 minutes; 12 GiB of memory)
	@hack/bench-scheduler.sh large

build: ## berth, berth-agent, berth-operator, berth-cdi-hook and the driver of simulated machines into bin/
	@hack/build.sh

sandbox-build: ## build, and the sandbox with its Kubernetes, containerd, kwok, and the controllers of JobSet and LeaderWorkerSet
	@hack/build.sh sandbox

images: ## the image of each program, berth-scheduler too, into bin/images: OCI layout, tarball (docker load, ctr image import), bill of materials
	@hack/images.sh

push: ## push the images to REGISTRY, such as registry.example.com/berth, tagged with the version
	@hack/push.sh

release: ## what is published of a version, into dist/: programs, images, bills of materials, checksums
	@hack/release.sh

generate: ## deep copies, CRDs, generated documents and the NVML base of the simulator, from their sources
	@hack/generate.sh

clean: stop ## stop, and remove bin/
	@rm -rf $(BIN)
