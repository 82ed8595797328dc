#!/usr/bin/env bash
# End-to-end tests chosen by RUN, on a sandbox that stays up between runs
# (`make stop` ends it).
source "$(dirname "$0")/lib.sh"
need_go
need_sandbox e2e
[ -n "${BUILT:-}" ] || hack/build.sh sandbox
"$BIN/berth-sandbox" up --dir "$SANDBOX" --bin "$BIN" --profile "$PROFILE"
# Where the logs of a cluster whose test has failed stay.
E2E_LOGS=${E2E_LOGS:-$(mktemp -u /tmp/berth-e2e-logs.XXXXXX)}
export BERTH_E2E_DIR=$SANDBOX BERTH_BIN=$BIN BERTH_E2E_LOGS=$E2E_LOGS
stage "end-to-end tests matching $RUN" -v -C kube -count=1 -timeout "${E2E_TIMEOUT:-65m}" -run "$RUN" ./test/e2e
