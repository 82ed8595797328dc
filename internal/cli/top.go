package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cli/topview"
	"github.com/berth-gpu/berth/internal/node/pages"
)

const (
	// minInterval is the shortest interval between two reads. The others are the defaults, of this node's agent, and of agents that are
	// read through the API server.
	minInterval    = 200 * time.Millisecond
	localInterval  = time.Second
	remoteInterval = 5 * time.Second
)

func newTopCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	var view topview.View
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top [NODE...]",
		Short: "Show the utilization of GPUs with their holders",
		Long: `Show the holders, the health and the utilization of each GPU and MIG device, as the node's agent
sampled them: live in a terminal (q or ctrl-c ends it), otherwise as one table.

With NODE, or from a machine that is not a node, it shows the devices with their health and
holders from the GPUNode objects, and their utilization from the metrics of the agents' pods.
These are read through the API server, which requires the verb get on pods/proxy in the
agents' namespace. Several nodes have a row each, with the sums of their GPUs: the highest
temperature, the mean utilization. Of more than 32 nodes, the utilization of 32 is read at
a time: once of those that hold most GPUs, live of all nodes in turn.`,
		Example: `  berth top                                 of this node
  berth top --interval 5s --sort-by util
  berth top node-0 --processes              from a laptop
  berth top node-0 -o wide                  also the clock, the use of memory and of tensor cores, and the UUID
  berth top --sort-by health                of all nodes, from a laptop
  berth top node-0 -o json | jq '.items[] | select(.utilization < 0.1 and .pods != null) | .uuid'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if view.SortBy != "" && !slices.Contains(topview.Keys(), view.SortBy) {
				return usagef("--sort-by %s: want %s", view.SortBy, strings.Join(topview.Keys(), ", "))
			}
			if err := from.checkChoice(); err != nil {
				return err
			}
			read, remote, err := samplesSource(&from, args)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("interval") && remote {
				interval = remoteInterval
			}
			if interval < minInterval {
				return usagef("--interval %v: want %v or more", interval, minInterval)
			}
			read = usedIn(read, from.connection.Chosen(), &view)
			view.RowsOnly, view.Wide = out.RowsOnly(), out.IsWide()
			if out.IsTable() {
				if tty := openTerminal(os.Stdin, deps.Out); tty != nil {
					return topLive(cmd.Context(), tty, deps.Out, read, &view, interval)
				}
			}
			nodes, err := read(cmd.Context())
			var unread *unreadError
			if err != nil && !errors.As(err, &unread) {
				return err
			}
			if unread != nil {
				fmt.Fprintf(deps.Err, "their utilization was not read: %s\n", term.Clean(unread.Error()))
			}
			view.Sort(nodes)
			object, rows := samplesObject(nodes, remote && len(args) != 1, unread)
			return out.Print(deps.Out, object, rows, func(w io.Writer) error { return view.Write(w, nodes, outputOf(w, view.Wide)) })
		},
	}
	from.bind(cmd.Flags(), deps)
	from.bindSelector(cmd.Flags())
	from.bindNamespaces(cmd.Flags(), "only the GPUs that pods of this namespace hold or use")
	cmd.Flags().DurationVar(&interval, "interval", localInterval, "the time between two updates in a terminal (5s for other nodes)")
	cmd.Flags().StringVar(&view.SortBy, "sort-by", "", "the column by which rows are sorted, what is highest or worst first: "+strings.Join(topview.Keys(), ", "))
	cmd.Flags().BoolVar(&view.Processes, "processes", false, "print a row for each pod of a GPU with its processes; of several nodes how many each has")
	out.AddTo(cmd.Flags(), print.Offer{List: "items", Field: "uuid", Named: true, Wide: true, OwnSort: true})
	return cmd
}

// outputOf returns how a table is written; a wide one may be longer than the lines of a terminal.
func outputOf(w io.Writer, wide bool) term.Output {
	out := term.Of(w, os.Getenv)
	if wide {
		out.Columns = 0
	}
	return out
}

// samplesObject is what -o json prints, with its rows: the samples of one node, or a list.
func samplesObject(nodes []*v1alpha1.GPUSamples, several bool, unread *unreadError) (any, print.Rows) {
	if !several && len(nodes) == 1 {
		return nodes[0], print.Of(nodes[0].Items, func(s *v1alpha1.GPUSample) string { return "gpu/" + s.UUID })
	}
	list := &v1alpha1.GPUSamplesList{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUSamplesList), Items: []v1alpha1.GPUSamples{}}
	for _, node := range nodes {
		list.Items = append(list.Items, *node)
	}
	if unread != nil {
		list.NotRead = []string{unread.Error()}
	}
	return list, print.Of(list.Items, func(s *v1alpha1.GPUSamples) string { return "node/" + s.Node })
}

// unreadError says why the utilization of devices was not read; the samples are returned without it.
type unreadError struct{ err error }

func (e *unreadError) Error() string { return e.err.Error() }
func (e *unreadError) Unwrap() error { return e.err }

// samplesReader reads the current samples of nodes, in the order of their names.
type samplesReader func(ctx context.Context) ([]*v1alpha1.GPUSamples, error)

// samplesSource returns a reader of this node's agent, or of the API objects of nodes.
func samplesSource(from *sources, args []string) (read samplesReader, remote bool, err error) {
	here := slices.ContainsFunc(localFlags(), from.flags.Changed)
	if len(args) == 0 && (here || from.onNode() && len(from.named()) == 0) {
		if err := from.onlyHere(whatTop); err != nil {
			return nil, false, err
		}
		if from.sim != "" {
			return nil, false, usagef("top: hardware without an agent is not sampled; give --agent, or see berth gpus --sim %s", from.sim)
		}
		agent := from.onHost("agent", from.places.Agent)
		return func(ctx context.Context) ([]*v1alpha1.GPUSamples, error) {
			samples, err := readSamples(ctx, agent)
			if err != nil {
				return nil, err
			}
			return []*v1alpha1.GPUSamples{samples}, nil
		}, false, nil
	}
	if here {
		return nil, false, usagef("top %s: a node name is looked up in the API; leave it out to read the agent of this node", strings.Join(args, " "))
	}
	fleet := &remoteFleet{metrics: map[string]measured{}}
	return func(ctx context.Context) ([]*v1alpha1.GPUSamples, error) {
		nodes, _, err := gpuNodes(ctx, from, whatTop, args)
		if err != nil {
			return nil, err
		}
		api, noAPI := from.api()
		if api == nil {
			return nil, errors.New(noAPI)
		}
		return fleet.read(ctx, api, nodes)
	}, true, nil
}

// readSamples reads the samples from an agent.
func readSamples(ctx context.Context, socket string) (*v1alpha1.GPUSamples, error) {
	fail := func(err error) error {
		return &hintError{fmt.Errorf("read samples: %w", err),
			"fix: check that berth-agent runs on this node; give --agent SOCKET if its state directory is elsewhere"}
	}
	text, err := pages.Client{Socket: socket}.Get(ctx, "/debug/samples")
	if err != nil {
		return nil, fail(err)
	}
	samples := &v1alpha1.GPUSamples{}
	if err := json.Unmarshal(text, samples); err != nil {
		return nil, fail(fmt.Errorf("parse the answer of %s: %w", socket, err))
	}
	if samples.Kind != v1alpha1.KindGPUSamples {
		return nil, fail(fmt.Errorf("the answer is of kind %q, want %s", samples.Kind, v1alpha1.KindGPUSamples))
	}
	return samples, nil
}

// samplesOf returns a node's devices without measurements.
func samplesOf(node *v1alpha1.GPUNode) *v1alpha1.GPUSamples {
	samples := &v1alpha1.GPUSamples{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUSamples), Node: node.Name, Items: []v1alpha1.GPUSample{}}
	use := func(bytes int64, held []v1alpha1.Holder) v1alpha1.GPUSampleUse {
		var out v1alpha1.GPUSampleUse
		if size := float64(bytes); bytes > 0 {
			out.MemoryBytes = &size
		}
		for _, holder := range held {
			for _, pod := range holder.Pods {
				out.Pods = append(out.Pods, v1alpha1.PodSample{Namespace: holder.Namespace, Pod: pod.Name, PodUID: pod.UID, Held: true})
			}
			if len(holder.Pods) > 0 {
				continue
			}
			out.Pods = append(out.Pods, v1alpha1.PodSample{Namespace: holder.Namespace, Pod: holder.Pod,
				Container: holder.Container, PodUID: holder.PodUID, Held: true})
		}
		return out
	}
	for i := range node.Status.Devices {
		device := &node.Status.Devices[i]
		sample := v1alpha1.GPUSample{
			UUID: device.UUID, Vendor: device.Vendor, Index: device.Index, Product: device.Product, Health: evidence.HealthText(device.Health),
			Partitioned: device.MIGEnabled, GPUSampleUse: use(device.MemoryBytes, device.Holders),
		}
		for _, mig := range device.MIGDevices {
			sample.Devices = append(sample.Devices, v1alpha1.MIGSample{UUID: mig.UUID, Profile: mig.Profile,
				Index: mig.Index, Health: partHealth(mig.Health), GPUSampleUse: use(mig.MemoryBytes, mig.Holders)})
		}
		samples.Items = append(samples.Items, sample)
	}
	return samples
}

// usedIn returns a reader of the GPUs and MIG devices that pods of the namespace hold or use, and of several nodes those that have such; ""
// is all.
func usedIn(read samplesReader, namespace string, view *topview.View) samplesReader {
	if namespace == "" {
		return read
	}
	view.None = "no GPU is held or used by namespace " + namespace
	other := func(use *v1alpha1.GPUSampleUse) bool {
		return !slices.ContainsFunc(use.Pods, func(p v1alpha1.PodSample) bool { return p.Namespace == namespace })
	}
	return func(ctx context.Context) ([]*v1alpha1.GPUSamples, error) {
		nodes, err := read(ctx)
		for _, samples := range nodes {
			for i := range samples.Items {
				s := &samples.Items[i]
				s.Devices = slices.DeleteFunc(s.Devices, func(m v1alpha1.MIGSample) bool { return other(&m.GPUSampleUse) })
			}
			samples.Items = slices.DeleteFunc(samples.Items, func(s v1alpha1.GPUSample) bool { return len(s.Devices) == 0 && other(&s.GPUSampleUse) })
		}
		if view.Several = len(nodes) > 1; view.Several {
			nodes = slices.DeleteFunc(nodes, func(samples *v1alpha1.GPUSamples) bool { return len(samples.Items) == 0 })
		}
		return nodes, err
	}
}
