# `make` alone prints what there is to do.
GO      ?= go
ARGS    ?=
PACKAGES = $(shell $(GO) list ./... | grep -v /e2e$$)
FUZZTIME ?= 10s
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help run build test unit js e2e nodes needs lint fuzz check bench

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## serve on 127.0.0.1:8080 with SQLite; other flags: make run ARGS="--addr 127.0.0.1:9000"
	@$(GO) build -o bin/chronocast ./cmd/chronocast && exec bin/chronocast serve $(ARGS)

build: ## build bin/chronocast, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/chronocast ./cmd/chronocast

test: needs unit js e2e ## install what the tests need, then run all of them

needs: ## install what the tests need, or say what is missing
	@sh e2e/install.sh

unit: ## Go tests with the race detector, without the end-to-end ones
	@sh .ci/gotest unit -race -timeout 10m $(PACKAGES)

js: needs ## type check, tests and size budget of the JavaScript client, tests of the demo page
	cd client-js && npm run --silent check && npm test --silent
	node --test internal/demo/test/

e2e: needs ## the real binary, foreign clients, a browser, several nodes on PostgreSQL
	@sh .ci/gotest e2e -timeout 15m -count 1 ./e2e

nodes: needs ## only the end-to-end tests of several nodes on a real PostgreSQL
	@sh .ci/gotest nodes -timeout 15m -count 1 -run 'Nodes|OnEveryNode|OnAnotherNode|BothNodes|ANewLife|B70|B80|B104|I4_' ./e2e

lint: ## format, vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

fuzz: ## run every fuzz target for FUZZTIME (10s)
	@sh .ci/fuzz $(FUZZTIME)

check: lint test fuzz ## everything a change must pass

bench: ## order against its price: sequencer, codecs, fan-out, with ratios in one run
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./sequencer/... ./internal/store/... ./protocol ./internal/hub
