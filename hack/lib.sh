# Shared by the scripts of this folder: sourced, never run.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=${BIN:-$PWD/bin}
SANDBOX=${SANDBOX:-/var/lib/berth-sandbox}
PROFILE=${PROFILE:-a100x8-40g}
started=$SECONDS

# say prints one line of progress with the seconds since the script began.
say() { printf '[%4ds] %s\n' "$((SECONDS - started))" "$*"; }

# fail says what is wrong and how to mend it, and ends the script with code 2.
fail() { printf 'error: %s\n' "$*" >&2; exit 2; }

is_root() { [ "$(id -u)" = 0 ]; }

# debian_packages installs the named packages that are missing, when it may.
debian_packages() {
	local missing=() package
	for package in "$@"; do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
	done
	[ ${#missing[@]} = 0 ] && return 0
	if ! is_root || ! command -v apt-get >/dev/null; then
		echo "missing packages: ${missing[*]} (as root: apt-get install ${missing[*]})"
		return 1
	fi
	say "installing ${missing[*]}"
	local log
	log=$(mktemp)
	if ! { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" ||
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; }; } >"$log" 2>&1; then
		tail -n 5 "$log"
		rm -f "$log"
		echo "could not install: ${missing[*]}"
		return 1
	fi
	rm -f "$log"
}

# need_go checks for the compilers: Go, and gcc for go-nvml and the race detector.
need_go() {
	command -v go >/dev/null || fail "Go is missing: install Go 1.26 from your distribution or go.dev, then try again"
	local minor
	minor=$(go env GOVERSION | sed -E 's/^go1\.([0-9]+).*/\1/')
	[ "${minor:-0}" -ge 26 ] || fail "$(go env GOVERSION) is too old: Berth needs Go 1.26"
	command -v gcc >/dev/null || debian_packages gcc libc6-dev ||
		fail "gcc is missing: go-nvml is a cgo package (as root: apt-get install gcc libc6-dev)"
}

# sandbox_missing prints, a line each, why a sandbox cannot run here; nothing when it can.
# It installs what it may first.
sandbox_missing() {
	[ "$(uname -s)" = Linux ] || { echo "not Linux: the sandbox needs namespaces and cgroups"; return; }
	is_root || echo "not root: the sandbox mounts, makes device nodes and cgroups (try: sudo make $1)"
	debian_packages runc containernetworking-plugins iproute2 || true
	command -v runc >/dev/null || echo "no runc: as root, apt-get install runc"
}

export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g -Wno-deprecated-declarations}"
