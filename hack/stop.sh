#!/usr/bin/env bash
# Ends the sandbox, also after a crash.
source "$(dirname "$0")/lib.sh"
if [ ! -x "$BIN/berth-sandbox" ]; then
	[ ! -e "$SANDBOX" ] || fail "$SANDBOX exists, but $BIN/berth-sandbox is not built: run make sandbox-build, then make stop"
	say "nothing runs"
	exit 0
fi
"$BIN/berth-sandbox" down --dir "$SANDBOX"
