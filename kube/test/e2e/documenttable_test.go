package e2e

import (
	"strings"
)

// The documents whose commands are run.
const (
	installDocument    = "docs/install.md"
	operateDocument    = "docs/operate.md"
	howToDocument      = "docs/howto.md"
	readmeDocument     = "README.md"
	nodeDocument       = "docs/concepts-node.md"
	clusterDocument    = "docs/concepts-cluster.md"
	sharingDocument    = "docs/sharing.md"
	healthDocument     = "docs/health.md"
	draDocument        = "docs/dra.md"
	schedulingDocument = "docs/scheduling.md"
	changingDocument   = "CONTRIBUTING.md"
)

const (
	deployed  = `(?m)^STATUS: deployed$`
	validated = `(?m)^node-0 +Validated `
	rolled    = `Rollback was a success`
	noNodes   = `the nodes of the sandbox have the images`
)

// documentedSections are all commands of the documents, in the order in which they are run.
func documentedSections() []documentedSection {
	return []documentedSection{
		{installDocument, "Images", []documented{
			{command: "docker login registry.example.com", skip: "needs a registry; TestInstallImages pushes and pulls with one"},
			{command: "make push REGISTRY=registry.example.com/berth TAG=dev", skip: "needs a registry; TestInstallImages pushes and pulls with one"},
			{command: "ctr -n k8s.io image import bin/images/berth-agent.tar", skip: noNodes + " by the same import"},
			{command: "ctr -n k8s.io image import bin/images/berth-operator.tar", skip: noNodes + " by the same import"},
			{command: "kubectl -n berth-system create secret docker-registry registry --docker-server=registry.example.com " +
				"--docker-username=... --docker-password=...", skip: "needs a registry and its password"},
		}},
		{installDocument, "Releases", []documented{
			{command: "cd dist/VERSION && sha256sum --check SHA256SUMS", skip: "needs a release"},
		}},
		{installDocument, "The chart", []documented{
			{command: "helm install berth charts/berth --namespace berth-system --create-namespace --set image.registry=registry.example.com/berth", want: deployed},
			{command: "berth status --wait 10m", want: validated},
			{command: "berth values check my-values.yaml", want: `^the chart accepts these values\n$`},
			{command: "helm install berth charts/berth --namespace berth-system --create-namespace --values my-values.yaml", before: removeRelease, want: deployed},
		}},
		{installDocument, "Configure", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set configs.default.migStrategy=single", want: deployed},
		}},
		{installDocument, "The scheduler", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set scheduler.enabled=true", want: deployed},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set scheduler.replaceDefault=true --set scheduler.replicas=2",
				skip: "the scheduler of the sandbox cannot be stopped"},
		}},
		{installDocument, "Upgrade and downgrade", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reset-then-reuse-values", want: deployed},
			{command: "helm rollback berth --namespace berth-system", want: rolled},
		}},
		{howToDocument, "Share a GPU", []documented{
			{command: "berth values check docs/examples/values-shared.yaml", before: waitValidated, want: `^the chart accepts these values\n$`},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --values docs/examples/values-shared.yaml", want: deployed},
			{command: "kubectl apply -f docs/examples/shared.yaml", before: waitShared},
			{command: "berth trace shared", before: waitRuns("shared"), want: `nvidia\.com/gpu\.shared`},
		}},
		{howToDocument, "Partition a GPU", []documented{
			{command: "berth mig layouts node-0", before: endPod("shared"), want: `(?m)^all-balanced `},
			{command: "berth mig plan node-0 all-balanced", want: `1g\.5gb`},
			{command: "berth mig apply node-0 all-balanced", want: `1g\.5gb`},
			{command: "berth mig apply node-0 all-disabled", want: `all-disabled`},
			{command: "kubectl label node node-0 nvidia.com/mig.config-"},
		}},
		{howToDocument, "Move from NVIDIA's device plugin", []documented{
			{command: "helm upgrade --install berth charts/berth --namespace berth-system --create-namespace --set image.registry=registry.example.com/berth " +
				"--set agent.nodeSelector.gpus=berth --set-file configFiles.default=docs/examples/config-nvidia-v1.yaml",
				skip: "would end the agent that the next commands need; TestConfigFiles renders the same"},
		}},
		{howToDocument, "Scrape the metrics", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set podMonitor.enabled=true --set alerts.enabled=true " +
				"--set dashboard.enabled=true", skip: "needs the definitions of the Prometheus operator"},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set configs.default.dcgmNames=true", want: deployed},
			{command: "kubectl -n berth-system rollout restart daemonset berth-agent", skip: "the test's kubectl has no rollout; the next command starts the agents again too"},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set-file agent.dcgmCounters=docs/examples/dcgm-counters.csv", want: deployed},
		}},
		{howToDocument, "See a large cluster on one screen", []documented{
			{command: "berth gpus --summary", before: waitRestarted, want: `(?m)^nvidia\.com/gpu +7 `},
			{command: "berth gpus --group-by namespace", want: `^(NAMESPACE |no namespace holds or requests GPUs\n$)`},
			{command: "berth gpus --free", want: `(?m)^node-0 .* Healthy `},
			{command: "berth gpus --unhealthy", want: `^all GPUs are healthy\n$`},
			{command: "berth top --sort-by util", want: `(?m)^0 +Healthy `},
		}},
		{howToDocument, "Look at a page", []documented{
			{command: "berth web", skip: "serves until it is interrupted; TestWebPage opens it"},
			{command: "berth web -o json", want: `"kind": "Board"`},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set web.enabled=true", want: deployed},
			{command: "kubectl -n berth-system port-forward deployment/berth-web 8088", skip: "serves until it is interrupted; TestWebPage forwards a port to the page"},
			{command: "kubectl create token default -n ml", skip: "the test's kubectl has no tokens; TestWebPage signs in with one"},
		}},
		{howToDocument, "Read the health of GPUs", []documented{
			{command: "berth gpus", want: `(?m)^node-0 .* Healthy `},
			{command: "berth doctor node-0", before: removeCounters, want: `no problem`},
			{command: "kubectl get gpunodes", want: `(?m)^node-0 `},
		}},
		{howToDocument, "Select, sort and print", []documented{
			{command: "berth gpus -n default -o wide", want: `(?m)^(NODE|no GPU is held by namespace default)`},
			{command: "berth gpus -l kubernetes.io/os=linux -o name", want: `(?m)^gpu/GPU-`},
			{command: "berth gpus --sort-by=.uuid -o custom-columns=NODE:.node,GPU:.uuid,HEALTH:.health.state", want: `(?m)^node-0 +GPU-.* Healthy$`},
		}},
		{howToDocument, "Reset a GPU", []documented{
			{command: "berth reset 3 --wait 10m", onNode: true, want: `(?m)^GPU 3 `},
		}},
		{howToDocument, "Debug a pod that waits", []documented{
			{command: "kubectl apply -f docs/examples/nine-gpus.yaml"},
			{command: "berth why nine-gpus", want: `(?s)^The pod waits because .* 9.*\n {2}If it requested [67] nvidia\.com/gpu instead of 9`},
			{command: "berth status", want: `(?m)^node-0 `},
		}},
		{readmeDocument, "Berth", []documented{
			{command: "berth trace two-gpus", skip: "hack/demo.sh runs it, which hack/test.sh runs"},
		}},
		{readmeDocument, "Two commands", []documented{
			{command: "make demo", skip: "hack/test.sh runs it"},
			{command: "make test-short", skip: "a part of make test, which runs this test"},
			{command: "make test", skip: "it runs this test"},
		}},
		{readmeDocument, "What is here", []documented{
			{command: "bin/berth sim create /tmp/gpus --profile v100x8-hybrid-mesh", before: endPod("nine-gpus")},
			{command: "bin/berth topo --sim /tmp/gpus", want: `(?m)^GPU7 `},
			{command: "bin/berth-agent inspect gpus --sim /tmp/gpus", want: `V100`},
			{command: "export LD_LIBRARY_PATH=$(dirname /tmp/gpus/root/usr/lib/*/libnvidia-ml.so.1)", skip: "a part of the next command"},
			{command: countWithPython, as: "export LD_LIBRARY_PATH=$(dirname /tmp/gpus/root/usr/lib/*/libnvidia-ml.so.1); " + countWithPython, want: `^8\n$`},
			{command: "/tmp/gpus/root/usr/bin/nvidia-smi -L", want: `(?m)^GPU 7: .*V100`},
			{command: "bin/berth sim upgrade /tmp/gpus --driver 535.183.01", want: `535\.183\.01`},
			{command: "bin/berth sim create /tmp/a100 --profile a100x8-80g"},
			{command: "bin/berth mig plan --sim /tmp/a100 all-balanced", want: `1g\.10gb`},
			{command: "bin/berth-agent inspect devices --sim /tmp/gpus --config docs/examples/config-nvidia-v1.yaml", want: `nvidia\.com/gpu`},
			{command: "make push REGISTRY=registry.example.com/berth TAG=dev", skip: "needs a registry; TestInstallImages pushes and pulls with one"},
			{command: "helm install berth charts/berth --namespace berth-system --create-namespace --set image.registry=registry.example.com/berth",
				skip: "run above for docs/install.md"},
		}},
		{nodeDocument, "Which GPUs", []documented{
			{command: "berth sim create /tmp/gpus --profile v100x8-hybrid-mesh", before: removeDirectory("gpus")},
			{command: "berth topo --sim /tmp/gpus", want: `(?m)^GPU7 `},
		}},
		{sharingDocument, "Sharing and partitioning GPUs", []documented{
			{command: "berth-agent inspect devices --config FILE",
				as: "berth-agent inspect devices --sim /tmp/gpus --config docs/examples/config-four-modes.yaml", want: `nvidia\.com/gpu`},
		}},
		{sharingDocument, "MIG", []documented{
			{command: "berth mig layouts NODE", want: `(?m)^all-balanced `},
			{command: "berth mig plan NODE all-balanced", want: `1g\.5gb`},
			{command: "berth mig apply NODE all-balanced", want: `1g\.5gb`},
			{command: "berth mig apply NODE all-balanced --force", want: `all-balanced`},
		}},
		{sharingDocument, "MPS", []documented{
			{command: "berth-agent mps", skip: "serves until it is stopped; TestSharing runs it as a DaemonSet"},
		}},
		{healthDocument, "Resetting a GPU", []documented{
			{command: "berth reset 3", onNode: true, before: unpartition, want: `(?m)^GPU 3 `},
			{command: "berth reset 3 --wait 10m", skip: "run above for docs/howto.md"},
		}},
		{healthDocument, "Commands", []documented{
			{command: "berth gpus", want: `(?m)^node-0 .* Healthy `},
			{command: "berth doctor", as: "berth doctor --sim $SIM --kubeconfig $INSIDE --node-name node-0", onNode: true, want: `(?m)^node-0 is healthy$`},
			{command: "berth top", onNode: true, want: `(?m)^7 +Healthy `},
			{command: "berth top NODE", want: `(?m)^7 +Healthy `},
			{command: "berth top --sort-by health", want: `(?m)^(node-0|0) `},
			{command: "berth gpus --unhealthy", want: `^all GPUs are healthy\n$`},
			{command: "berth doctor NODE", want: `no problem`},
		}},
		{healthDocument, "Labels", []documented{
			{command: "berth-agent inspect labels", as: "berth-agent inspect labels --sim $SIM", onNode: true, want: `nvidia\.com/gpu\.product=`},
		}},
		{healthDocument, "Metrics", []documented{
			{command: "berth-agent inspect metrics", as: "berth-agent inspect metrics --sim $SIM", onNode: true, want: `(?m)^berth_gpu_`},
		}},
		{draDocument, "Who has which GPU", []documented{
			{command: "kubectl get resourceclaim train -o jsonpath='{.status.devices[*].data.uuid}'", skip: "no claims on this cluster; TestDRA reads these fields"},
		}},
		{schedulingDocument, "Why a pod waits", []documented{
			{command: "berth why train-0 -n ml", before: makeTrain, want: `(?m)^The (pod|gang) waits because `},
			{command: "berth why job/train -n ml", want: `(?m)^The gang waits because `},
			{command: "berth why train-0 -n ml --if-gone ml/notebook-7 --gpus 2", want: `(?m)^If ml/notebook-7 was gone and each member requested 2 nvidia\.com/gpu:$`},
		}},
		{clusterDocument, "What runs in the cluster", []documented{
			{command: "berth why train-0", as: "berth why train-0 -n ml", want: `(?m)^The (pod|gang) waits because `},
		}},
		{schedulingDocument, "Why a gang waits", []documented{
			{command: "berth why train-0 -n ml", want: `(?m)^The gang waits because `},
			{command: "berth why job/train -n ml", want: `(?m)^The gang waits because `},
			{command: "berth why gang/train -n ml", want: `(?m)^The gang waits because `},
		}},
		{schedulingDocument, "Kubernetes' own pod groups", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set scheduler.enabled=true " +
				"--set scheduler.featureGates.GenericWorkload=true --set scheduler.featureGates.TopologyAwareWorkloadScheduling=true",
				skip: "the API server has to have the feature gates; TestGangModes runs the three modes"},
		}},
		{schedulingDocument, "Replay a trace", []documented{
			{command: "berth replay --nodes nodes.csv --pods pods.csv --seeds 10", want: `(?m)^pack +\d`},
			{command: nodesByJq, as: nodesByJq + " && cat nodes.csv", want: `(?m)^"node-0",\d+,\d+,\d+,"NVIDIA-`},
		}},
		{schedulingDocument, "What if", []documented{
			{command: "berth replay --cluster", want: `(?m)^now +1 `},
			{command: "berth replay --cluster --policy all --scale 1.5", want: `(?m)^spread +1 `},
			{command: "berth replay --cluster --add-nodes 4=gpu-node-1 --remove-node gpu-node-9",
				// One node cannot be removed of one; TestReplayClusterGolden removes one of several.
				as: "berth replay --cluster --add-nodes 4=node-0", want: `(?m)^pack +5 `},
			{command: "berth replay --cluster --mig-layout nvidia.com/mig-1g.10gb=7@gpu-node-2",
				as: "berth replay --cluster --mig-layout nvidia.com/mig-1g.5gb=7@node-0", want: `(?m)^pack +1 `},
			{command: "kubectl get nodes,gpunodes,pods -A -o json > dump.json"},
			{command: "berth replay --from dump.json", want: `(?m)^now +1 `},
			{command: "berth replay --from small.json --policy pack,spread", output: idleGPUs()},
		}},
		{schedulingDocument, "Measured", []documented{
			{command: "berth replay --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv --policy all --seeds 10 " +
				"--published published_allocation_percent.csv", skip: "the traces are not a part of the repository; TestPublished replays them"},
		}},
		{changingDocument, "Changing Berth", []documented{
			{command: "go test ./internal/<group>/<package>/...", skip: "names a package that is changed"},
			{command: "make lint unit", skip: "stages of hack/test.sh, which runs this test"},
			{command: "make e2e RUN='TestTrace'", skip: "hack/test.sh runs hack/e2e.sh, which runs this test"},
			{command: "make test-short", skip: "a part of make test, which runs this test"},
			{command: "make test", skip: "it runs this test"},
			{command: "hack/stress.sh ./internal/<group>/<package> 500", skip: "names a package that is changed"},
		}},
		{operateDocument, "The gate", []documented{
			{command: "berth status", before: removeTrain, want: validated},
			{command: "kubectl get nodeoperations", before: holdNode, want: `(?m)^validate-node-0 +node-0 `},
			{command: "kubectl -n berth-system get pods -l berth.dev/validation=node", want: `(?m)^berth-.* Pending `},
		}},
		{operateDocument, "Quotas", []documented{
			{command: "kubectl label namespace team-a example.com/team=a", before: makeTeam},
			{command: "kubectl apply -f docs/examples/gpuquota.yaml"},
			{command: "kubectl get gpuquotas", before: useQuota, want: `(?m)^team-a +1 +[1-9]\d* +True `},
			{command: "berth quota", want: quotaUsed},
			{command: "berth quota -n team-a", want: quotaUsed},
		}},
		{installDocument, "Uninstall", []documented{
			{command: "berth uninstall --all", want: `(?s)Go on\? \[y/N\].*\nBerth is removed; now run: helm uninstall berth -n berth-system\n$`},
			{command: "helm uninstall berth --namespace berth-system", want: `release "berth" uninstalled`},
		}},
		{installDocument, "Without Helm", []documented{
			{command: "helm template berth charts/berth --namespace berth-system > berth.yaml", before: removeNamespace},
			{command: "kubectl create namespace berth-system"},
			{command: "kubectl apply --server-side -f berth.yaml", want: `(?m)^daemonset.*/berth-agent serverside-applied$`},
			{command: "berth status --wait 10m", want: validated},
			{command: "berth uninstall --all", want: `(?s)Go on\? \[y/N\].*\nBerth is removed\n$`},
			{command: "kubectl delete --ignore-not-found -f berth.yaml"},
		}},
	}
}

