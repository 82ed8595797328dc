package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func newTraceCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	pid := 0
	cmd := &cobra.Command{
		Use:   "trace POD | GPU-UUID | claim/NAME | --pid N",
		Short: "Show the GPUs of a pod, or the holders of a GPU, with the source of each fact",
		Long: `Follow a request from the pod to the hardware: what the pod requested, the node it was
scheduled to, what the kubelet allocated (checkpoint, the device plugin's response,
PodResources, the pod's status), what the ledger, the GPUNode object and the CDI spec contain,
what the container has, and what the hardware is. Each fact is printed with its source.

For a pod with ResourceClaims, or with an extended resource for which the scheduler made one,
it also shows what the scheduler allocated (the claim's status), which devices the kubelet had
prepared (dra_manager_state), and which request each device is for. claim/NAME shows a claim
with all pods that use it.

If two sources disagree, that is printed first and the exit code is 1. Sources that could not
be read are listed at the end with the reason.

From any machine it reads the API server: the pod, its status, and the GPUNode that berth-agent
publishes. On the node, as root, it also reads the node's own files. These are sufficient
without an API server (--node-local); the pod can then be given by its UID.`,
		Example: `  berth trace demo -n ml                    the pod demo in namespace ml
  berth trace ml/demo                       the same
  berth trace GPU-5c1f2e9b                  who holds the GPU whose UUID begins so
  berth trace claim/train -n ml             the ResourceClaim train, also claim/ml/train
  berth trace --pid 4711                    the process 4711 of this node (as nvidia-smi shows it)
  berth trace demo -o json | jq .disagreements
  berth trace 60921126-5b78-4e9b-867f-371ba9a65349 --node-local
                                            a pod by its UID, from the kubelet's files alone`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			query, err := parseQuery(args, pid, from.connection.Namespace)
			if err != nil {
				return err
			}
			found, err := untilPublished(cmd.Context(), func() (*trace.Trace, error) { return collectTrace(cmd.Context(), &from, query, nil) })
			if err != nil {
				return err
			}
			object := traceObject(found)
			if api, _ := from.api(); api != nil {
				addWhy(cmd.Context(), api.Client, object, time.Now())
			}
			if err := out.print(deps.Out, object, func(w io.Writer) error { return traceTable(w, object) }); err != nil {
				return err
			}
			if len(found.Disagreements) > 0 {
				return errDisagreement
			}
			return nil
		},
	}
	from.bind(cmd.Flags(), deps)
	from.connection.AddNamespace(cmd.Flags(), "the pod's namespace (default: the context's)")
	out.bind(cmd.Flags())
	cmd.Flags().IntVar(&pid, "pid", 0, "show the GPUs of this process of this node")
	return cmd
}

// uidPattern matches a pod's UID; the UID of a static pod has no dashes.
var uidPattern = regexp.MustCompile(`^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})$`)

// traceObject returns the picture as the versioned object that is printed.
func traceObject(t *trace.Trace) *v1alpha1.Trace {
	object := &v1alpha1.Trace{
		TypeMeta:      v1alpha1.TypeMeta(v1alpha1.KindTrace),
		Subject:       t.Subject,
		Disagreements: append([]trace.Disagreement{}, t.Disagreements...),
		Pods:          append([]trace.Pod{}, t.Pods...),
		Claims:        t.Claims,
		Devices:       t.Devices,
		Read:          t.Read,
		NotRead:       slices.Clone(t.Unread),
	}
	if len(t.Processes) > 0 {
		process := t.Processes[0]
		object.Process = &v1alpha1.TraceProcess{
			PID: process.PID, ContainerID: process.ContainerID, PodUID: process.PodUID, Sources: trace.Sources{process.Source},
		}
	}
	return object
}

