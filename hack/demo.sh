#!/usr/bin/env bash
# The main job, for a newcomer to watch: a real one-node Kubernetes, eight
# simulated GPUs, a pod that asks for two, and the answer to "which two?".
source "$(dirname "$0")/lib.sh"
need_go
check_sandbox demo
if [ ${#sandbox_reasons[@]} != 0 ]; then
	{ echo "The cluster of the demo cannot run here:"; print_reasons; } >&2
	say "what works all the same: the simulator and everything the node would publish"
	hack/build.sh
	hardware=$(mktemp -d)/gpus
	"$BIN/berth" sim create "$hardware" --profile "$PROFILE"
	"$BIN/berth-agent" inspect devices --sim "$hardware"
	echo
	echo "Your simulated hardware is in $hardware; try: bin/berth sim --help"
	exit 2
fi

[ -n "${BUILT:-}" ] || hack/build.sh demo
say "starting Kubernetes with simulated $PROFILE"
"$BIN/berth-sandbox" up --dir "$SANDBOX" --bin "$BIN" --profile "$PROFILE" --helm
export KUBECONFIG="$SANDBOX/kubeconfig"

say "running a pod that asks for nvidia.com/gpu: 2 (docs/examples/two-gpus.yaml)"
"$BIN/berth-sandbox" run --dir "$SANDBOX" docs/examples/two-gpus.yaml
echo
echo "\$ berth trace two-gpus"
"$BIN/berth-sandbox" exec --dir "$SANDBOX" -- "$BIN/berth" trace two-gpus --sim "$SANDBOX/nodes/node-0/sim"
echo
echo "\$ berth gpus"
"$BIN/berth" gpus
cat <<EOF

Go on:
  export KUBECONFIG=$KUBECONFIG PATH=$BIN:\$PATH
  berth topo node-0                               the links between the GPUs
  berth trace two-gpus -o yaml                    the same, from the API alone
  berth-sandbox run my-pod.yaml                   your own pod (image berth.dev/workload:sandbox)
  berth sim inject $SANDBOX/nodes/node-0/sim --gpu 3 --xid 79     break a GPU, then berth gpus
Stop:
  make stop
EOF
