package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/berth-gpu/berth"

// rule is a row of the table of imports: what the packages of a path may import. A path ends in a slash when it covers
// everything below it. An import must be allowed by each row that covers the importing package.
type rule struct {
	packages string
	// berth are the paths of this project that may be imported; nil allows all that other rows allow.
	berth []string
	// others are the path prefixes of other modules that may be imported; nil allows all, empty none.
	others []string
	// never are path prefixes, of any module or the standard library, that may not be imported.
	never []string
}

var (
	none = []string{}
	// kubernetes leaves out k8s.io/utils and sigs.k8s.io/yaml, which know nothing of it.
	kubernetes = []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/client-go/", "k8s.io/kubelet/", "k8s.io/kubernetes/", "sigs.k8s.io/controller-runtime/"}
)

// rules are the import rules of docs/architecture.md and of the package comments.
var rules = []rule{
	// The groups: each imports what stands above it.
	{packages: "api/", berth: []string{"api/", "internal/core/trace"}, others: []string{"k8s.io/apimachinery/"}},
	{packages: "internal/core/", berth: []string{"internal/core/"}, others: none},
	{packages: "internal/hardware/", berth: []string{"internal/core/", "internal/hardware/"}, never: kubernetes},
	{packages: "internal/node/", berth: []string{"api/", "internal/core/", "internal/hardware/", "internal/httpserver/", "internal/node/"}},
	{packages: "internal/cluster/", berth: []string{"api/", "internal/core/", "internal/cluster/", "internal/httpserver/"}},
	{packages: "internal/cli/", berth: []string{"api/", "internal/"}},
	{packages: "internal/cli/complete", berth: []string{"internal/cli/term", "internal/cli/usage", "internal/cluster/replay", "internal/hardware/sim"}, others: []string{"github.com/spf13/", "k8s.io/apimachinery/"}, never: []string{"net", nvml}},
	{packages: "internal/cli/fit", berth: []string{"api/", "internal/core/phrase", "internal/core/safetext"}, never: []string{"os", "net", "k8s.io/client-go/"}},
	{packages: "internal/cli/fleet", berth: []string{"api/", "internal/cli/term", "internal/core/gpu", "internal/core/phrase", "internal/node/gpunode"}, never: []string{"os", "net", "k8s.io/client-go/"}},
	{packages: "internal/cli/replayplot", berth: []string{"internal/cluster/replay"}, others: []string{"github.com/guptarohit/asciigraph", "gonum.org/v1/plot"}, never: []string{"os", "net"}},
	{packages: "internal/cli/topview", berth: []string{"api/", "internal/core/gpu", "internal/cli/term"}, never: []string{"os", "net", "k8s.io/client-go/"}},
	{packages: "internal/cli/uninstall", berth: []string{"api/", "internal/node/labels", "internal/node/nodeapi"}, never: []string{"os", "net", nvml}},
	{packages: "internal/cli/usage", berth: []string{"internal/core/spelling"}, others: []string{"github.com/spf13/"}},
	{packages: "internal/cli/web", berth: []string{"api/", "internal/cli/web/board", "internal/core/", "internal/httpserver"}, never: []string{"os", "k8s.io/client-go/", nvml}},
	{packages: "internal/cli/web/board", berth: []string{"api/", "internal/core/"}, never: []string{"os", "net", "k8s.io/client-go/", nvml}},
	{packages: "cmd/", berth: []string{"internal/cli", "internal/cli/usage", "internal/cli/version", "internal/node/agent/command", "internal/cluster/operator/command", "internal/hardware/nvidia/cdihook"}},
	{packages: "hack/images/command", berth: []string{"hack/images/", "internal/cli/usage", "internal/cli/version", "internal/core/version"}},
	{packages: "hack/images/image", berth: none},
	{packages: "hack/images/program", berth: []string{"hack/images/image", "internal/core/version"}},
	{packages: "hack/images/publish", berth: []string{"hack/images/image", "hack/images/sbom"}},
	{packages: "hack/images/sbom", berth: none},
	{packages: "kube/", never: []string{"github.com/berth-gpu/berth/internal/cluster/operator"}},
	{packages: "internal/cluster/scheduler/binding", berth: none, never: []string{"os", "net", "k8s.io/client-go/", "k8s.io/kubernetes/"}},
	{packages: "kube/internal/plugins", berth: []string{"internal/cluster/scheduler/binding", "internal/cluster/scheduler/gangs", "internal/cluster/scheduler/placement", "internal/cluster/scheduler/podgroups", "kube/internal/devices", "kube/internal/preemption"}, never: []string{"os", "net"}},
	{packages: "kube/internal/devices", berth: []string{"internal/cluster/scheduler/gangplanner"}, never: []string{"os", "net"}},
	{packages: "kube/internal/preemption", berth: []string{"internal/cluster/fleetview", "internal/cluster/scheduler/budgets", "internal/core/"}, never: []string{"os", "net"}},
	{packages: "kube/test/stock-plugin", berth: none, others: []string{"github.com/fsnotify/", "google.golang.org/grpc", "k8s.io/kubelet/"}},
	{packages: "kube/test/schedulerbench/cluster", berth: []string{"api/", "kube/test/schedulerbench/load", "kube/test/schedulerbench/process"}, never: []string{"k8s.io/kubernetes/"}},
	{packages: "kube/test/schedulerbench/command", berth: []string{"internal/cli/usage", "kube/test/schedulerbench/"}, never: []string{"k8s.io/kubernetes/"}},
	{packages: "kube/test/schedulerbench/controlplane", berth: []string{"kube/test/schedulerbench/process"}},
	{packages: "kube/test/schedulerbench/load", berth: none, others: none, never: []string{"os", "net"}},
	{packages: "kube/test/schedulerbench/process", berth: none, others: []string{"golang.org/x/sys/"}},
	{packages: "kube/test/schedulerbench/report", berth: none, others: none, never: []string{"os", "net"}},
	{packages: "kube/test/schedulerbench/round", berth: []string{"kube/test/schedulerbench/"}, never: []string{"k8s.io/kubernetes/", berth + "kube/test/schedulerbench/command"}},
	{packages: "kube/test/schedulerbench/scheduler", berth: []string{"kube/test/schedulerbench/process"}, never: kubernetes},
	{packages: "kube/test/schedulerbench/watchbinds", berth: []string{"kube/test/schedulerbench/load"}, never: []string{"k8s.io/kubernetes/"}},
	{packages: "kube/test/berth-agent-stub", berth: []string{"internal/hardware", "internal/hardware/stub", "internal/node/agent/command"}, others: none},

	// Every group may import the server, and tests of every group the golden files.
	{packages: "internal/golden", berth: none, others: []string{"github.com/google/go-cmp/"}},
	{packages: "internal/httpserver", berth: none, others: []string{"golang.org/x/sys/"}},
	{packages: "internal/httpserver/tokens", berth: []string{"internal/httpserver"}, never: []string{"os", nvml}},

	// Core.
	{packages: "internal/core/gpu", berth: none},
	{packages: "internal/core/fleet", berth: []string{"internal/core/placement", "internal/core/placement/shared"}, never: []string{"os", "net", "time"}},
	{packages: "internal/core/fleet/gang", berth: []string{"internal/core/fleet"}, never: []string{"os", "net", "time"}},
	{packages: "internal/core/fleet/firstfit", berth: none, never: []string{"os", "net", "time"}},
	{packages: "internal/core/why", berth: []string{"internal/core/fleet", "internal/core/fleet/gang", "internal/core/phrase", "internal/core/spelling"}, never: []string{"os", "net", "time"}},
	{packages: "internal/core/gate", berth: none},
	{packages: "internal/core/labelset", berth: []string{"internal/core/gpu"}},
	{packages: "internal/core/nodeop", berth: none},
	{packages: "internal/core/placement", berth: []string{"internal/core/gpu"}},
	{packages: "internal/core/placement/shared", berth: []string{"internal/core/gpu", "internal/core/placement"}},
	{packages: "internal/core/phrase", berth: none},
	{packages: "internal/core/safetext", berth: none},
	{packages: "internal/core/spelling", berth: none},
	{packages: "internal/core/dcgm", berth: []string{"internal/core/gpu", "internal/core/safetext", "internal/core/spelling"}, never: []string{"os", "net", "time"}},
	{packages: "internal/core/version", berth: none},

	// Hardware: an adapter knows core and its own hardware, and the simulator nothing of what it is tested with.
	{packages: "internal/hardware/bound", berth: none, others: none},
	{packages: "internal/hardware/hostpath", berth: none},
	{packages: "internal/hardware/nvidia/", berth: []string{"internal/core/", "internal/hardware/bound", "internal/hardware/hostpath", "internal/hardware/nvidia/"}},
	{packages: "internal/hardware/nvidia/cdiedits", berth: []string{"internal/core/gpu", "internal/hardware/hostpath"}},
	{packages: "internal/hardware/nvidia/cdihook", berth: []string{"internal/core/version"}},
	{packages: "internal/hardware/nvidia/cuda", berth: none, others: none},
	{packages: "internal/hardware/nvidia/smi", berth: []string{"internal/core/gpu", "internal/core/safetext", "internal/hardware/bound"}},
	{packages: "internal/hardware/nvidia/gpulabels", berth: []string{"internal/core/gpu", "internal/core/labelset"}, others: none, never: []string{"os"}},
	{packages: "internal/hardware/sim/", berth: []string{"internal/core/spelling", "internal/hardware/sim/"}},
	{packages: "internal/hardware/sim/internal/genbridge", berth: none},
	{packages: "internal/hardware/sim/libnvml", berth: []string{"internal/hardware/sim"}},
	{packages: "internal/hardware/sim/program", berth: []string{"internal/hardware/sim", "internal/hardware/sim/tools"}},
	{packages: "internal/hardware/sim/simtest", berth: []string{"internal/hardware/sim", "internal/hardware/sim/tools"}},
	{packages: "internal/hardware/nvidiatest", berth: []string{"internal/core/gpu", "internal/hardware/nvidia", "internal/hardware/sim"}},
	{packages: "internal/hardware/sim/tools", berth: []string{"internal/hardware/sim"}},

	// Node: no package but the agent knows an adapter or the simulator.
	{packages: "internal/node/allocatable", berth: []string{"internal/core/", "internal/node/inventory", "internal/node/ledger", "internal/node/offer", "internal/node/signal", "internal/node/statefile"}, others: []string{"k8s.io/utils/clock"}, never: []string{nvml}},
	{packages: "internal/node/agent/gpunodesync", berth: []string{"api/", "internal/core/gpu", "internal/core/version", "internal/node/config", "internal/node/configwatch", "internal/node/gpunode", "internal/node/inventory", "internal/node/ledger", "internal/node/offer", "internal/node/signal"}, never: []string{nvml, "k8s.io/client-go/"}},
	{packages: "internal/node/agent/hardware", berth: []string{"api/", "internal/core/", "internal/hardware", "internal/hardware/", "internal/node/cdi", "internal/node/hostruntime", "internal/node/hostruntime/hosttest", "internal/node/migapply", "internal/node/mps"}, never: kubernetes},
	{packages: "internal/node/agent/gpuhistory", berth: []string{"internal/core/gpu", "internal/node/inventory", "internal/node/nodeapi", "internal/node/signal", "internal/node/statefile"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/library", berth: []string{"internal/node/statefile"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/logqueue", berth: none, others: none},
	{packages: "internal/node/agent/drasync", berth: []string{"internal/core/gpu", "internal/node/dra", "internal/node/dra/", "internal/node/dra/class", "internal/node/dra/prepared", "internal/node/ledger", "internal/node/offer", "internal/node/signal"}, never: []string{nvml, "k8s.io/client-go/dynamic"}},
	{packages: "internal/node/agent/apichoice", berth: []string{"api/", "internal/core/gpu", "internal/node/config", "internal/node/configwatch", "internal/node/ledger", "internal/node/nodeapi", "internal/node/offer", "internal/node/signal", "internal/node/statefile"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/handover", berth: []string{"internal/core/gpu", "internal/node/kubelet", "internal/node/offer", "internal/node/signal", "internal/node/statefile"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/kubeletsync", berth: []string{"internal/core/gpu", "internal/node/deviceplugin", "internal/node/filewatch", "internal/node/kubelet", "internal/node/ledger", "internal/node/offer", "internal/node/podwatch", "internal/node/signal"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/healthsync", berth: []string{"internal/core/gpu", "internal/node/inventory", "internal/node/nodeapi", "internal/node/signal"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/metricsync", berth: []string{"internal/core/", "internal/node/metrics", "internal/node/deviceplugin", "internal/node/dra", "internal/node/kubelet", "internal/node/offer", "internal/node/signal"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/serve", berth: []string{"api/", "internal/core/gpu", "internal/httpserver/", "internal/node/"}, never: []string{nvml, "k8s.io/client-go/dynamic"}},
	{packages: "internal/node/agent/mpssync", berth: []string{"internal/core/gpu", "internal/node/inventory", "internal/node/mps", "internal/node/offer", "internal/node/signal"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/timeslice", berth: []string{"internal/core/gpu", "internal/node/offer", "internal/node/signal", "internal/node/statefile"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/cdi", berth: []string{"api/", "internal/core/gpu", "internal/hardware/bound", "internal/hardware/hostpath", "internal/node/hostconfig", "internal/node/offer", "internal/node/signal"}, never: append(kubernetes, nvml, "github.com/NVIDIA/nvidia-container-toolkit")},
	{packages: "internal/node/validate", berth: []string{"api/", "internal/core/gpu", "internal/core/phrase", "internal/hardware/bound"}, others: []string{"golang.org/x/sys/", "k8s.io/apimachinery/"}},
	{packages: "internal/node/config", berth: []string{"api/", "internal/core/gpu", "internal/core/spelling", "internal/core/mig", "internal/core/health", "internal/node/hostconfig", "internal/node/offer"}},
	{packages: "internal/node/configwatch", berth: []string{"api/", "internal/core/gpu", "internal/core/spelling", "internal/node/config", "internal/node/hostconfig", "internal/node/inventory", "internal/node/nodeapi", "internal/node/offer", "internal/node/signal", "internal/node/statefile"}},
	{packages: "internal/node/deviceplugin/", berth: []string{"api/", "internal/core/", "internal/node/deviceplugin/", "internal/node/ledger", "internal/node/offer", "internal/node/signal"}},
	{packages: "internal/node/dra/class", berth: []string{"internal/node/dra/pool", "internal/node/offer"}, others: []string{"k8s.io/api/", "k8s.io/apimachinery/", "sigs.k8s.io/yaml"}, never: []string{"os", "net"}},
	{packages: "internal/node/dra/pool", berth: []string{"internal/core/"}, others: []string{"k8s.io/api/", "k8s.io/apimachinery/"}, never: []string{"os", "net"}},
	{packages: "internal/node/dra/", never: []string{berth + "internal/node/deviceplugin", nvml}},
	{packages: "internal/node/dra", berth: []string{"api/", "internal/core/gpu", "internal/core/mig", "internal/node/config", "internal/node/dra/pool", "internal/node/ledger", "internal/node/signal"}},
	{packages: "internal/node/dra/prepared", berth: []string{"internal/node/dra"}, others: []string{"github.com/cyphar/filepath-securejoin"}, never: kubernetes},
	{packages: "internal/node/dra/publish", berth: []string{"internal/core/gpu", "internal/node/signal"}},
	{packages: "internal/node/gate", berth: []string{"api/", "internal/core/", "internal/hardware/hostpath", "internal/node/hostconfig", "internal/node/hostruntime", "internal/node/nodeapi", "internal/node/offer", "internal/node/podwatch", "internal/node/signal", "internal/node/statefile"}, never: []string{nvml, "k8s.io/client-go/"}},
	{packages: "internal/node/filewatch", berth: []string{"internal/node/signal"}, others: []string{"github.com/fsnotify/fsnotify", "k8s.io/utils/clock"}},
	{packages: "internal/node/hostconfig", berth: none, never: kubernetes},
	{packages: "internal/node/hostruntime", berth: []string{"internal/node/hostconfig", "internal/node/kubelet", "internal/node/signal"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/hostruntime/hosttest", berth: none, never: append(kubernetes, nvml)},
	{packages: "internal/node/labels", berth: []string{"api/", "internal/core/gpu", "internal/core/labelset", "internal/node/hostconfig", "internal/node/nodeapi", "internal/node/offer", "internal/node/signal"}, never: []string{nvml}},
	{packages: "internal/node/gpunode", berth: []string{"api/", "internal/core/", "internal/node/ledger", "internal/node/nodeapi"}},
	{packages: "internal/node/inventory", berth: []string{"internal/core/", "internal/node/signal", "internal/node/statefile"}, never: kubernetes},
	{packages: "internal/node/kubelet/checkpoint", berth: none, never: []string{"os"}},
	{packages: "internal/node/ledger", berth: []string{"internal/core/", "internal/node/signal", "internal/node/statefile"}, others: []string{"github.com/google/renameio/", "golang.org/x/sys/", "k8s.io/utils/clock"}},
	{packages: "internal/node/mps", berth: []string{"internal/core/", "internal/httpserver", "internal/node/signal", "internal/node/statefile"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/openers", berth: []string{"internal/core/gpu", "internal/node/kubelet"}, never: append(kubernetes, nvml)},
	{packages: "internal/node/agent/migsync", berth: []string{"api/", "internal/core/gpu", "internal/core/mig", "internal/core/mig/migtest", "internal/core/phrase", "internal/node/config", "internal/node/configwatch", "internal/node/inventory", "internal/node/ledger", "internal/node/migapply", "internal/node/offer", "internal/node/signal", "internal/node/statefile"}, never: []string{nvml, "k8s.io/client-go/"}},
	{packages: "internal/node/agent/reset", berth: []string{"api/", "internal/core/gpu", "internal/httpserver", "internal/node/ledger", "internal/node/openers", "internal/node/signal", "internal/node/statefile"}, never: []string{nvml, "k8s.io/client-go/"}},
	{packages: "internal/node/offer", berth: []string{"internal/core/"}, others: none, never: []string{"os", "net"}},
	{packages: "internal/node/statefile", berth: none, never: kubernetes},
	{packages: "internal/node/nodeapi", berth: []string{"api/", "internal/core/gpu", "internal/node/signal"}},
	{packages: "internal/node/problemlist", berth: []string{"internal/core/gpu", "internal/core/problem", "internal/node/signal"}, never: kubernetes},
	{packages: "internal/node/podwatch", berth: []string{"api/", "internal/node/signal"}, never: []string{berth + "internal/node/ledger"}},
	{packages: "internal/node/metrics", never: []string{nvml, berth + "internal/node/agent"}},
	{packages: "internal/node/migapply", never: append(kubernetes, nvml, berth+"internal/node/deviceplugin", berth+"internal/node/inventory")},

	// Cluster: the concerns of the operator never import one another, nor the operator.
	{packages: "internal/cluster/drafleet", berth: []string{"internal/core/fleet/firstfit"}, never: []string{"os", "net", "k8s.io/client-go/", "k8s.io/dynamic-resource-allocation/structured"}},
	{packages: "internal/cluster/fleetview", berth: []string{"api/", "internal/core/"}, others: []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/"}, never: []string{"os", "net", "time"}},
	{packages: "internal/cluster/gangplan", berth: []string{"internal/core/fleet", "internal/core/fleet/gang"}, others: []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/", "github.com/go-logr/logr"}, never: []string{"os", "net", "time"}},
	{packages: "internal/cluster/whyview", berth: []string{"api/", "internal/core/", "internal/cluster/fleetview", "internal/cluster/gangplan"}, others: []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/", "github.com/go-logr/logr"}, never: []string{"os", "net"}},
	{packages: "internal/cluster/scheduler/", berth: []string{"api/", "internal/core/", "internal/cluster/drafleet", "internal/cluster/fleetview", "internal/cluster/gangplan", "internal/cluster/scheduler/"}, never: []string{"os", "k8s.io/dynamic-resource-allocation/structured", "k8s.io/kubernetes/"}},
	{packages: "internal/cluster/scheduler/budgets", berth: none, others: []string{"k8s.io/api/", "k8s.io/apimachinery/"}, never: []string{"os", "net", "time"}},
	{packages: "internal/cluster/scheduler/claims", berth: []string{"internal/core/", "internal/cluster/drafleet", "internal/cluster/fleetview", "internal/cluster/scheduler/model"}},
	{packages: "internal/cluster/scheduler/gangplanner", berth: []string{"internal/core/", "internal/cluster/fleetview", "internal/cluster/gangplan", "internal/cluster/scheduler/budgets", "internal/cluster/scheduler/claims", "internal/cluster/scheduler/model"}, never: []string{"k8s.io/client-go/"}},
	{packages: "internal/cluster/scheduler/podgroups", berth: []string{"internal/core/", "internal/cluster/gangplan", "internal/cluster/scheduler/claims", "internal/cluster/scheduler/gangplanner", "internal/cluster/scheduler/model"}, never: []string{"k8s.io/client-go/"}},
	{packages: "internal/cluster/scheduler/model", berth: []string{"internal/core/", "internal/cluster/fleetview"}, never: []string{"k8s.io/client-go/"}},
	{packages: "internal/cluster/replay", berth: []string{"internal/core/fleet"}, others: []string{"golang.org/x/sync/"}, never: []string{"os", "net"}},
	{packages: "internal/cluster/whatif", berth: []string{"api/", "internal/core/", "internal/cluster/fleetview", "internal/cluster/replay"}, never: []string{"os", "net", "k8s.io/client-go/"}},
	{packages: "internal/cluster/operator/command", berth: []string{"internal/cluster/operator"}},
	{packages: "internal/cluster/operator/attempts", berth: none, never: []string{"os", "net"}},
	{packages: "internal/cluster/operator/gpuquota", berth: []string{"api/", "internal/cluster/operator/attempts", "internal/core/quota"}, never: []string{"os", "net"}},
	{packages: "internal/cluster/operator/gpunodes", berth: []string{"api/"}, never: []string{"os", "net"}},
	{packages: "internal/cluster/operator/agents", never: []string{"os", "net"}},
	{packages: "internal/cluster/operator/stack", berth: []string{"api/", "internal/cluster/operator/attempts", "internal/core/phrase"}, never: []string{"os", "net"}},
	{packages: "internal/cluster/operator/validation", berth: []string{"api/", "internal/cluster/operator/attempts", "internal/core/nodeop"}, never: []string{"os", "net"}},
	{packages: "internal/cluster/operator/definitions", berth: []string{"api/", "internal/cluster/operator/attempts", "internal/core/"}, never: []string{"os", "net"}},
}

// wiring packages are imported by programs and by what wires them, by nothing else; the value says by whom.
var wiring = map[string][]string{
	"internal/node/agent":                {"internal/node/agent/command", "kube/test/"},
	"internal/node/agent/command":        {"cmd/", "hack/clidocs", "kube/test/"},
	"internal/cluster/operator":          {"internal/cluster/operator/command"},
	"internal/cluster/operator/command":  {"cmd/", "hack/clidocs"},
	"internal/cli/fit":                   {"internal/cli", "kube/test/dra"},
	"internal/hardware/stub":             {"internal/hardware", "kube/test/"},
	"internal/hardware/vendortest":       {"internal/hardware", "internal/hardware/stub"},
	"internal/hardware/nvidia":           {"internal/hardware", "internal/hardware/nvidia/", "internal/hardware/nvidiatest", "internal/node/agent", "internal/node/agent/command", "internal/node/agent/hardware", "internal/cli"},
	"internal/hardware/nvidia/gpulabels": {"internal/node/agent", "internal/node/agent/command"},
	"internal/hardware/nvidia/cdiedits":  {"internal/node/agent/hardware"},
	"internal/hardware/nvidia/cuda":      {"internal/node/agent/command"},
	"internal/hardware/sim":              {"internal/hardware/sim/", "internal/hardware/nvidiatest", "internal/cli/", "kube/"},
}

// execs are the only packages that may start programs; the sandbox and the build's own tools do nothing else.
var execs = []string{"internal/hardware/nvidia/smi", "internal/hardware/sim/internal/genbridge", "internal/hardware/sim/simtest", "internal/node/mps", "kube/internal/sandbox/", "kube/test/", "hack/"}

const (
	berth = module + "/"
	nvml  = "github.com/NVIDIA/go-nvml"
)

// below tells whether a path is one of the listed ones: equal to it, or below one that ends in a slash.
func below(path string, list []string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return path == entry || strings.HasSuffix(entry, "/") && strings.HasPrefix(path+"/", entry)
	})
}

// actor tells whether a path is one of a package below internal/node/agent that is wired. command is none: it wires, too.
func actor(path string) bool {
	return strings.HasPrefix(path, "internal/node/agent/") && path != "internal/node/agent/command"
}

func prefixed(path string, list []string) bool {
	return slices.ContainsFunc(list, func(prefix string) bool {
		return path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/")
	})
}

// breaches says which rule the import of target by source breaks; source is relative to the module.
func breaches(source, target string) string {
	own, ours := strings.CutPrefix(target, berth)
	standard := !strings.Contains(strings.Split(target, "/")[0], ".")
	for _, r := range rules {
		if !below(source, []string{r.packages}) {
			continue
		}
		switch {
		case prefixed(target, r.never):
			return r.packages + " never imports it"
		case ours && r.berth != nil && own != source && !below(own, r.berth):
			return r.packages + " imports of Berth only " + strings.Join(r.berth, ", ")
		case !ours && !standard && r.others != nil && !slices.ContainsFunc(r.others, func(prefix string) bool { return strings.HasPrefix(target, prefix) }):
			return r.packages + " imports of other modules only " + strings.Join(r.others, ", ")
		}
	}
	for wired, by := range wiring {
		if ours && own == wired && source != wired && !below(source, by) {
			return wired + " is imported only by " + strings.Join(by, ", ")
		}
	}
	if ours && actor(source) && actor(own) && source != own {
		return "the packages below internal/node/agent never import one another; internal/node/agent wires them"
	}
	switch {
	case target == "os/exec" && !below(source, execs):
		return "os/exec is for " + strings.Join(execs, ", ")
	case target == "log" || target == "github.com/sirupsen/logrus":
		return "log/slog is the one logger"
	}
	return ""
}

func load(t *testing.T, dir string, mode packages.LoadMode, patterns ...string) []*packages.Package {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{Mode: mode, Dir: dir}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loaded {
		for _, e := range p.Errors {
			t.Errorf("load %s: %v", p.PkgPath, e)
		}
	}
	if len(loaded) == 0 {
		t.Fatalf("no package matches %v", patterns)
	}
	return loaded
}

// modules are the directories of the modules that the rules cover; the path of each begins with that of the root module.
var modules = []string{".", "kube", "hack/images"}

// TestImportRules checks all modules.
func TestImportRules(t *testing.T) {
	inRepository(t)
	for _, dir := range modules {
		for _, p := range load(t, dir, packages.NeedName|packages.NeedImports, "./...") {
			source := strings.TrimPrefix(p.PkgPath, berth)
			for target := range p.Imports {
				if why := breaches(source, target); why != "" {
					t.Errorf("%s imports %s: %s", source, target, why)
				}
			}
		}
	}
}

// TestEveryPackageHasAGroup: below internal/ there are the groups only, and each row of the table covers a package.
func TestEveryPackageHasAGroup(t *testing.T) {
	inRepository(t)
	var all []string
	for _, dir := range modules {
		for _, p := range load(t, dir, packages.NeedName, "./...") {
			all = append(all, strings.TrimPrefix(p.PkgPath, berth))
		}
	}
	groups := []string{"internal/core/", "internal/hardware/", "internal/httpserver/", "internal/golden/", "internal/node/", "internal/cluster/", "internal/cli/"}
	for _, path := range all {
		if strings.HasPrefix(path, "internal/") && !below(path, groups) {
			t.Errorf("%s is in no group", path)
		}
	}
	for _, r := range rules {
		if !slices.ContainsFunc(all, func(path string) bool { return below(path, []string{r.packages}) }) {
			t.Errorf("the rule of %s covers no package", r.packages)
		}
	}
}

// TestImportRulesCatchBreaches proves that the rules above can fail.
func TestImportRulesCatchBreaches(t *testing.T) {
	inRepository(t)
	tests := map[string]struct {
		source string
		target string
		want   bool
	}{
		"core and Kubernetes":           {"internal/core/placement", "k8s.io/api/core/v1", true},
		"core and node":                 {"internal/core/trace", berth + "internal/node/kubelet", true},
		"core and core":                 {"internal/core/trace", berth + "internal/core/gpu", false},
		"core and the standard library": {"internal/core/health", "time", false},
		"the nouns and core":            {"internal/core/gpu", berth + "internal/core/mig", true},
		"adapter and Kubernetes":        {"internal/hardware/nvidia", "k8s.io/client-go/rest", true},
		"adapter and NVML":              {"internal/hardware/nvidia", nvml + "/pkg/nvml", false},
		"adapter and the simulator":     {"internal/hardware/nvidia", berth + "internal/hardware/sim", true},
		"adapter and node":              {"internal/hardware/nvidia", berth + "internal/node/inventory", true},
		"simulator and what it tests":   {"internal/hardware/sim", berth + "internal/core/gpu", true},
		"front end and front end":       {"internal/node/deviceplugin", berth + "internal/node/dra", true},
		"front end and its own parts":   {"internal/node/deviceplugin", berth + "internal/node/deviceplugin/wire", false},
		"ledger and the agent":          {"internal/node/ledger", berth + "internal/node/agent", true},
		"ledger and Kubernetes":         {"internal/node/ledger", "k8s.io/client-go/rest", true},
		"ledger and a clock":            {"internal/node/ledger", "k8s.io/utils/clock", false},
		"node and cli":                  {"internal/node/agent", berth + "internal/cli/term", true},
		"cluster and node":              {"internal/cluster/operator", berth + "internal/node/ledger", true},
		"operator and its concerns":     {"internal/cluster/operator", berth + "internal/cluster/operator/definitions", false},
		"a concern and the operator":    {"internal/cluster/operator/definitions", berth + "internal/cluster/operator", true},
		"program and the operator":      {"cmd/berth-operator", berth + "internal/cluster/operator", true},
		"operator's commands and cli":   {"internal/cluster/operator/command", berth + "internal/cli/usage", true},
		"cli and node":                  {"internal/cli", berth + "internal/node/kubelet", false},
		"cli and the agent":             {"internal/cli", berth + "internal/node/agent", true},
		"fit and the API server":        {"internal/cli/fit", "k8s.io/client-go/dynamic", true},
		"fit and the allocator":         {"internal/cli/fit", "k8s.io/dynamic-resource-allocation/structured", false},
		"node and fit":                  {"internal/node/agent", berth + "internal/cli/fit", true},
		"program and the agent":         {"cmd/berth-agent", berth + "internal/node/agent", true},
		"program and its commands":      {"cmd/berth-agent", berth + "internal/node/agent/command", false},
		"node and an adapter":           {"internal/node/inventory", berth + "internal/hardware/nvidia", true},
		"actor and actor":               {"internal/node/agent/migsync", berth + "internal/node/agent/mpssync", true},
		"actor and the agent":           {"internal/node/agent/migsync", berth + "internal/node/agent", true},
		"commands and an actor":         {"internal/node/agent/command", berth + "internal/node/agent/reset", false},
		"agent and its commands":        {"internal/node/agent", berth + "internal/node/agent/command", true},
		"exec in the device plugin":     {"internal/node/deviceplugin", "os/exec", true},
		"exec in the MPS supervisor":    {"internal/node/mps", "os/exec", false},
		"exec beside nvidia-smi":        {"internal/hardware/nvidia/smi", "os/exec", false},
		"the old logger":                {"internal/node/agent", "log", true},
		"API types and client-go":       {"api/v1alpha1", "k8s.io/client-go/rest", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := breaches(tc.source, tc.target); (got != "") != tc.want {
				t.Errorf("breaches(%s, %s) = %q, want a breach: %v", tc.source, tc.target, got, tc.want)
			}
		})
	}
}

// TestAgentLinksNoHeavyLibraries keeps the privileged program small: what it
// links, it must be trusted with.
func TestAgentLinksNoHeavyLibraries(t *testing.T) {
	inRepository(t)
	loaded := load(t, ".", packages.NeedName|packages.NeedImports|packages.NeedDeps, "./cmd/berth-agent")
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, banned := range []string{"k8s.io/kubernetes/", "sigs.k8s.io/controller-runtime"} {
			if strings.HasPrefix(p.PkgPath, banned) {
				t.Errorf("berth-agent links %s", p.PkgPath)
			}
		}
	})
}

// TestLibrariesOfOneProgram: the scheduler's allocator brings CEL and parts of the API server, which no privileged program needs, and
// controller-runtime brings caches and a server, which only the operator needs.
func TestLibrariesOfOneProgram(t *testing.T) {
	inRepository(t)
	programs := load(t, ".", packages.NeedName|packages.NeedImports|packages.NeedDeps, "./cmd/...")
	for only, libraries := range map[string][]string{
		"cmd/berth":          {"k8s.io/dynamic-resource-allocation/structured", "k8s.io/dynamic-resource-allocation/cel", "k8s.io/apiserver", "github.com/google/cel-go"},
		"cmd/berth-operator": {"sigs.k8s.io/controller-runtime"},
	} {
		linked := false
		for _, program := range programs {
			packages.Visit([]*packages.Package{program}, nil, func(p *packages.Package) {
				switch {
				case !prefixed(p.PkgPath, libraries):
				case program.PkgPath == berth+only:
					linked = true
				default:
					t.Errorf("%s links %s", program.PkgPath, p.PkgPath)
				}
			})
		}
		if !linked {
			t.Errorf("%s links none of %v, so that this test cannot fail", only, libraries)
		}
	}
}

// TestProgramsLinkNoStub: the vendor that is an example, and what helps tests, is for tests alone.
func TestProgramsLinkNoStub(t *testing.T) {
	inRepository(t)
	loaded := load(t, ".", packages.NeedName|packages.NeedImports|packages.NeedDeps, "./cmd/...")
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, banned := range []string{"internal/hardware/stub", "internal/hardware/vendortest", "internal/hardware/nvidiatest", "internal/core/mig/migtest", "internal/golden"} {
			if p.PkgPath == berth+banned {
				t.Errorf("a program links %s", p.PkgPath)
			}
		}
	})
}

// TestNoSimulatorInTheAgent: the agent that is tested end to end is the one that ships. It opens simulated hardware as it opens real
// hardware, and has no code of the simulator.
func TestNoSimulatorInTheAgent(t *testing.T) {
	inRepository(t)
	const simulator = berth + "internal/hardware/sim"
	loaded := load(t, ".", packages.NeedName|packages.NeedImports|packages.NeedDeps, "./cmd/berth-agent")
	packages.Visit(loaded, nil, func(p *packages.Package) {
		if below(p.PkgPath, []string{simulator + "/"}) {
			t.Errorf("berth-agent imports %s", p.PkgPath)
		}
	})
	if testing.Short() {
		t.Skip("links berth-agent")
	}
	// The program of the simulated driver shows that nm finds the simulator where it is linked.
	tests := map[string]struct {
		wants string
		lacks string
	}{
		"./cmd/berth-agent":               {wants: berth + "internal/hardware/nvidia.OpenLibrary", lacks: simulator},
		"./internal/hardware/sim/program": {wants: simulator + ".OpenRoot", lacks: berth + "internal/node"},
	}
	for source, tc := range tests {
		program := filepath.Join(t.TempDir(), "program")
		if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", source, err, out)
		}
		symbols, err := exec.Command("go", "tool", "nm", program).Output()
		if err != nil {
			t.Fatal(err)
		}
		if text := string(symbols); strings.Contains(text, tc.lacks) || !strings.Contains(text, tc.wants) {
			t.Errorf("the symbols of %s have %s: %v, want false; and %s: %v, want true",
				source, tc.lacks, strings.Contains(text, tc.lacks), tc.wants, strings.Contains(text, tc.wants))
		}
	}
}

// goFiles lists the Go files of both modules.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "bin" || name == "testdata" || name != "." && strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestEveryPackageHasAComment: a package says what it guarantees before one reads its code.
func TestEveryPackageHasAComment(t *testing.T) {
	inRepository(t)
	commented := map[string]bool{}
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		commented[filepath.Dir(path)] = commented[filepath.Dir(path)] || says(file)
	}
	for folder, ok := range commented {
		if !ok {
			t.Errorf("%s has no package comment", folder)
		}
	}
}

func says(file *ast.File) bool {
	if file.Doc == nil {
		return false
	}
	text := file.Doc.Text()
	return strings.HasPrefix(text, "Package "+file.Name.Name) || file.Name.Name == "main" && strings.HasPrefix(text, "Command ")
}

// TestCoreReadsNoClock: what core decides depends on its arguments only, so the time is one of them.
func TestCoreReadsNoClock(t *testing.T) {
	inRepository(t)
	for _, path := range goFiles(t) {
		if !strings.HasPrefix(path, "internal/core/") || strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, clock := range []string{"time.Now(", "time.Since(", "time.Until(", "time.After(", "time.NewTimer(", "time.NewTicker(", "time.Sleep("} {
			if strings.Contains(string(text), clock) {
				t.Errorf("%s calls %s...): take the time as an argument", path, clock)
			}
		}
	}
}

// servers are the files that serve HTTP without internal/httpserver, and why.
var servers = map[string]string{
	"internal/httpserver/server.go":   "it is the constructor",
	"hack/images/command/registry.go": "a registry on the loopback address of the machine that builds images, where whole layers are uploaded",
}

// TestOneHTTPServer: every HTTP server is made by internal/httpserver, which bounds what its clients can make it keep. The secure port of
// berth-scheduler is Kubernetes' own.
func TestOneHTTPServer(t *testing.T) {
	inRepository(t)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, allowed := servers[path]; !allowed {
			for _, found := range otherServers(t, path, text) {
				t.Errorf("%s: %s: make the server with internal/httpserver", path, found)
			}
		} else if len(otherServers(t, path, text)) == 0 && path != "internal/httpserver/server.go" {
			t.Errorf("%s has no server of its own any more: take it out of the list", path)
		}
	}
	for source, want := range map[string]int{
		`import "net/http"; var s = &http.Server{}`:                                                                                                          1,
		`import "net/http"; var s http.Server`:                                                                                                               1,
		`import web "net/http"; func f() { web.ListenAndServe("", nil) }`:                                                                                    1,
		`import "net/http"; func f() { http.Serve(nil, nil) }`:                                                                                               1,
		`import "net/http/httptest"; var s = httptest.NewServer(nil)`:                                                                                        1,
		`import _ "net/http/pprof"`:                                                                                                                          1,
		`import "net/http"; func f(s *http.ServeMux) { s.Handle("/", nil) }`:                                                                                 0,
		`import "sigs.k8s.io/controller-runtime/pkg/manager"; var o = manager.Options{}`:                                                                     1,
		`import "sigs.k8s.io/controller-runtime/pkg/manager"; var o = manager.Options{Metrics: server.Options{BindAddress: ":1"}}`:                           1,
		`import "sigs.k8s.io/controller-runtime/pkg/manager"; var o = manager.Options{Metrics: server.Options{BindAddress: "0"}}`:                            0,
		`import "sigs.k8s.io/controller-runtime/pkg/manager"; var o = manager.Options{Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: p}`: 1,
	} {
		if got := otherServers(t, "a.go", []byte("package a; "+source)); len(got) != want {
			t.Errorf("%s: found %v, want %d", source, got, want)
		}
	}
}

// otherServers returns what a file has by which programs serve HTTP: what net/http has for that, and controller-runtime's own servers
// unless they are switched off.
func otherServers(t *testing.T, path string, text []byte) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string]string{} // by name
	for _, i := range file.Imports {
		target := strings.Trim(i.Path.Value, `"`)
		name := filepath.Base(target)
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = target
		if target == "net/http/pprof" || target == "net/http/fcgi" {
			found = append(found, target)
		}
	}
	named := map[string][]string{
		"net/http":          {"Server", "ListenAndServe", "ListenAndServeTLS", "Serve", "ServeTLS"},
		"net/http/httptest": {"NewServer", "NewTLSServer", "NewUnstartedServer"},
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if from, is := n.X.(*ast.Ident); is && slices.Contains(named[imports[from.Name]], n.Sel.Name) {
				found = append(found, from.Name+"."+n.Sel.Name)
			}
		case *ast.CompositeLit:
			if of, is := n.Type.(*ast.SelectorExpr); is && of.Sel.Name == "Options" {
				if from, is := of.X.(*ast.Ident); is && imports[from.Name] == "sigs.k8s.io/controller-runtime/pkg/manager" {
					found = append(found, managerServers(n)...)
				}
			}
		}
		return true
	})
	return found
}

