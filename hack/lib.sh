# Shared by the scripts of this folder: sourced, never run.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=${BIN:-$PWD/bin}
SANDBOX=${SANDBOX:-/var/lib/berth-sandbox}
PROFILE=${PROFILE:-a100x8-40g}
started=$SECONDS

# say prints one line of progress, with the seconds since the script began, to stderr:
# stdout is for results.
say() { printf '[%4ds] %s\n' "$((SECONDS - started))" "$*" >&2; }

# fail says what is wrong and how to fix it, and ends the script with code 2.
fail() { printf 'error: %s\n' "$*" >&2; exit 2; }

# timed NAME COMMAND...: runs a stage and keeps how long it took for print_times.
times=()
timed() {
	local name=$1 at=$SECONDS status=0
	shift
	"$@" || status=$?
	times+=("$(printf '%6d s  %s' $((SECONDS - at)) "$name$([ $status = 0 ] || echo ": failed")")")
	return $status
}

# print_times prints how long each stage took, and the whole script.
print_times() {
	[ ${#times[@]} != 0 ] || return 0
	printf '%s\n' "stages on $(nproc) CPUs:" "${times[@]}" "$(printf '%6d s  in all' $((SECONDS - started)))" >&2
}

# version prints the version: the last tag with the commits since, or the commit if there is no tag.
version() { git describe --tags --always --dirty 2>/dev/null || echo devel; }

is_root() { [ "$(id -u)" = 0 ]; }

# in_ci tells whether a CI system runs the script: a stage that cannot run is a failure there.
in_ci() { [ "${CI:-false}" != false ]; }

# install_packages installs Debian packages. When it fails, install_error says why.
install_error=
install_packages() {
	install_error=
	if ! is_root || ! command -v apt-get >/dev/null; then
		install_error="missing packages: $* (as root on Debian or Ubuntu: apt-get install $*)"
		return 1
	fi
	say "installing $*"
	local log
	log=$(mktemp)
	if ! { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }; } >"$log" 2>&1; then
		install_error="could not install $*; apt-get said: $(tail -n 3 "$log" | tr '\n' ' ')"
	fi
	rm -f "$log"
	[ -z "$install_error" ]
}

# need_go checks for the compilers: Go, and gcc for go-nvml and the race detector.
need_go() {
	command -v go >/dev/null || fail "Go is missing: install Go 1.26 from your distribution or go.dev, then try again"
	local minor
	minor=$(go env GOVERSION | sed -E 's/^go1\.([0-9]+).*/\1/')
	[ "${minor:-0}" -ge 26 ] || fail "$(go env GOVERSION) is too old: Berth needs Go 1.26"
	command -v gcc >/dev/null || install_packages gcc libc6-dev ||
		fail "gcc is missing, and go-nvml is a cgo package: $install_error"
}

# Where distributions keep the CNI plugins.
CNI_DIRS=${CNI_DIRS:-/usr/lib/cni /opt/cni/bin /usr/libexec/cni}

has_cni() {
	local dir
	for dir in $CNI_DIRS; do
		[ ! -e "$dir/bridge" ] || [ ! -e "$dir/host-local" ] || [ ! -e "$dir/loopback" ] || return 0
	done
	return 1
}

# find_missing TARGET puts the Debian packages of the programs that a sandbox lacks into missing_packages. The tests open pages with Chromium, and run
# the commands of the documents.
missing_packages=()
find_missing() {
	missing_packages=()
	command -v runc >/dev/null || missing_packages+=(runc)
	has_cni || missing_packages+=(containernetworking-plugins)
	command -v ip >/dev/null || missing_packages+=(iproute2)
	[ "$1" = demo ] || command -v chromium >/dev/null || missing_packages+=(chromium fonts-dejavu-core)
	[ "$1" = demo ] || command -v jq >/dev/null || missing_packages+=(jq)
	[ "$1" = demo ] || command -v python3 >/dev/null || missing_packages+=(python3)
}

# check_sandbox TARGET fills sandbox_reasons: why a sandbox cannot run here, empty when it can.
# It installs what it may first. Call it in the script's own shell, never in $(...):
# the reasons are an array so that no line of output can be taken for one.
sandbox_reasons=()
check_sandbox() {
	sandbox_reasons=()
	if [ "$(uname -s)" != Linux ]; then
		sandbox_reasons+=("not Linux: the sandbox needs namespaces and cgroups")
		return 0
	fi
	is_root || sandbox_reasons+=("not root: the sandbox mounts, makes device nodes and cgroups (try: sudo make $1)")
	find_missing "$1"
	[ ${#missing_packages[@]} != 0 ] || return 0
	if ! install_packages "${missing_packages[@]}"; then
		sandbox_reasons+=("$install_error")
		return 0
	fi
	find_missing "$1"
	[ ${#missing_packages[@]} = 0 ] || sandbox_reasons+=("still missing after apt-get install: ${missing_packages[*]}")
}

# print_reasons prints the reasons, a line each.
print_reasons() { printf '  - %s\n' "${sandbox_reasons[@]}"; }

# need_sandbox TARGET ends the script unless a sandbox can run here.
need_sandbox() {
	check_sandbox "$1"
	[ ${#sandbox_reasons[@]} = 0 ] || fail "make $1 needs a sandbox, which cannot run here:
$(print_reasons)"
}

# stage NAME [-v] [-run PATTERN] [arguments of go test]: runs one stage of tests.
# It prints how many tests and random walks ran, and at the end what failed. With a pattern it fails when a package ran no test of it, which
# go test itself passes. With -v it prints all that the tests print.
# With stage_report set, the summary is appended to that file too.
stage() {
	local name=$1 verbose=() pattern= previous= argument
	shift
	if [ "${1:-}" = -v ]; then verbose=(-v) && shift; fi
	for argument in "$@"; do
		[ "$previous" != -run ] || pattern=$argument
		previous=$argument
	done
	say "$name"
	# -json comes last, since -C has to come first.
	go test "$@" -json | go run ./hack/runstage -name "$name" -run "$pattern" -report "${stage_report:-}" ${verbose[@]+"${verbose[@]}"}
}

# files_in_memory has tests write their files to memory, where it is large enough and programs may run there: most of what some tests cost is
# waiting for the disk, since what they test syncs each file.
files_in_memory() {
	local dir=/dev/shm probe
	[ -z "${TMPDIR:-}" ] && [ -w "$dir" ] || return 0
	[ "$(df --output=avail "$dir" 2>/dev/null | tail -n 1)" -ge $((4 << 20)) ] || return 0
	probe=$(mktemp "$dir/berth.XXXXXX")
	printf '#!/bin/sh\n' >"$probe"
	chmod +x "$probe"
	# What Go compiles stays on the disk.
	if "$probe" 2>/dev/null; then export TMPDIR=$dir GOTMPDIR=${GOTMPDIR:-/tmp}; fi
	rm -f "$probe"
}

# All that the scripts compile is independent of the folder that the repository is in, so that another clone, the programs, their tests and the
# linters find it in the build cache; and programs that are shipped name no path of the machine that built them.
GOFLAGS="$(go env GOFLAGS 2>/dev/null || true) -trimpath"
export GOFLAGS
export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g -Wno-deprecated-declarations}"
