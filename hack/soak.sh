#!/usr/bin/env bash
# The large counts. The seed is printed; BERTH_SEED=N repeats a run.
source "$(dirname "$0")/lib.sh"
need_go
missing=$(sandbox_missing soak)
[ -z "$missing" ] || fail "the soak needs a sandbox:
$missing"
export BERTH_SEED=${BERTH_SEED:-$RANDOM$RANDOM}
say "seed $BERTH_SEED"
say "10,000 random sequences for each property"
go test -count=1 ./internal/placement ./internal/ledger ./internal/health ./internal/inventory -run 'Twin|Random|Property|Sequences' -rapid.checks=10000 -rapid.seed="$BERTH_SEED" -timeout 60m
say "every MIG layout on every simulated machine, 10,000 random changes on each kind of card, kills at random"
BERTH_SOAK=1 go test -count=1 ./internal/mig ./internal/partition -rapid.checks=2000 -rapid.seed="$BERTH_SEED" -timeout 60m
hack/build.sh sandbox
say "200 pods, 8 at a time, with 50 restarts of the agent"
BERTH_SOAK=1 BERTH_BIN=$BIN go test -C kube -count=1 -timeout 60m -v -run 'Churn' ./test/e2e
say "the agent killed at random moments of MIG changes"
BERTH_SOAK=1 BERTH_BIN=$BIN go test -C kube -count=1 -timeout 60m -v -run 'MIG.*Kill|Kill.*MIG' ./test/e2e
