package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/fleet"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// gpuView is what berth gpus shows: every GPU, those that a filter selects, or counts of them.
type gpuView struct {
	summary   bool
	free      bool
	unhealthy bool
	groupBy   string
}

func (v *gpuView) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&v.summary, "summary", false, "print one screen: the GPUs by model, resource and namespace, and their problems")
	flags.BoolVar(&v.free, "free", false, "list only GPUs and MIG devices that can be allocated now")
	flags.BoolVar(&v.unhealthy, "unhealthy", false, "list only GPUs and MIG devices that are not healthy")
	flags.StringVar(&v.groupBy, "group-by", "", "print a row for each "+strings.Join(fleet.Properties(), ", ")+" instead of each GPU")
}

// check returns an error for flags that do not go together.
func (v *gpuView) check(out *output, namespace string) error {
	var given []string
	for flag, set := range map[string]bool{"--summary": v.summary, "--free": v.free, "--unhealthy": v.unhealthy, "--group-by": v.groupBy != ""} {
		if set {
			given = append(given, flag)
		}
	}
	slices.Sort(given)
	if len(given) > 1 {
		return usagef("%s: want one of them", strings.Join(given, " "))
	}
	if v.groupBy != "" && !slices.Contains(fleet.Properties(), v.groupBy) {
		return usagef("--group-by %s: want %s", v.groupBy, strings.Join(fleet.Properties(), ", "))
	}
	switch {
	case namespace != "" && v.counts():
		return usagef("-n %s: --summary and --group-by count all namespaces; see --group-by namespace", namespace)
	case namespace != "" && v.free:
		return usagef("-n %s: --free lists what can be allocated, which is of no namespace; leave out the one or the other", namespace)
	case v.summary:
		return checkSummary(out)
	}
	return nil
}

// checkSummary returns an error for flags about rows: a summary has none.
func checkSummary(out *output) error {
	flag := ""
	switch format := out.Format(); {
	case format == print.Name || format == print.CustomColumns:
		flag = "-o " + format
	case out.Sorted():
		flag = "--sort-by"
	case out.RowsOnly():
		flag = "--no-headers"
	default:
		return nil
	}
	return usagef("%s: --summary is not a list of rows; leave out the one or the other, or see --group-by", flag)
}

// counts reports whether the view is counts, not a list of GPUs.
func (v *gpuView) counts() bool { return v.summary || v.groupBy != "" }

// wantsPods reports whether the view shows what pods request.
func (v *gpuView) wantsPods() bool {
	return v.summary || v.groupBy == fleet.ByNamespace || v.groupBy == fleet.ByResource
}

// filter returns the GPUs that the view lists.
func (v *gpuView) filter(items []v1alpha1.GPUListItem) []v1alpha1.GPUListItem {
	switch {
	case v.free:
		return fleet.Free(items)
	case v.unhealthy:
		return fleet.Unhealthy(items)
	}
	return items
}

// table prints the GPUs that the view lists, of a namespace unless that is empty.
func (v *gpuView) table(w io.Writer, list *v1alpha1.GPUList, view *print.Flags, namespace string) error {
	if len(list.Items) == 0 && !view.RowsOnly() {
		_, err := fmt.Fprintln(w, v.none(namespace))
		return errors.Join(err, notReadTable(w, list.NotRead))
	}
	return gpuTable(w, list, view)
}

// none says that there is nothing to list.
func (v *gpuView) none(namespace string) string {
	switch {
	case v.free:
		return "no GPU is free"
	case v.unhealthy && namespace != "":
		return "no GPU of namespace " + namespace + " is unhealthy"
	case v.unhealthy:
		return "all GPUs are healthy"
	case namespace != "":
		return "no GPU is held by namespace " + namespace
	}
	return "no GPUs"
}

// print prints the counts of nodes. some is set for nodes that the user chose, and unread are the sources that were not read.
func (v *gpuView) print(ctx context.Context, from *sources, w io.Writer, out *output, nodes []v1alpha1.GPUNode, some bool, unread []trace.Unread) error {
	in := &fleet.Input{Nodes: nodes}
	if v.wantsPods() {
		requests, err := requestedBy(ctx, from, nodes, some)
		if err != nil {
			unread = append(unread, trace.Unread{Source: trace.Source{Kind: trace.PodSpec, Path: "pods"}, Why: err.Error()})
		}
		in.Requests = requests
	}
	screen := term.Of(w, os.Getenv)
	if v.summary {
		summary := fleet.Summarize(in)
		summary.NotRead = unread
		return out.print(w, summary, func(w io.Writer) error { return fleet.WriteSummary(w, summary, screen) })
	}
	list := &v1alpha1.GPUGroupList{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUGroupList), By: v.groupBy, Items: fleet.Groups(in, v.groupBy), NotRead: unread}
	total := 0
	for i := range nodes {
		total += len(nodes[i].Status.Devices)
	}
	return out.Print(w, list, print.Of(list.Items, func(g *v1alpha1.GPUGroup) string { return v.groupBy + "/" + g.Name }), func(w io.Writer) error {
		if err := fleet.WriteGroups(w, list, total, out.RowsOnly(), screen); err != nil || out.RowsOnly() {
			return err
		}
		return notReadTable(w, unread)
	})
}

// requestedBy returns what pods request of the resources that the nodes advertise: all pods of the cluster or, of some nodes, those on
// them. Without an API server, or where this machine's own sources were read, there are no pods to count.
func requestedBy(ctx context.Context, from *sources, nodes []v1alpha1.GPUNode, some bool) ([]fleet.Request, error) {
	api, _ := from.api()
	if api == nil || slices.ContainsFunc(localFlags(), from.flags.Changed) {
		return nil, nil
	}
	offered := offeredBy(nodes)
	names := map[string]bool{}
	for i := range nodes {
		names[nodes[i].Name] = true
	}
	counts := map[[2]string]int64{}
	err := api.EachPod(ctx, func(pod *corev1.Pod) {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || some && !names[pod.Spec.NodeName] {
			return
		}
		for name, count := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}) {
			if offered[string(name)] {
				counts[[2]string{pod.Namespace, string(name)}] += count.Value()
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("what pods request is not known: %w", err)
	}
	requests := []fleet.Request{}
	for key, count := range counts {
		requests = append(requests, fleet.Request{Namespace: key[0], Resource: key[1], Count: count})
	}
	return requests, nil
}