func parseQuery(args []string, pid int, namespace func() string) (trace.Query, error) {
	switch {
	case pid < 0:
		return trace.Query{}, usagef("--pid %d: a process has a positive number", pid)
	case pid > 0 && len(args) > 0:
		return trace.Query{}, usagef("give either --pid or %s, not both", args[0])
	case pid > 0:
		return trace.Query{PID: pid}, nil
	case len(args) == 0 || args[0] == "":
		return trace.Query{}, usagef("want something to trace: a pod, a GPU's UUID, claim/NAME, or --pid N")
	}
	name := args[0]
	// No pod and no UID has capital letters. With gpu/ it is what berth gpus -o name prints.
	if id := strings.TrimPrefix(name, "gpu/"); !strings.Contains(id, "/") && strings.ToLower(id) != id {
		return trace.Query{Device: gpu.UUID(id)}, nil
	}
	if uidPattern.MatchString(name) {
		return trace.Query{Pod: trace.Ref{UID: name}}, nil
	}
	if claim, ok := parseClaim(name, namespace); ok {
		return trace.Query{Claim: claim}, nil
	}
	for _, prefix := range [...]string{"pod/", "pods/", "po/"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return trace.Query{Pod: trace.Ref{Namespace: namespace(), Name: rest}}, nil
		}
	}
	if space, rest, ok := strings.Cut(name, "/"); ok {
		return trace.Query{Pod: trace.Ref{Namespace: space, Name: rest}}, nil
	}
	return trace.Query{Pod: trace.Ref{Namespace: namespace(), Name: name}}, nil
}

// parseClaim parses claim/NAME and claim/NAMESPACE/NAME.
func parseClaim(text string, namespace func() string) (trace.ClaimRef, bool) {
	for _, prefix := range [...]string{"claim/", "resourceclaim/", "resourceclaims/"} {
		rest, ok := strings.CutPrefix(text, prefix)
		if !ok {
			continue
		}
		if space, name, both := strings.Cut(rest, "/"); both {
			return trace.ClaimRef{Namespace: space, Name: name}, true
		}
		return trace.ClaimRef{Namespace: namespace(), Name: rest}, true
	}
	return trace.ClaimRef{}, false
}

const (
	// publishing is how long the GPUNode may be behind the node: berth-agent writes it once a second at most.
	publishing = 3 * time.Second
	// lookAgain is the time between two looks at the sources.
	lookAgain = 250 * time.Millisecond
)

// untilPublished collects again while the GPUNode alone does not have the devices of a container yet, such as of a pod that has
// just started, for at most the time that the agent takes to write it.
func untilPublished(ctx context.Context, collect func() (*trace.Trace, error)) (*trace.Trace, error) {
	for until := time.Now().Add(publishing); ; {
		found, err := collect()
		if err != nil || !unpublished(found.Disagreements) || time.Now().After(until) {
			return found, err
		}
		select {
		case <-ctx.Done():
			return found, nil
		case <-time.After(lookAgain):
		}
	}
}

// unpublished reports whether there are disagreements, and each is that a GPUNode alone has no device of a container.
func unpublished(list []trace.Disagreement) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(d trace.Disagreement) bool {
		return d.Code != trace.DevicesDiffer || len(d.Statements) != 2 || !slices.ContainsFunc(d.Statements, func(s trace.Fact) bool {
			return s.Value == trace.Nothing && len(s.Sources) == 1 && s.Sources[0].Kind == trace.GPUNode
		})
	})
}

// collectTrace reads the node first, because only the node knows which pod a process or a UID belongs to, then the API,
// and joins both. shows tells the holders of which namespaces may be named from GPUNodes; nil names all.
func collectTrace(ctx context.Context, from *sources, query trace.Query, shows func(string) bool) (*trace.Trace, error) {
	local, err := from.localOf(ctx, query.Pod)
	if err != nil {
		return nil, err
	}
	api, noAPI := from.api()
	if err := from.required("trace "+query.String(), api, noAPI); err != nil {
		return nil, err
	}
	if local == nil && api == nil {
		return nil, from.nothingToRead("trace "+query.String(), noAPI,
			"  berth trace POD-UID --kubelet-dir DIR     from a copy of a kubelet's directory\n"+
				"  berth topo --sim DIR                      the links of a simulated node")
	}
	if api != nil {
		api.Shows = shows
	}
	if query.PID > 0 && local == nil {
		return nil, &hintError{fmt.Errorf("trace %s: processes can only be traced on their node, and this machine "+
			"is not a node", query), "fix: run it as root on the node that the process is on"}
	}
	return joinTrace(ctx, local, api, noAPI, query, from.connection.Given())
}

