#!/usr/bin/env bash
# Builds the programs into BIN. The argument:
#
#   demo                                   also the embedded Kubernetes, containerd and the sandbox
#   sandbox                                besides kwok, the controllers of JobSet and LeaderWorkerSet, and the last release
#   scheduler                              only berth-scheduler, as it is shipped
#   schedulers                             also the stock one, and schedulerbench, which measures both
#   driver, libcuda                        only the driver of simulated machines, or its libcuda.so.1
#   images [arguments of berth-images make]   only the images of the programs that are built
#   apiserver VERSION                      only kube-apiserver of another version of Kubernetes, for kube/test/apiserver
#   chart DIR VERSION REGISTRY             only the chart and install.yaml of a version
source "$(dirname "$0")/lib.sh"
need_go
mkdir -p "$BIN"
work=$(mktemp -d)
helpers=()
trap 'end_helpers; rm -rf "$work"' EXIT

# Nothing is said of builds that take less than this; then a line comes every so often.
after=${PROGRESS_AFTER:-5}
every=${PROGRESS_EVERY:-20}

# The programs that `build` makes: for each go build its CGO_ENABLED and the arguments of `program`, quoted for eval; and all names.
builds=()
programs=()

# program MODULE-DIR "OUTPUT ..." "PACKAGE ..." [go build flags]: declares programs of one module with the same flags. Of several, each has the
# name of its package's folder, and one go build links them side by side.
program() {
	builds+=("$(printf '%q ' "${CGO_ENABLED:-}" "$@")")
	programs+=($2)
}

# plan writes which packages each build has to compile, by the build's own rules, to $work/plan.N: name, number of files, and 1 where it is
# not in the cache. So it downloads the modules of the later builds while the first ones compile.
plan() {
	local n=0 one
	for one in "${builds[@]}"; do
		n=$((n + 1))
		eval "plan_one $n $one" || return 0 # The build itself says why.
	done
}

plan_one() {
	local n=$1 cgo=$2 dir=$3 packages=$5
	shift 5
	CGO_ENABLED=$cgo go list -C "$dir" -deps -f '{{.ImportPath}} {{len .GoFiles}} {{if and .Stale (ne .StaleReason "not installed but available in build cache")}}1{{end}}' \
		"$@" $packages >"$work/part" 2>/dev/null && mv "$work/part" "$work/plan.$n"
}

# state prints what the builds have done: packages compiled, their files, and both of all plans. `go build -v` names each package as its
# compilation begins. Files are what the estimate goes by, since packages differ too much in size.
state() {
	cat "$work"/plan.* /dev/null 2>/dev/null >"$work/plans"
	cat "$work"/log.* /dev/null 2>/dev/null | awk 'FILENAME == ARGV[1] { files[$1] = $2; if ($3) todo[$1] = 1; next }
		NF == 1 && ($1 in files) { done[$1] = todo[$1] = 1 }
		END { for (p in todo) { n++; f += files[p]; if (p in done) { dn++; df += files[p] } } print dn + 0, df + 0, n + 0, f + 0 }' "$work/plans" -
}

# left prints the time for the files that are left, at the speed since the first look: seconds, files
# compiled meanwhile, files left.
left() {
	if [ $(($2 * 50)) -lt $(($2 + $3)) ]; then echo "too early for an estimate"; return; fi
	local seconds=$(($1 * $3 / $2))
	if [ $seconds -lt 90 ]; then echo "about $seconds s left"; else echo "about $(((seconds + 30) / 60)) min left"; fi
}

# progress tells how far the builds are until it is killed.
progress() {
	local began= first=0 compiled files packages all done
	: >"$work/started"
	# The sleeps have no output of ours: they may outlive the script, and keep no pipe open.
	sleep "$after" >/dev/null 2>&1
	while sleep "$every" >/dev/null 2>&1; do
		done="$(cat "$work/built") of ${#programs[@]} programs built"
		if [ ! -e "$work/plan.${#builds[@]}" ]; then
			say "$done, downloading modules, $(cat "$work"/log.* | grep -c '^go: downloading') so far"
			continue
		fi
		read -r compiled files packages all < <(state)
		[ -n "$began" ] || { began=$SECONDS first=$files; }
		if [ "$compiled" -ge "$packages" ]; then
			say "$done, all $packages packages compiled or being compiled, linking comes next"
		else
			say "$done, $compiled of $packages packages compiled, $(left $((SECONDS - began)) $((files - first)) $((all - files)))"
		fi
	done
}

# build makes the programs that are declared, and says so when it takes long.
build() {
	local at=$SECONDS n=0 one
	rm -f "$work"/plan.* "$work"/log.*
	: >"$work/log.0"
	echo 0 >"$work/built"
	plan &
	helpers=($!)
	progress &
	helpers+=($!)
	for one in "${builds[@]}"; do
		n=$((n + 1))
		eval "build_one $n $one"
	done
	# bash runs the EXIT trap in a subshell that is killed before its first command.
	until [ -e "$work/started" ]; do sleep 0.01; done
	end_helpers
	rm -f "$BIN/libnvidia-ml.so.h" # A by-product of the library.
	[ $((SECONDS - at)) -lt 3 ] || say "built ${#programs[@]} programs in $((SECONDS - at)) s"
	builds=() programs=()
}

