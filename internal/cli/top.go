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
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/node/pages"
)

const (
	// minInterval is the shortest interval between two reads.
	minInterval = 200 * time.Millisecond
)

func newTopCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top [NODE]",
		Short: "Show the utilization of a node's GPUs with their holders",
		Long: `Show the utilization and the holders of each GPU and MIG device, as the node's agent sampled
them: live in a terminal (q or ctrl-c ends it), otherwise as one table.

With NODE it shows, from any machine, the devices with their health and holders from the
node's GPUNode, and their utilization from the metrics of the agent's pod. These are read
through the API server, which requires the verb get on pods/proxy in the agent's namespace.`,
		Example: `  berth top                                 of this node
  berth top --interval 5s
  berth top node-0                          from a laptop
  berth top -o json | jq '.items[] | select(.utilization < 0.1 and .pods != null) | .uuid'`,
		Args: atMostOneNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if interval < minInterval {
				return usagef("--interval %v: want %v or more", interval, minInterval)
			}
			read, remote, err := samplesSource(&from, args)
			if err != nil {
				return err
			}
			if out.format == "table" && !remote {
				if tty := openTerminal(os.Stdin, deps.Out); tty != nil {
					return topLive(cmd.Context(), tty, deps.Out, read, interval)
				}
			}
			samples, err := read(cmd.Context())
			var unread *unreadError
			if err != nil && !errors.As(err, &unread) {
				return err
			}
			if unread != nil {
				fmt.Fprintf(deps.Err, "their utilization was not read: %s\n", term.Clean(unread.Error()))
			}
			return out.print(deps.Out, samples, func(w io.Writer) error { return topTable(w, samples) })
		},
	}
	from.bind(cmd.Flags(), deps)
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "the time between two updates in a terminal")
	out.bind(cmd.Flags())
	return cmd
}

// unreadError says why the utilization of a node's devices was not read; the samples are returned without it.
type unreadError struct{ err error }

func (e *unreadError) Error() string { return e.err.Error() }
func (e *unreadError) Unwrap() error { return e.err }

// samplesReader reads the current samples.
type samplesReader func(ctx context.Context) (*v1alpha1.GPUSamples, error)

// samplesSource returns a reader of this node's agent, or of the API objects of another node.
func samplesSource(from *sources, args []string) (read samplesReader, remote bool, err error) {
	here := slices.ContainsFunc(localFlags(), from.flags.Changed)
	if len(args) == 0 && (here || from.onNode()) {
		if from.sim != "" {
			return nil, false, usagef("top: hardware without an agent is not sampled; give --agent, or see berth gpus --sim %s", from.sim)
		}
		places, err := from.rooted()
		if err != nil {
			return nil, false, err
		}
		return func(ctx context.Context) (*v1alpha1.GPUSamples, error) { return readSamples(ctx, places.Agent) }, false, nil
	}
	if len(args) == 1 && here {
		return nil, false, usagef("top %s: a node name is looked up in the API; leave it out to read the agent of this node", args[0])
	}
	return func(ctx context.Context) (*v1alpha1.GPUSamples, error) {
		nodes, _, err := gpuNodes(ctx, from, whatTop, args)
		if err != nil {
			return nil, err
		}
		if len(nodes) != 1 {
			var names []string
			for _, node := range nodes {
				names = append(names, node.Name)
			}
			return nil, usagef("top: want the name of one node: %s", strings.Join(names, ", "))
		}
		api, noAPI := from.api()
		if api == nil {
			return nil, errors.New(noAPI)
		}
		samples, unread := remoteSamples(ctx, api, &nodes[0])
		if unread != nil {
			return samples, &unreadError{unread}
		}
		return samples, nil
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

// topTable prints a row for each GPU and each MIG device.
func topTable(w io.Writer, samples *v1alpha1.GPUSamples) error {
	if len(samples.Items) == 0 {
		_, err := fmt.Fprintln(w, "no GPUs")
		return err
	}
	var rows [][]string
	for i := range samples.Items {
		s := &samples.Items[i]
		busy := s.Utilization
		if busy == nil {
			busy = s.Active
		}
		rows = append(rows, []string{
			indexOf(s.Vendor, s.Index), s.Product, percent(busy), memoryUse(s.GPUSampleUse), number(s.TemperatureCelsius, "C"), power(s),
			s.Health, podUse(s.Pods, s.Partitioned && len(s.Devices) > 0),
		})
		for k := range s.Devices {
			m := &s.Devices[k]
			rows = append(rows, []string{
				fmt.Sprintf("%s:%d", indexOf(s.Vendor, s.Index), m.Index), "MIG " + m.Profile, percent(m.Active),
				memoryUse(m.GPUSampleUse), "", "", m.Health, podUse(m.Pods, false),
			})
		}
	}
	if err := term.Table(w, []string{"INDEX", "MODEL", "UTIL", "MEMORY", "TEMP", "POWER", "HEALTH", "HELD BY"}, rows); err != nil {
		return err
	}
	for i := range samples.Items {
		for _, trouble := range samples.Items[i].Troubles {
			if _, err := fmt.Fprintf(w, "GPU %s: %s was not read: %s\n", indexOf(samples.Items[i].Vendor, samples.Items[i].Index),
				term.Clean(trouble.Source), term.Clean(trouble.Message)); err != nil {
				return err
			}
		}
	}
	return nil
}

func percent(ratio *float64) string {
	if ratio == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *ratio*100)
}

func number(value *float64, unit string) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f %s", *value, unit)
}

func power(s *v1alpha1.GPUSample) string {
	if s.PowerWatts == nil || s.PowerLimitWatts == nil {
		return number(s.PowerWatts, "W")
	}
	return fmt.Sprintf("%.0f/%.0f W", *s.PowerWatts, *s.PowerLimitWatts)
}

// memoryUse returns used and total memory, or the one that is known.
func memoryUse(use v1alpha1.GPUSampleUse) string {
	const gib = 1 << 30
	used, whole := "-", "-"
	if use.MemoryUsedBytes != nil {
		used = fmt.Sprintf("%.1f", *use.MemoryUsedBytes/gib)
	}
	if use.MemoryBytes != nil {
		whole = fmt.Sprintf("%.0f", *use.MemoryBytes/gib)
	}
	if used == "-" && whole == "-" {
		return "-"
	}
	return used + "/" + whole + " GiB"
}

// podUse names the pods of a device, without duplicates, with the fraction of the GPU's time that each used, if known:
// "-" for none, and "" for a GPU whose holders are listed with its MIG devices.
func podUse(pods []v1alpha1.PodSample, partitioned bool) string {
	var texts []string
	for _, pod := range pods {
		text := "the host's own process"
		switch {
		case pod.Pod != "":
			text = pod.Namespace + "/" + pod.Pod
		case pod.PodUID != "":
			text = "pod " + pod.PodUID
		case pod.Held:
			text = "held by no pod"
		}
		if pod.SMUtilization != nil {
			text += " " + percent(pod.SMUtilization)
		}
		if !pod.Held {
			text += " (not given to it)"
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 && !partitioned {
		return "-"
	}
	return strings.Join(texts, ", ")
}
