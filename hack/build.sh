#!/usr/bin/env bash
# Builds the programs into BIN; with the argument "sandbox" also the embedded
# Kubernetes, containerd, the sandbox and (unless KWOK=no) kwok, the controllers of JobSet and LeaderWorkerSet, and the last release;
# with "scheduler" only berth-scheduler, as it is shipped; with "schedulers" also the stock one and schedulerbench, which measures both; with "driver" only
# the driver of simulated machines; with "libcuda" only its libcuda.so.1; with "images [arguments of berth-images make]" only the images of
# the programs that are built; with "apiserver VERSION" only kube-apiserver of another version of Kubernetes, for kube/test/apiserver.
source "$(dirname "$0")/lib.sh"
need_go
mkdir -p "$BIN"
work=$(mktemp -d)
ticker=
trap '[ -z "$ticker" ] || kill "$ticker" 2>/dev/null || true; rm -rf "$work"' EXIT

# Nothing is said of a build that takes less than this; then a line comes every so often.
after=${PROGRESS_AFTER:-5}
every=${PROGRESS_EVERY:-20}

# state prints what a build has done: packages compiled, their files, and both of the whole
# build. `go build -v` names each package as its compilation begins. Files are what the
# estimate goes by, since packages differ too much in size.
state() {
	awk 'FILENAME == ARGV[1] { files[$1] = $2; if ($3) todo[$1] = 1; next }
		NF == 1 && ($1 in files) { done[$1] = todo[$1] = 1 }
		END { for (p in todo) { n++; f += files[p]; if (p in done) { dn++; df += files[p] } } print dn + 0, df + 0, n + 0, f + 0 }' "$1" "$2"
}

# left prints the time for the files that are left, at the speed since the first look: seconds, files
# compiled meanwhile, files left.
left() {
	if [ $(($2 * 50)) -lt $(($2 + $3)) ]; then echo "too early for an estimate"; return; fi
	local seconds=$(($1 * $3 / $2))
	if [ $seconds -lt 90 ]; then echo "about $seconds s left"; else echo "about $(((seconds + 30) / 60)) min left"; fi
}

# progress NAME LOG DIR [arguments of go list]: tells how far a build is until it is killed.
progress() {
	local name=$1 log=$2 dir=$3 list=$2.list began= first=0 compiled files packages all
	shift 3
	: >"$log.started"
	# The sleeps have no output of ours: they may outlive the script, and keep no pipe open.
	sleep "$after" >/dev/null 2>&1
	# Which packages the build has to compile, by the build's own rules. It waits for downloads.
	go list -C "$dir" -deps -f '{{.ImportPath}} {{len .GoFiles}} {{if and .Stale (ne .StaleReason "not installed but available in build cache")}}1{{end}}' "$@" >"$list.part" 2>/dev/null && mv "$list.part" "$list" 2>/dev/null & # The build may be done first.
	while sleep "$every" >/dev/null 2>&1; do
		if [ ! -e "$list" ]; then
			say "$name: downloading modules, $(grep -c '^go: downloading' "$log") so far"
			continue
		fi
		read -r compiled files packages all < <(state "$list" "$log")
		[ -n "$began" ] || { began=$SECONDS first=$files; }
		if [ "$compiled" -ge "$packages" ]; then
			say "$name: all $packages packages compiled or being compiled, linking comes next"
		else
			say "$name: $compiled of $packages packages compiled, $(left $((SECONDS - began)) $((files - first)) $((all - files)))"
		fi
	done
}