// joinTrace joins what was read on the node, which may be nil, with what the API server has, which may be nil for the reason noAPI. must is
// true when it is an error that the API server does not answer.
func joinTrace(ctx context.Context, local *evidence.Local, api *evidence.API, noAPI string, query trace.Query, must bool) (*trace.Trace, error) {
	all, known := trace.Evidence{}, vendors()
	if local != nil {
		all, known = local.Evidence, local.Vendors
	} else {
		all.Unread = append(all.Unread, trace.Unread{Source: trace.Source{Kind: trace.Checkpoint},
			Why: "the node's own files can only be read on the node; this machine is not a node"})
	}
	var names []string
	var err error
	if api == nil {
		all.Unread = append(all.Unread, trace.Unread{Source: trace.Source{Kind: trace.PodSpec}, Why: noAPI})
	} else if names, err = askAPI(ctx, api, known, &all, query, must); err != nil {
		return nil, err
	}
	picture := trace.Join(known, all)
	found, err := picture.Select(query)
	if id := gpu.UUID(cmp.Or(query.Pod.UID, query.Pod.Name)); err != nil && id != "" && hasDevice(picture, id) {
		found, err = picture.Select(trace.Query{Device: id})
	}
	if missing, ok := errors.AsType[*trace.NotFoundError](err); ok {
		return nil, notFound(missing, names, all.Unread)
	}
	return found, err
}

// hasDevice reports whether a source lists a device with that UUID. Not every vendor's UUIDs differ from the names of pods.
func hasDevice(picture *trace.Trace, id gpu.UUID) bool {
	return slices.ContainsFunc(picture.Devices, func(d trace.Device) bool { return d.UUID == id })
}

// askAPI adds the API's facts about the pods that the query leads to. If there is no such pod, it returns the names of
// similar pods. It is an error that the API server does not answer when it must, and when nothing else was read.
func askAPI(ctx context.Context, api *evidence.API, known trace.Vendors, all *trace.Evidence, query trace.Query, must bool) ([]string, error) {
	fatal := func(err error) bool { return err != nil && (len(all.Read) == 0 || must && noAnswer(err)) }
	switch {
	case query.Pod.Name != "":
		_, err := api.Pod(ctx, all, query.Pod)
		if apierrors.IsNotFound(err) {
			names, listError := api.Names(ctx, query.Pod.Namespace)
			if listError != nil {
				names = nil // the suggestion is optional
			}
			return names, nil
		}
		if fatal(err) {
			return nil, apiError(fmt.Errorf("trace %s: %w", query, err), "")
		}
		addGPUNodes(ctx, api, all)
		return nil, nil
	case query.Claim.Name != "":
		return askClaim(ctx, api, all, query, must)
	case query.Device != "":
		if err := api.GPUNodes(ctx, all, query.Device); fatal(err) {
			return nil, apiError(fmt.Errorf("trace %s: list the GPUNode objects of berth-agent: %w", query, err),
				"without them: berth trace "+string(query.Device)+" --node-local on the node")
		}
	}
	picture := trace.Join(known, *all)
	found, err := picture.Select(query)
	if err != nil {
		found = &trace.Trace{}
	}
	readPods(ctx, api, all, podsOf(found))
	if len(found.Pods) == 0 && query.Pod.UID != "" {
		if _, err := api.PodOfUID(ctx, all, query.Pod.UID); err != nil {
			all.Unread = append(all.Unread, trace.Unread{Source: trace.Source{Kind: trace.PodSpec}, Why: err.Error()})
		}
	}
	addGPUNodes(ctx, api, all)
	return nil, nil
}

