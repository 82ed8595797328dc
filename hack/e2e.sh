#!/usr/bin/env bash
# End-to-end tests chosen by RUN, on a sandbox that stays up between runs
# (`make stop` ends it).
source "$(dirname "$0")/lib.sh"
need_go
missing=$(sandbox_missing e2e)
[ -z "$missing" ] || fail "the end-to-end tests cannot run here:
$missing"
hack/build.sh sandbox
"$BIN/berth-sandbox" up --dir "$SANDBOX" --bin "$BIN" --profile "$PROFILE"
say "end-to-end tests matching $RUN"
BERTH_E2E_DIR=$SANDBOX BERTH_BIN=$BIN go test -C kube -count=1 -timeout "${E2E_TIMEOUT:-30m}" -v -run "$RUN" ./test/e2e