# build MODULE-DIR OUTPUT PACKAGE [go build flags]: says so only when it takes long.
build() {
	local dir=$1 out=$2 package=$3 log=$work/$2
	shift 3
	local at=$SECONDS status=0
	[ -e "$BIN/$out" ] || say "building $out"
	progress "$out" "$log" "$dir" "$@" "$package" &
	ticker=$!
	# The compiler takes a sixth less time when it collects garbage less often.
	GOGC=${GOGC:-400} go build -C "$dir" -v -o "$BIN/$out" "$@" "$package" 2>"$log" || status=$?
	# bash runs the EXIT trap in a subshell that is killed before its first command.
	until [ -e "$log.started" ]; do sleep 0.01; done
	kill "$ticker" 2>/dev/null || true
	wait "$ticker" 2>/dev/null || true
	ticker=
	# What is left without the names of packages and modules are warnings and errors.
	grep -v -e '^go: downloading ' -e '^[^ :#]*$' "$log" >&2 || true
	[ $status = 0 ] || fail "$out does not build: see above"
	[ $((SECONDS - at)) -lt 3 ] || say "built $out in $((SECONDS - at)) s"
}

# What the programs say as their version: the last tag, and the commit.
number=$(git describe --tags --dirty 2>/dev/null || true)
commit=$(git describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null || true)
stamp="-X github.com/berth-gpu/berth/internal/core/version.number=$number -X github.com/berth-gpu/berth/internal/core/version.commit=$commit"

# build_cuda builds the libcuda.so.1 of simulated machines.
build_cuda() {
	local cuda=internal/hardware/sim/libcuda
	gcc -shared -fPIC -O2 -s -Wall -Wextra -pthread -Wl,-soname,libcuda.so.1 -Wl,--build-id=none "-Wl,--version-script=$cuda/exports.map" \
		-o "$work/libcuda.so.1" "$cuda/libcuda.c" || fail "libcuda.so.1 does not build: see above"
	mv "$work/libcuda.so.1" "$BIN/libcuda.so.1"
}
if [ "${1:-}" = libcuda ]; then
	build_cuda
	exit 0
fi

# build_driver builds the driver of simulated machines, which `berth sim create` installs: the libraries export the functions of NVML
# or CUDA and nothing else, since they are loaded into Go programs; the programs are static, since they run with the machine's file tree
# as their root.
build_driver() {
	build_cuda
	local library=internal/hardware/sim/libnvml
	build . libnvidia-ml.so.1 "./$library" -buildmode=c-shared -ldflags="-s -w -extldflags '-Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$PWD/$library/exports.map'"
	rm -f "$BIN/libnvidia-ml.so.h"
	build . berth-sim-tools ./internal/hardware/sim/program -tags=netgo,osusergo -ldflags="-s -w -linkmode external -extldflags '-static -Wl,--no-warnings'"
}
if [ "${1:-}" = driver ]; then
	build_driver
	exit 0
fi