// askClaim adds the API's facts about a claim and the pods that use it. If there is no such claim, it returns the names of those that
// there are.
func askClaim(ctx context.Context, api *evidence.API, all *trace.Evidence, query trace.Query, must bool) ([]string, error) {
	pods, err := api.Claim(ctx, all, query.Claim)
	if apierrors.IsNotFound(err) {
		names, listError := api.ClaimNames(ctx, query.Claim.Namespace)
		if listError != nil {
			names = nil // the suggestion is optional
		}
		return names, nil
	}
	if err != nil && (len(all.Claims) == 0 || must && noAnswer(err)) {
		return nil, apiError(fmt.Errorf("trace %s: %w", query, err), "without it: berth trace "+query.String()+" --node-local on the node")
	}
	readPods(ctx, api, all, pods)
	addGPUNodes(ctx, api, all)
	return nil, nil
}

// maxPods bounds the pods that are read for one trace; a claim can have 256.
const maxPods = 32

// podsOf returns the names of the pods of a picture, also of those of which only a claim is known.
func podsOf(t *trace.Trace) []trace.Ref {
	var refs []trace.Ref
	for _, pod := range t.Pods {
		refs = append(refs, pod.Ref())
	}
	for _, claim := range t.Claims {
		refs = append(refs, claim.Pods...)
	}
	refs = slices.DeleteFunc(refs, func(r trace.Ref) bool { return r.Name == "" })
	slices.SortFunc(refs, func(a, b trace.Ref) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return slices.CompactFunc(refs, func(a, b trace.Ref) bool { return a.Namespace == b.Namespace && a.Name == b.Name })
}

// readPods adds the API's facts about pods.
func readPods(ctx context.Context, api *evidence.API, all *trace.Evidence, pods []trace.Ref) {
	for _, pod := range pods[:min(len(pods), maxPods)] {
		_, _ = api.Pod(ctx, all, pod) // Pod records an error in all.Unread
	}
	if left := len(pods) - maxPods; left > 0 {
		all.Unread = append(all.Unread, trace.Unread{Source: trace.Source{Kind: trace.PodSpec},
			Why: fmt.Sprintf("there are %d more pods; at most %d are read", left, maxPods)})
	}
}

// addGPUNodes reads the GPUNode of each node that a pod was scheduled to.
func addGPUNodes(ctx context.Context, api *evidence.API, all *trace.Evidence) {
	var nodes []string
	for _, pod := range all.Pods {
		if pod.Source.Kind == trace.PodSpec && pod.Node != "" {
			nodes = append(nodes, pod.Node)
		}
	}
	slices.Sort(nodes)
	for _, node := range slices.Compact(nodes) {
		known := slices.ContainsFunc(all.Read, func(s trace.Source) bool {
			return s.Kind == trace.GPUNode && strings.HasSuffix(s.Path, "/"+node)
		})
		if !known {
			api.GPUNode(ctx, all, node)
		}
	}
}

// notFound returns the error of a query without a result, with similar names and the sources that could not be read.
func notFound(missing *trace.NotFoundError, names []string, unread []trace.Unread) error {
	subject := missing.Query.Pod.String()
	if missing.Query.Claim.Name != "" {
		subject = missing.Query.Claim.String()
	}
	nearest := slices.Concat(missing.Nearest, trace.Nearest(subject, names, 3))
	slices.Sort(nearest)
	nearest = slices.Compact(nearest)
	var hints []string
	if len(nearest) > 0 {
		hints = append(hints, "did you mean: "+strings.Join(nearest, ", "))
	}
	for _, one := range unread {
		if one.Source.Kind == trace.GPUNode && one.Source.Field != "" {
			continue // Whose holders of a device are not shown: it was read, and has no such name.
		}
		hints = append(hints, fmt.Sprintf("not read: %s: %s", one.Source.Kind, one.Why))
	}
	if len(hints) == 0 {
		return missing
	}
	return &hintError{missing, strings.Join(hints, "\n")}
}