end_helpers() {
	[ ${#helpers[@]} = 0 ] || kill "${helpers[@]}" 2>/dev/null || true
	wait "${helpers[@]}" 2>/dev/null || true
	helpers=()
}

build_one() {
	local log=$work/log.$1 cgo=$2 dir=$3 outputs=$4 packages=$5 status=0
	shift 5
	local to=$BIN/$outputs
	case $outputs in *' '*) to=$BIN/ ;; esac
	# The compiler takes a sixth less time when it collects garbage less often.
	CGO_ENABLED=$cgo GOGC=${GOGC:-400} go build -C "$dir" -v -o "$to" "$@" $packages 2>"$log" || status=$?
	# What is left without the names of packages and modules are warnings and errors.
	grep -v -e '^go: downloading ' -e '^[^ :#]*$' "$log" >&2 || true
	[ $status = 0 ] || fail "$outputs does not build: see above"
	local names=($outputs)
	echo $(($(cat "$work/built") + ${#names[@]})) >"$work/built"
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

# declare_driver declares the driver of simulated machines, which `berth sim create` installs: the libraries export the functions of NVML
# or CUDA and nothing else, since they are loaded into Go programs; the programs are static, since they run with the machine's file tree
# as their root.
declare_driver() {
	build_cuda
	local library=internal/hardware/sim/libnvml
	program . libnvidia-ml.so.1 "./$library" -buildmode=c-shared -ldflags="-s -w -extldflags '-Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$PWD/$library/exports.map'"
	program . berth-sim-tools ./internal/hardware/sim/program -tags=netgo,osusergo -ldflags="-s -w -linkmode external -extldflags '-static -Wl,--no-warnings'"
}
if [ "${1:-}" = driver ]; then
	declare_driver
	build
	exit 0
fi

# stamp_kubernetes VERSION: without these Kubernetes would call itself v0.0.0, also where its programs name themselves to the API server.
stamp_kubernetes() {
	local minor=${1#1.} at=k8s.io/component-base/version
	minor=${minor%%.*}
	echo "-X $at.gitVersion=v$1 -X $at.gitMajor=1 -X $at.gitMinor=$minor -X $at.gitCommit=none -X $at.gitTreeState=archive"
}
kubernetes=$(stamp_kubernetes 1.37.1)

# declare_apiserver MODULE-DIR: the kube-apiserver of the version that a module requires.
declare_apiserver() {
	local version
	version=$(go list -C "$1" -m -f '{{.Version}}' k8s.io/kubernetes)
	version=${version#v}
	program "$1" "kube-apiserver-${version%.*}" k8s.io/kubernetes/cmd/kube-apiserver -ldflags="-s -w $(stamp_kubernetes "$version")"
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
	declare_apiserver "$module"
	build
	exit 0
fi

# declare_of_kubernetes "PROGRAM ...": programs that have Kubernetes in them, of kube/cmd.
declare_of_kubernetes() { program kube "$1" "$(printf './cmd/%s ' $1)" -ldflags="-s -w $stamp $kubernetes"; }
if [ "${1:-}" = scheduler ]; then
	[ -e "$BIN/berth-scheduler" ] || say "the first build compiles kube-scheduler, some 5 minutes of CPU time; later ones take seconds"
	declare_of_kubernetes berth-scheduler
	build
	exit 0
fi

# "schedulers": Berth's scheduler, the stock one (in hyperkube) and what measures both.
if [ "${1:-}" = schedulers ]; then
	[ -e "$BIN/hyperkube" ] || say "the first build compiles Kubernetes, some 12 minutes of CPU time; later ones take seconds"
	declare_of_kubernetes "berth-scheduler hyperkube"
	program kube schedulerbench ./test/schedulerbench -ldflags="-s -w $kubernetes"
	build
	exit 0
fi

declare_images() { program hack/images berth-images . -ldflags="$stamp"; }

# make_images [arguments of berth-images make]: prints each image with its digest.
make_images() { SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0) "$BIN/berth-images" make --bin "$BIN" --output "$BIN/images" "$@"; }
if [ "${1:-}" = images ]; then
	declare_images
	build
	make_images "${@:2}"
	exit 0
fi

declare_helm() { program kube/helm helm helm.sh/helm/v4/cmd/helm -ldflags='-s -w'; }

# package_chart DIR VERSION APP-VERSION REGISTRY [SOURCE]: packages the chart into DIR/berth-VERSION.tgz, with the images of a version in a registry.
# The same chart gives the same bytes: Helm writes the present time, so its archive is made again.
package_chart() {
	local dir=$1 version=$2 app=$3 registry=$4 source=${5:-charts/berth} out
	local at=$work/chart-$2
	mkdir -p "$at/packed" "$dir"
	cp -R "$source" "$at/source"
	sed -i "s|^  registry: berth.dev\$|  registry: $registry|" "$at/source/values.yaml"
	out=$("$BIN/helm" package "$at/source" --destination "$at" --version "$version" --app-version "$app" 2>&1) || fail "the chart cannot be packaged: $out"
	tar --extract --touch --file="$at/berth-$version.tgz" --directory="$at/packed"
	tar --create --sort=name --mtime="@$(git log -1 --format=%ct 2>/dev/null || echo 0)" --owner=0 --group=0 --numeric-owner --directory="$at/packed" berth |
		gzip --no-name >"$dir/berth-$version.tgz"
}

# previous_commit prints the commit of the last release, hack/previous-version, unless its programs are built or Git does not have it.
previous_commit() {
	local commit
	commit=$(cat hack/previous-version)
	if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
		! in_ci || fail "Git has no commit $commit, the last release (hack/previous-version): clone with the whole history, and not a depth"
		say "SKIPPED: the programs of the last release: Git has no commit $commit (hack/previous-version), so no test upgrades from it"
		rm -rf "$BIN/previous"
		return
	fi
	[ "$(cat "$BIN/previous/commit" 2>/dev/null)" = "$commit" ] || echo "$commit"
}

# declare_previous COMMIT: the agent, the operator and the hook of the last release, for the tests that upgrade from it. Packages that are the
# same are in the compiler's cache.
declare_previous() {
	local source=$work/previous-source stamp at=github.com/berth-gpu/berth/internal/core/version
	rm -rf "$BIN/previous"
	mkdir -p "$source" "$BIN/previous"
	git archive "$1" | tar -x -C "$source"
	stamp="-X $at.number=previous -X $at.commit=$1"
	program "$source" previous/berth-agent ./cmd/berth-agent -ldflags="$stamp"
	program "$source" previous/berth-operator ./cmd/berth-operator -ldflags="$stamp"
	program "$source" previous/berth-cdi-hook ./cmd/berth-cdi-hook -tags=netgo,osusergo -ldflags="-s -w $stamp -linkmode external -extldflags '-static -Wl,--no-warnings'"
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
	declare_helm
	build
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

program . "berth berth-agent berth-operator" "./cmd/berth ./cmd/berth-agent ./cmd/berth-operator" -ldflags="$stamp"
declare_driver
# Static, since it runs on hosts with an older C library; not without cgo, since the
# toolkit's hooks reach go-nvml through its configuration package.
program . berth-cdi-hook ./cmd/berth-cdi-hook -tags=netgo,osusergo -ldflags="-s -w $stamp -linkmode external -extldflags '-static -Wl,--no-warnings'"
case ${1:-} in
sandbox | demo) ;;
*)
	build
	exit 0
	;;
esac
[ -e "$BIN/hyperkube" ] || say "the first build compiles Kubernetes and containerd, some 13 minutes of CPU time; later ones take seconds"
declare_of_kubernetes "hyperkube berth-scheduler berth-sandbox"
program kube/containerd "containerd containerd-shim-runc-v2" "github.com/containerd/containerd/v2/cmd/containerd github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2" \
	-ldflags='-s -w -X github.com/containerd/containerd/v2/version.Version=2.4.2' -tags=no_btrfs,no_devmapper,no_zfs,no_aufs
# Static, since it runs in containers without a C library.
CGO_ENABLED=0 program kube workload ./cmd/workload -ldflags='-s -w'
declare_images
declare_helm
previous=
if [ "$1" = sandbox ]; then
	# The agent with an example vendor, for an end-to-end test.
	program kube berth-agent-stub ./test/berth-agent-stub
	# A device plugin of NVIDIA's pattern, for another one. Static, since it runs in a container without a C library.
	CGO_ENABLED=0 program kube stock-plugin ./test/stock-plugin -ldflags='-s -w'
	# For up --api-nodes: 2 minutes of CPU time the first time.
	program kube/kwok kwok sigs.k8s.io/kwok/cmd/kwok -ldflags='-s -w'
	# The controllers are for end-to-end tests: 2.5 minutes of CPU time.
	program kube/controllers jobset-controller sigs.k8s.io/jobset -ldflags='-s -w'
	program kube/controllers lws-controller sigs.k8s.io/lws/cmd -ldflags='-s -w'
	# For kube/test/apiserver: 4.5 minutes of CPU time.
	declare_apiserver kube/apiserver134
	previous=$(previous_commit)
	[ -z "$previous" ] || declare_previous "$previous"
fi
build
make_images >/dev/null
package_chart "$BIN/chart" 0.0.0-dev dev berth.dev
if [ -n "$previous" ]; then
	package_chart "$BIN/previous" 0.0.0-previous previous berth.dev "$work/previous-source/charts/berth"
	echo "$previous" >"$BIN/previous/commit"
fi