# stamp_kubernetes VERSION: without these Kubernetes would call itself v0.0.0, also where its programs name themselves to the API server.
stamp_kubernetes() {
	local minor=${1#1.} at=k8s.io/component-base/version
	minor=${minor%%.*}
	echo "-X $at.gitVersion=v$1 -X $at.gitMajor=1 -X $at.gitMinor=$minor -X $at.gitCommit=none -X $at.gitTreeState=archive"
}
kubernetes=$(stamp_kubernetes 1.37.1)

# build_apiserver MODULE-DIR: the kube-apiserver of the version that a module requires.
build_apiserver() {
	local version
	version=$(go list -C "$1" -m -f '{{.Version}}' k8s.io/kubernetes)
	version=${version#v}
	build "$1" "kube-apiserver-${version%.*}" k8s.io/kubernetes/cmd/kube-apiserver -ldflags="-s -w $(stamp_kubernetes "$version")"
}

# "apiserver VERSION": another than the pinned one, from a module that is made for it as kube/apiserver134 was. Kubernetes' own go.mod names
# the modules that are versioned with it.
if [ "${1:-}" = apiserver ]; then
	module=$work/apiserver
	mkdir "$module"
	text=$(cd "$module" && go mod download -json "k8s.io/kubernetes@v$2" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
	{
		printf 'module apiserver\n\ngo 1.26.0\n\ntool k8s.io/kubernetes/cmd/kube-apiserver\n\nrequire k8s.io/kubernetes v%s\n\n' "$2"
		sed -nE "s|^\t?(replace )?(k8s.io/[a-z-]+) => \./staging/.*|replace \2 => \2 v0.${2#1.}|p" "$text"
	} >"$module/go.mod"
	(cd "$module" && go mod tidy) 2>"$work/tidy" || fail "the module of kube-apiserver $2 cannot be made: $(cat "$work/tidy")"
	build_apiserver "$module"
	exit 0
fi

build_scheduler() { build kube berth-scheduler ./cmd/berth-scheduler -ldflags="-s -w $stamp $kubernetes"; }
if [ "${1:-}" = scheduler ]; then
	[ -e "$BIN/berth-scheduler" ] || say "the first build compiles kube-scheduler, some 5 minutes of CPU time; later ones take seconds"
	build_scheduler
	exit 0
fi

# "schedulers": Berth's scheduler, the stock one (in hyperkube) and what measures both.
if [ "${1:-}" = schedulers ]; then
	[ -e "$BIN/hyperkube" ] || say "the first build compiles Kubernetes, some 12 minutes of CPU time; later ones take seconds"
	build_scheduler
	build kube hyperkube ./cmd/hyperkube -ldflags="-s -w $kubernetes"
	build kube schedulerbench ./test/schedulerbench -ldflags="-s -w $kubernetes"
	exit 0
fi

# make_images [arguments of berth-images make]: prints each image with its digest.
make_images() {
	build hack/images berth-images . -ldflags="$stamp"
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0) "$BIN/berth-images" make --bin "$BIN" --output "$BIN/images" "$@"
}
if [ "${1:-}" = images ]; then
	make_images "${@:2}"
	exit 0
fi

# package_chart DIR VERSION APP-VERSION REGISTRY [SOURCE]: packages the chart into DIR/berth-VERSION.tgz, with the images of a version in a registry.
# The same chart gives the same bytes: Helm writes the present time, so its archive is made again.
package_chart() {
	local dir=$1 version=$2 app=$3 registry=$4 source=${5:-charts/berth} out
	build kube/helm helm helm.sh/helm/v4/cmd/helm -ldflags='-s -w'
	local at=$work/chart-$2
	mkdir -p "$at/packed" "$dir"
	cp -R "$source" "$at/source"
	sed -i "s|^  registry: berth.dev\$|  registry: $registry|" "$at/source/values.yaml"
	out=$("$BIN/helm" package "$at/source" --destination "$at" --version "$version" --app-version "$app" 2>&1) || fail "the chart cannot be packaged: $out"
	tar --extract --touch --file="$at/berth-$version.tgz" --directory="$at/packed"
	tar --create --sort=name --mtime="@$(git log -1 --format=%ct 2>/dev/null || echo 0)" --owner=0 --group=0 --numeric-owner --directory="$at/packed" berth |
		gzip --no-name >"$dir/berth-$version.tgz"
}

# build_previous puts the agent, the operator and the chart of the last release, whose commit is in hack/previous-version, into BIN/previous, for
# the tests that upgrade from it. Packages that are the same are in the compiler's cache.
build_previous() {
	local commit source=$work/previous-source out=$BIN/previous stamp
	commit=$(cat hack/previous-version)
	if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
		! in_ci || fail "Git has no commit $commit, the last release (hack/previous-version): clone with the whole history, and not a depth"
		say "SKIPPED: the programs of the last release: Git has no commit $commit (hack/previous-version), so no test upgrades from it"
		rm -rf "$out"
		return
	fi
	[ "$(cat "$out/commit" 2>/dev/null)" != "$commit" ] || return 0
	rm -rf "$out"
	mkdir -p "$source" "$work/previous" "$out"
	git archive "$commit" | tar -x -C "$source"
	stamp="-X github.com/berth-gpu/berth/internal/core/version.number=previous -X github.com/berth-gpu/berth/internal/core/version.commit=$commit"
	build "$source" previous/berth-agent ./cmd/berth-agent -ldflags="$stamp"
	build "$source" previous/berth-operator ./cmd/berth-operator -ldflags="$stamp"
	build "$source" previous/berth-cdi-hook ./cmd/berth-cdi-hook -tags=netgo,osusergo -ldflags="-s -w $stamp -linkmode external -extldflags '-static -Wl,--no-warnings'"
	package_chart "$out" 0.0.0-previous previous berth.dev "$source/charts/berth"
	echo "$commit" >"$out/commit"
}

# The chart's version has to be a semantic version; a commit is one with a letter before it.
semantic() {
	local version=${1#v}
	case $version in
	[0-9]*.[0-9]*.[0-9]*) echo "$version" ;;
	*) echo "0.0.0-g$version" ;;
	esac
}

# "chart DIR VERSION REGISTRY": the chart and install.yaml of a version.
if [ "${1:-}" = chart ]; then
	chart=$(semantic "$3")
	package_chart "$2" "$chart" "$3" "$4"
	{
		cat <<-EOF
			# Berth $3 without Helm: kubectl apply --server-side -f install.yaml
			apiVersion: v1
			kind: Namespace
			metadata:
			  name: berth-system
			  labels:
			    # The agent is the only privileged program of Berth.
			    pod-security.kubernetes.io/enforce: privileged
		EOF
		"$BIN/helm" template berth "$2/berth-$chart.tgz" --namespace berth-system
	} >"$2/install.yaml"
	exit 0
fi

build . berth ./cmd/berth -ldflags="$stamp"
build . berth-agent ./cmd/berth-agent -ldflags="$stamp"
build . berth-operator ./cmd/berth-operator -ldflags="$stamp"
build_driver
# Static, since it runs on hosts with an older C library; not without cgo, since the
# toolkit's hooks reach go-nvml through its configuration package.
build . berth-cdi-hook ./cmd/berth-cdi-hook -tags=netgo,osusergo -ldflags="-s -w $stamp -linkmode external -extldflags '-static -Wl,--no-warnings'"
[ "${1:-}" = sandbox ] || exit 0
[ -e "$BIN/hyperkube" ] || say "the first build compiles Kubernetes and containerd, some 13 minutes of CPU time; later ones take seconds"
build_scheduler
make_images >/dev/null

build kube hyperkube ./cmd/hyperkube -ldflags="-s -w $kubernetes"
build kube/containerd containerd github.com/containerd/containerd/v2/cmd/containerd -ldflags='-s -w -X github.com/containerd/containerd/v2/version.Version=2.4.2' -tags=no_btrfs,no_devmapper,no_zfs,no_aufs
build kube/containerd containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 -ldflags='-s -w'
# For up --api-nodes only: 2 minutes of CPU time the first time. The controllers are for end-to-end tests: 2.5 minutes of CPU time. The API server is for
# kube/test/apiserver: 4.5 minutes of CPU time.
if [ "${KWOK:-}" != no ]; then
	# The agent with an example vendor, for an end-to-end test.
	build kube berth-agent-stub ./test/berth-agent-stub
	# A device plugin of NVIDIA's pattern, for another one. Static, since it runs in a container without a C library.
	CGO_ENABLED=0 build kube stock-plugin ./test/stock-plugin -ldflags='-s -w'
	build kube/kwok kwok sigs.k8s.io/kwok/cmd/kwok -ldflags='-s -w'
	build kube/controllers jobset-controller sigs.k8s.io/jobset -ldflags='-s -w'
	build_apiserver kube/apiserver134
	build kube/controllers lws-controller sigs.k8s.io/lws/cmd -ldflags='-s -w'
fi
package_chart "$BIN/chart" 0.0.0-dev dev berth.dev
[ "${KWOK:-}" = no ] || build_previous
build kube berth-sandbox ./cmd/berth-sandbox -ldflags="$stamp"
# Static, since it runs in containers without a C library.
CGO_ENABLED=0 build kube workload ./cmd/workload -ldflags='-s -w'