// managerServers returns the fields by which a manager of controller-runtime serves. Metrics are served unless the address is "0".
func managerServers(options *ast.CompositeLit) (found []string) {
	off := false
	ast.Inspect(options, func(n ast.Node) bool {
		pair, is := n.(*ast.KeyValueExpr)
		if !is {
			return true
		}
		switch key, _ := pair.Key.(*ast.Ident); {
		case key == nil:
		case key.Name == "BindAddress":
			value, is := pair.Value.(*ast.BasicLit)
			off = is && value.Value == `"0"`
		case key.Name == "HealthProbeBindAddress" || key.Name == "PprofBindAddress":
			found = append(found, key.Name)
		}
		return true
	})
	if !off {
		found = append(found, "Metrics")
	}
	return found
}

// TestFilesStayReadable: a file over 500 lines, or a main over 60, holds more than one thing.
func TestFilesStayReadable(t *testing.T) {
	inRepository(t)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(filepath.Base(path), "zz_generated") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		limit := 500
		if filepath.Base(path) == "main.go" && strings.Contains(path, "cmd/") {
			limit = 60
		}
		if lines := strings.Count(string(text), "\n"); lines > limit {
			t.Errorf("%s has %d lines, want at most %d", path, lines, limit)
		}
	}
}

// TestArchitectureNamesEveryPackage: a newcomer finds each package in the table of docs/architecture.md.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	inRepository(t)
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range load(t, ".", packages.NeedName, "./internal/...") {
		path := strings.TrimPrefix(p.PkgPath, berth)
		parent, name := filepath.Dir(path), filepath.Base(path)
		inner := strings.Contains(strings.TrimPrefix(path, "internal/"), "internal/")
		// A package below another one may be named with it, as `smi` or `inspect`.
		if !inner && !strings.Contains(string(text), "`"+path+"`") && !(strings.Contains(string(text), "`"+parent) && strings.Contains(string(text), "`"+name+"`")) {
			t.Errorf("docs/architecture.md does not name %s", path)
		}
	}
}
