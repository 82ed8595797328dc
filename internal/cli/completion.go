package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/complete"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// completionReader reads what a shell is suggested, from the sources that the flags of a command select.
type completionReader struct{ from *sources }

var _ complete.Reader = completionReader{}

// openCompletion returns the reader for a command. It has sources of its own, with the values of the command's flags.
func openCompletion(deps Deps) func(*cobra.Command) complete.Reader {
	return func(cmd *cobra.Command) complete.Reader {
		from := &sources{}
		set := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
		from.bind(set, deps)
		from.connection.AddNamespace(set, "")
		cmd.Flags().Visit(func(given *pflag.Flag) {
			if own := set.Lookup(given.Name); own != nil {
				copyFlag(set, own, given)
			}
		})
		return completionReader{from}
	}
}

// copyFlag gives a flag the value of another. A value that it refuses is left out: the command itself says why it is wrong.
func copyFlag(set *pflag.FlagSet, own, given *pflag.Flag) {
	into, isList := own.Value.(pflag.SliceValue)
	list, areMany := given.Value.(pflag.SliceValue)
	if isList && areMany {
		_ = into.Replace(list.GetSlice())
		own.Changed = true
		return
	}
	_ = set.Set(given.Name, given.Value.String())
}

func (r completionReader) Namespace() string { return r.from.connection.Namespace() }

// Local implements [complete.Reader]: the sources are this machine's if the flags say so, or if it is a node without an API server.
func (r completionReader) Local() bool {
	if slices.ContainsFunc(localFlags(), r.from.flags.Changed) {
		return true
	}
	api, _ := r.from.api()
	return api == nil
}

func (r completionReader) Kubeconfig() (*complete.Kubeconfig, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = r.from.flags.Lookup("kubeconfig").Value.String()
	raw, err := rules.Load()
	if err != nil {
		return nil, err
	}
	return &complete.Kubeconfig{
		Contexts: slices.Sorted(maps.Keys(raw.Contexts)), Clusters: slices.Sorted(maps.Keys(raw.Clusters)), Users: slices.Sorted(maps.Keys(raw.AuthInfos)),
	}, nil
}

// mostNames bounds the names that are read for a suggestion.
const mostNames = 1000

// metadataOnly makes an API server leave out all of an object but its metadata.
const metadataOnly = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"

func (r completionReader) Names(ctx context.Context, kind schema.GroupVersionResource, namespace string) ([]string, error) {
	list, err := r.list(ctx, kind, namespace)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names, nil
}

// Gangs implements [complete.Reader], by the labels and annotations of pods.
func (r completionReader) Gangs(ctx context.Context, namespace string, withGroup bool) ([]string, error) {
	pods, err := r.list(ctx, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, namespace)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range pods {
		key, ok := gangplan.KeyOf(&corev1.Pod{ObjectMeta: pods[i].ObjectMeta})
		if ok && (!withGroup || key.Source != gangplan.Labels) {
			names = append(names, key.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// list reads the metadata of the objects of a kind, mostNames at most.
func (r completionReader) list(ctx context.Context, kind schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	api, noAPI := r.from.api()
	if api == nil {
		return nil, fmt.Errorf("list %s: no API server: %s", kind.Resource, noAPI)
	}
	path := []string{"api", kind.Version}
	if kind.Group != "" {
		path = []string{"apis", kind.Group, kind.Version}
	}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	text, err := api.REST.Get().AbsPath(append(path, kind.Resource)...).SetHeader("Accept", metadataOnly).
		Param("limit", strconv.Itoa(mostNames)).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
	}
	return list.Items, nil
}

func (r completionReader) GPUs(ctx context.Context) ([]complete.GPU, error) {
	nodes, _, err := gpuNodes(ctx, r.from, "completion", nil)
	if err != nil {
		return nil, err
	}
	var found []complete.GPU
	for i := range nodes {
		found = append(found, completionGPUs(&nodes[i])...)
	}
	return found, nil
}

// completionGPUs returns the GPUs and MIG devices of a node.
func completionGPUs(node *v1alpha1.GPUNode) []complete.GPU {
	var found []complete.GPU
	for i := range node.Status.Devices {
		d := &node.Status.Devices[i]
		name := fmt.Sprintf("GPU %d of %s", d.Index, orElse(node.Name, "this node"))
		found = append(found, complete.GPU{UUID: d.UUID, Index: strconv.Itoa(d.Index), Text: name + ", " + d.Product + heldBy(d.Holders)})
		for k := range d.MIGDevices {
			m := &d.MIGDevices[k]
			found = append(found, complete.GPU{UUID: m.UUID, Text: m.Profile + " of " + name + heldBy(m.Holders)})
		}
	}
	return found
}

func heldBy(holders []v1alpha1.Holder) string {
	text := ""
	for _, holder := range holders {
		text += ", " + holderText(holder)
	}
	return text
}

func (r completionReader) AgentGPUs(ctx context.Context) ([]complete.GPU, error) {
	samples, err := readSamples(ctx, r.from.places.Agent)
	if err != nil {
		return nil, err
	}
	var found []complete.GPU
	for i := range samples.Items {
		s := &samples.Items[i]
		found = append(found, complete.GPU{UUID: s.UUID, Index: strconv.Itoa(s.Index), Text: s.Product + ", " + s.Health})
	}
	return found, nil
}

func (r completionReader) Layouts(ctx context.Context, node string) ([]string, error) {
	var args []string
	if node != "" {
		args = append(args, node)
	}
	subject, _, err := migSubjectOf(ctx, r.from, "completion", args)
	if err != nil {
		return nil, err
	}
	layouts, err := subject.layouts(ctx, "")
	if err != nil {
		return nil, err
	}
	return mig.LayoutNames(layouts.byName), nil
}