// quotaUsed is the row of the pod of useQuota.
const quotaUsed = `(?m)^team-a +gpu-quota-team-a +team-a +requests\.nvidia\.com/gpu +1 +4 +user \(1\)$`

// countWithPython and nodesByJq are long commands of documents.
const (
	countWithPython = `python3 -c 'import ctypes as c; m, n = c.CDLL("libnvidia-ml.so.1"), c.c_uint(); m.nvmlInit_v2(); m.nvmlDeviceGetCount_v2(c.byref(n)); print(n.value)'`
	nodesByJq       = `kubectl get nodes -o json | jq -r '["sn","cpu_milli","memory_mib","gpu","model"], (.items[] | [.metadata.name, ` +
		`(.status.allocatable.cpu | if endswith("m") then .[:-1] | tonumber else tonumber * 1000 end), ` +
		`(.status.allocatable.memory | rtrimstr("Ki") | tonumber / 1024 | floor), ` +
		`(.status.allocatable["nvidia.com/gpu"] // "0" | tonumber), (.metadata.labels["nvidia.com/gpu.product"] // "")]) | @csv' > nodes.csv`
)

// idleGPUs is the example of docs/scheduling.md.
func idleGPUs() []string {
	return []string{
		"Why GPUs are idle now:",
		"GPUS   NODES   REASON         EXAMPLE",
		"2      1       AgentDown      down-a: the Node offers no nvidia.com/gpu",
		"1      1       Unhealthy      gpu-b: GPUs are unhealthy or gone",
		"2      1       NotValidated   held-a: the node is Held, not Validated",
		"1      1       CPUOrMemory    gpu-a: 3.5 cores are free, the pod requests 12",
		"8.75   5       Fits           broken-a: a pod of 16 CPU, 65536 MiB, 2 nvidia.com/gpu would fit",
		"         NODES   GPUS    HELD   ALLOCATED %   FRAGMENTED % OF IDLE   STRANDED % OF IDLE   WITHOUT NODE   STILL WAIT   DISPLACED",
		"now      9       19.88   5.12   25.8          72.0                   4.2                  4              4            0",
		"pack     9       19.88   9.12   45.9          72.7                   0.0                  3              3            0",
		"spread   9       19.88   6.12   30.8          74.4                   4.6                  3              3            0",
	}
}

// substitutions are what is written in place of something in the commands of the documents: the sandbox has no registry, its nodes need
// values of their own since they are not machines, and the folders are those of the test.
func substitutions(dir string) *strings.Replacer {
	return strings.NewReplacer(
		" --set image.registry=registry.example.com/berth", " --set image.registry=berth.dev",
		" berth charts/berth ", " berth charts/berth --values sandbox-values.yaml ",
		"/tmp/", dir+"/",
		" NODE", " node-0",
	)
}
