package complete

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// resource returns a kind; the group of core Kubernetes is empty.
func resource(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

func podKind() schema.GroupVersionResource       { return resource("", "v1", "pods") }
func namespaceKind() schema.GroupVersionResource { return resource("", "v1", "namespaces") }
func gpuNodeKind() schema.GroupVersionResource   { return resource("berth.dev", "v1alpha1", "gpunodes") }
func claimKind() schema.GroupVersionResource {
	return resource("resource.k8s.io", "v1", "resourceclaims")
}

// owners are the kinds that berth why takes as KIND/NAME.
func owners() map[string]schema.GroupVersionResource {
	return map[string]schema.GroupVersionResource{
		"job/": resource("batch", "v1", "jobs"), "deployment/": resource("apps", "v1", "deployments"), "replicaset/": resource("apps", "v1", "replicasets"),
		"jobset/": resource("jobset.x-k8s.io", "v1alpha2", "jobsets"), "leaderworkerset/": resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
		gangWord: {}, podGroupWord: {},
	}
}

// The kinds of which pods have the names.
const (
	gangWord     = "gang/"
	podGroupWord = "podgroup/"
)

// names lists the names of a kind; none if they cannot be read.
func names(ctx context.Context, from Reader, kind schema.GroupVersionResource, namespace string) []string {
	found, err := from.Names(ctx, kind, namespace)
	if err != nil {
		return nil
	}
	return found
}

// prefixed puts a text before each name.
func prefixed(before string, names []string) []string {
	made := make([]string, len(names))
	for i, name := range names {
		made[i] = before + name
	}
	return made
}

// ofKubeconfig lists names that the kubeconfig has.
func ofKubeconfig(names func(*Kubeconfig) []string) lister {
	return func(_ context.Context, from Reader, _ request) []string {
		found, err := from.Kubeconfig()
		if err != nil {
			return nil
		}
		return names(found)
	}
}

func namespaces(ctx context.Context, from Reader, _ request) []string {
	return names(ctx, from, namespaceKind(), "")
}

// pods lists the pods of the namespace. For NAMESPACE/ it lists those of that namespace, for the beginning of a word also the namespaces.
func pods(ctx context.Context, from Reader, r request) []string {
	return inNamespace(ctx, from, podKind(), r.begin)
}

// inNamespace lists objects as NAME or NAMESPACE/NAME.
func inNamespace(ctx context.Context, from Reader, kind schema.GroupVersionResource, begin string) []string {
	if namespace, _, ok := strings.Cut(begin, "/"); ok {
		return prefixed(namespace+"/", names(ctx, from, kind, namespace))
	}
	found := names(ctx, from, kind, from.Namespace())
	if begin == "" {
		return found
	}
	for _, namespace := range names(ctx, from, namespaceKind(), "") {
		found = append(found, namespace+"/")
	}
	return found
}

// traced lists what berth trace takes: pods, claims and, for a word with a capital letter, the UUIDs of GPUs.
func traced(ctx context.Context, from Reader, r request) []string {
	if strings.ToLower(r.begin) != r.begin {
		return uuids(from.GPUs(ctx))
	}
	for _, word := range []string{"pod/", "pods/", "po/"} {
		if strings.HasPrefix(r.begin, word) {
			return prefixed(word, names(ctx, from, podKind(), from.Namespace()))
		}
	}
	for _, word := range []string{"claim/", "resourceclaim/", "resourceclaims/"} {
		if rest, ok := strings.CutPrefix(r.begin, word); ok {
			return prefixed(word, inNamespace(ctx, from, claimKind(), rest))
		}
	}
	return append(pods(ctx, from, r), "claim/")
}

// waiting lists what berth why takes: pods and what creates them.
func waiting(ctx context.Context, from Reader, r request) []string {
	var kinds []string
	for word, kind := range owners() {
		if !strings.HasPrefix(r.begin, word) {
			kinds = append(kinds, word)
			continue
		}
		if word == gangWord || word == podGroupWord {
			return prefixed(word, gangs(ctx, from, word == podGroupWord))
		}
		return prefixed(word, names(ctx, from, kind, from.Namespace()))
	}
	found := pods(ctx, from, r)
	if r.begin == "" {
		return found
	}
	return append(found, kinds...)
}

// gangs lists the names of the gangs of the namespace; none if they cannot be read.
func gangs(ctx context.Context, from Reader, withGroup bool) []string {
	found, err := from.Gangs(ctx, from.Namespace(), withGroup)
	if err != nil {
		return nil
	}
	return found
}

// nodes lists the nodes with GPUs that are not among the arguments already. On this machine a name would be wrong.
func nodes(ctx context.Context, from Reader, r request) []string {
	if from.Local() {
		return nil
	}
	return slices.DeleteFunc(allNodes(ctx, from, r), func(name string) bool { return slices.Contains(r.args, name) })
}

func allNodes(ctx context.Context, from Reader, _ request) []string {
	return names(ctx, from, gpuNodeKind(), "")
}

// nodeAndLayout lists nodes, and for the second argument the layouts of that node. On this machine the layout is the only argument.
func nodeAndLayout(ctx context.Context, from Reader, r request) []string {
	node := ""
	switch {
	case from.Local() && len(r.args) > 0:
		return nil
	case from.Local():
	case len(r.args) == 0:
		return nodes(ctx, from, r)
	default:
		node = r.args[0]
	}
	found, err := from.Layouts(ctx, node)
	if err != nil {
		return nil
	}
	return found
}

// agentGPUs lists the GPUs of this node's agent by index and UUID.
func agentGPUs(ctx context.Context, from Reader, _ request) []string {
	found, err := from.AgentGPUs(ctx)
	return append(indices(found), uuids(found, err)...)
}

func uuids(gpus []GPU, err error) []string {
	if err != nil {
		return nil
	}
	var lines []string
	for _, g := range gpus {
		lines = append(lines, line(g.UUID, g.Text))
	}
	return lines
}

func indices(gpus []GPU) []string {
	var lines []string
	for _, g := range gpus {
		if g.Index != "" {
			lines = append(lines, line(g.Index, g.Text))
		}
	}
	return lines
}

// line is a candidate with its description. A description is of one line.
func line(word, text string) string {
	if text == "" {
		return word
	}
	return word + "\t" + strings.Join(strings.Fields(text), " ")
}

// profiles lists the machines that can be simulated, with their titles.
func profiles(context.Context, Reader, request) []string {
	var lines []string
	for _, name := range sim.Profiles() {
		title, err := sim.Title(name)
		if err != nil {
			continue
		}
		lines = append(lines, line(name, title))
	}
	return lines
}

// simulatedGPUs lists the GPUs of the simulated machine that is the first argument.
func simulatedGPUs(_ context.Context, _ Reader, r request) []string {
	if len(r.args) == 0 {
		return nil
	}
	machine, err := sim.Open(r.args[0])
	if err != nil {
		return nil
	}
	shown, err := machine.Show()
	if err != nil {
		return nil
	}
	var gpus []GPU
	for i := range shown.GPUs {
		g := &shown.GPUs[i]
		gpus = append(gpus, GPU{UUID: g.UUID, Index: strconv.Itoa(g.Slot), Text: g.Product})
	}
	return append(indices(gpus), uuids(gpus, nil)...)
}

// clearable lists what the faults of a simulated machine are cleared of.
func clearable(ctx context.Context, from Reader, r request) []string {
	return append(simulatedGPUs(ctx, from, r), "all\tall GPUs and the driver", "driver\tthe driver")
}
