package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/fleet"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/spf13/cobra"
)

func newGPUsCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	var view gpuView
	var watch bool
	cmd := &cobra.Command{
		Use:   "gpus [NODE...]",
		Short: "List the GPUs of the cluster, or of this node, with their holders",
		Long: `List the GPUs of all nodes, or of the given ones, with their health and the pods that hold
them, from the GPUNode objects that berth-agent publishes.

On a node without an API server, or with --node-local, it lists the node's own GPUs: their
health from the agent, their holders from the agent and the kubelet. With --sim DIR alone it
lists simulated hardware, with holders if an agent runs on it.

For many GPUs, --summary prints one screen, --group-by a row for each node, model, namespace
or resource, and --free and --unhealthy only the GPUs of that kind. A GPU is held when any
part of it is; the devices of a resource are what containers can be given: GPUs, MIG devices
and replicas. Requested is what pods request that have not ended (needs list on pods): with
NODE or -l the pods on these nodes, otherwise also those that have no node yet. Requests of
ResourceClaims are not counted.`,
		Example: `  berth gpus
  berth gpus --summary
  berth gpus --group-by namespace
  berth gpus node-0 node-1
  berth gpus -l pool=a100 -n ml             what a namespace holds on these nodes
  berth gpus -w                             and then each GPU that changes
  berth gpus --node-local                   of this node, as root
  berth gpus --sim /tmp/node                of a simulated node
  berth gpus --sort-by=.product -o wide
  berth gpus -o custom-columns=NODE:.node,GPU:.uuid,POD:.holders[*].pod
  berth gpus -o json | jq '.items[] | select(.holders == null) | .uuid'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			namespace := from.connection.Chosen()
			if err := view.check(&out, namespace); err != nil {
				return err
			}
			if watch && view != (gpuView{}) {
				return usagef("-w lists each GPU: leave out --summary, --group-by, --free and --unhealthy")
			}
			if watch {
				return followGPUs(cmd.Context(), deps, &from, &out, args)
			}
			nodes, unread, err := gpuNodes(cmd.Context(), &from, "gpus", args)
			if err != nil {
				return err
			}
			if view.counts() {
				some := len(args) > 0 || from.selector != ""
				return view.print(cmd.Context(), &from, deps.Out, &out, nodes, some, unread)
			}
			list := gpuList(nodes, unread)
			list.Items = view.filter(list.Items)
			heldIn(list, namespace)
			return out.Print(deps.Out, list, gpuRowsOf(list), func(w io.Writer) error { return view.table(w, list, &out.Flags, namespace) })
		},
	}
	from.bind(cmd.Flags(), deps)
	from.bindSelector(cmd.Flags())
	view.bind(cmd.Flags())
	bindWatch(cmd.Flags(), &watch)
	from.bindNamespaces(cmd.Flags(), "only the GPUs that pods and claims of this namespace hold")
	out.AddTo(cmd.Flags(), print.Offer{List: "items", Field: "uuid", Named: true, Wide: true})
	return cmd
}

// whatTop is the command that needs an agent's samples.
const whatTop = "top"

// gpuNodes returns the GPUNode objects of the cluster, or one built from this node's own sources, and the sources that
// were not read.
func gpuNodes(ctx context.Context, from *sources, what string, wanted []string) ([]v1alpha1.GPUNode, []trace.Unread, error) {
	if err := from.checkChoice(); err != nil {
		return nil, nil, err
	}
	api, noAPI := from.api()
	if slices.ContainsFunc(localFlags(), from.flags.Changed) {
		if err := from.onlyHere(what); err != nil {
			return nil, nil, err
		}
		return gpuNodesHere(ctx, from, what, noAPI, wanted)
	}
	if err := from.required(what, api, noAPI); err != nil {
		return nil, nil, err
	}
	if api == nil {
		return gpuNodesHere(ctx, from, what, noAPI, wanted)
	}
	nodes, err := api.ListGPUNodes(ctx)
	switch {
	case err == nil:
		if nodes, err = chosen(nodes, wanted); err == nil {
			nodes, err = selected(ctx, from, api, nodes, func(n *v1alpha1.GPUNode) string { return n.Name })
		}
		return nodes, nil, err
	case from.onNode() && len(from.named()) == 0:
		return gpuNodesHere(ctx, from, what, noAPI, wanted)
	}
	without := "berth " + what + " --node-local on the node, or --sim DIR"
	if what == whatTop {
		without = "berth top on the node"
	}
	return nil, nil, apiError(fmt.Errorf("%s: list the GPUNode objects of berth-agent: %w", what, err), "without them: "+without)
}

// gpuNodesHere returns a GPUNode built from this node's own sources, and the sources that were not read.
func gpuNodesHere(ctx context.Context, from *sources, what, noAPI string, wanted []string) ([]v1alpha1.GPUNode, []trace.Unread, error) {
	local, err := from.localGPUs(ctx)
	if err != nil {
		return nil, nil, err
	}
	if local == nil {
		alternatives := "  berth " + what + " --sim DIR                  a simulated node"
		if what == whatTop {
			// Without an agent, simulated hardware is not sampled.
			alternatives = "  berth gpus --sim DIR                 the GPUs of a simulated node, without their use"
		}
		return nil, nil, from.nothingToRead(what, noAPI, alternatives)
	}
	if local.Snapshot == nil {
		return nil, nil, noHardware(what, from.sim, local)
	}
	node := localNode(local)
	if len(wanted) > 0 && (len(wanted) > 1 || wanted[0] != node.Name) {
		return nil, nil, usagef("%s %s: what is read here is %s; leave the name out, or leave out the flags that read this machine",
			what, strings.Join(wanted, " "), orElse(node.Name, "a machine whose node name is not known"))
	}
	var missed []trace.Unread
	for _, one := range local.Unread {
		if one.Source.Kind == trace.Checkpoint || one.Source.Kind == trace.PodResources || one.Source.Kind == trace.Ledger {
			missed = append(missed, one)
		}
	}
	return []v1alpha1.GPUNode{*node}, missed, nil
}

// noHardware is the error when no GPU was found; simDir is a simulated machine's, or empty.
func noHardware(what, simDir string, local *evidence.Local) error {
	var reasons []string
	for _, one := range local.Unread {
		if one.Source.Kind == trace.Hardware || one.Source.Kind == trace.Ledger {
			reasons = append(reasons, one.Why)
		}
	}
	fix := "run it where the NVIDIA driver or a berth-agent is (--driver-root, --agent), or give --sim DIR"
	if simDir != "" {
		fix = "berth sim upgrade " + simDir + " --driver VERSION installs its driver again; after --driver-gone: berth sim clear " + simDir + " --gpu driver"
	}
	return &hintError{fmt.Errorf("%s: no GPU could be read: %s", what, strings.Join(reasons, "; ")), "fix: " + fix}
}

// chosen returns the nodes with the wanted names, or all nodes if no name is given.
func chosen(nodes []v1alpha1.GPUNode, wanted []string) ([]v1alpha1.GPUNode, error) {
	if len(wanted) == 0 {
		return nodes, nil
	}
	var names []string
	var out []v1alpha1.GPUNode
	for _, node := range nodes {
		names = append(names, node.Name)
		if slices.Contains(wanted, node.Name) {
			out = append(out, node)
		}
	}
	for _, name := range wanted {
		if slices.Contains(names, name) {
			continue
		}
		err := noSuchNode("GPUNode "+name, name, names)
		if len(names) == 0 {
			err = &hintError{err, "there are no GPUNode objects; berth-agent publishes them"}
		}
		return nil, err
	}
	return out, nil
}

// noSuchNode is the error about a name that is not among those that there are.
func noSuchNode(what, name string, names []string) error {
	err := fmt.Errorf("find %s: no such object", what)
	if near := trace.Nearest(name, names, 3); len(near) > 0 {
		return &hintError{err, "did you mean: " + strings.Join(near, ", ")}
	}
	if len(names) > 0 {
		return &hintError{err, "existing: " + strings.Join(names[:min(len(names), 10)], ", ")}
	}
	return err
}

// localNode returns a GPUNode built from the node's own sources.
func localNode(local *evidence.Local) *v1alpha1.GPUNode {
	picture := trace.Join(local.Vendors, local.Evidence)
	holdings := claimHoldings(picture)
	for i := range picture.Pods {
		pod := &picture.Pods[i]
		for _, container := range pod.Containers {
			if pod.Done() || container.State == trace.StateTerminated {
				continue
			}
			for _, device := range container.Devices {
				if len(device.Claims) > 0 {
					continue // The claim holds it.
				}
				holder := gpu.Holder{
					Kind: gpu.HolderPod, Namespace: pod.Namespace, Name: pod.Name,
					PodUID: pod.UID, Container: container.Name, Resource: device.Resource,
				}
				for _, key := range device.Keys() {
					holdings = append(holdings, gpu.Holding{Key: key, Holder: holder})
				}
			}
		}
	}
	return gpunode.Build(local.Host, gpunode.Input{Snapshot: local.Snapshot, Holdings: holdings})
}

// claimHoldings returns the devices that claims hold: according to the ledger, which does not have those for admin access, or to the
// kubelet's record where the ledger was not read.
func claimHoldings(picture *trace.Trace) []gpu.Holding {
	ledger := func(s trace.Source) bool { return s.Kind == trace.Ledger }
	read := slices.ContainsFunc(picture.Read, ledger)
	var holdings []gpu.Holding
	for i := range picture.Claims {
		claim := &picture.Claims[i]
		var pods []gpu.Pod
		for _, pod := range claim.Pods {
			pods = append(pods, gpu.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name})
		}
		for _, device := range claim.Devices {
			if device.AdminAccess || read && !slices.ContainsFunc(device.Sources, ledger) {
				continue
			}
			key := gpu.DeviceKey{GPU: device.UUID}
			at := slices.IndexFunc(picture.Devices, func(d trace.Device) bool { return d.UUID == device.UUID })
			if at >= 0 {
				key = picture.Devices[at].Keys()[0]
			}
			holdings = append(holdings, gpu.Holding{
				Key: key, Requests: device.Requests, Pods: pods,
				Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: claim.UID, Namespace: claim.Namespace, Name: claim.Name},
			})
		}
	}
	return holdings
}

func gpuList(nodes []v1alpha1.GPUNode, unread []trace.Unread) *v1alpha1.GPUList {
	list := &v1alpha1.GPUList{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUList), Items: []v1alpha1.GPUListItem{}, NotRead: unread}
	for _, node := range nodes {
		for _, device := range node.Status.Devices {
			list.Items = append(list.Items, v1alpha1.GPUListItem{Node: node.Name, GPUDevice: device})
		}
	}
	slices.SortStableFunc(list.Items, func(a, b v1alpha1.GPUListItem) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Index, b.Index))
	})
	return list
}

func gpuTable(w io.Writer, list *v1alpha1.GPUList, view *print.Flags) error {
	offered := slices.ContainsFunc(list.Items, func(d v1alpha1.GPUListItem) bool { return fleet.Advertised(d.GPUDevice) })
	table := newGPURows(offered, view.IsWide())
	for i := range list.Items {
		table.addGPU(&list.Items[i])
	}
	if err := view.Table(w, table.head, table.rows); err != nil || view.RowsOnly() {
		return err
	}
	if len(table.draining) > 0 {
		root := &term.Node{Text: "draining, not allocated to new pods:"}
		for _, text := range table.draining {
			root.Add(text, "")
		}
		if err := term.Tree(w, []*term.Node{{}, root}); err != nil {
			return err
		}
	}
	return notReadTable(w, list.NotRead)
}

// indexOf returns the index of a GPU, with the vendor on a node with GPUs of several: each vendor's indices begin at 0.
func indexOf(vendor string, index int) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d", vendor, index))
}

// partHealth returns the health of a MIG device, or "" if it is unknown.
func partHealth(health *v1alpha1.DeviceHealth) string {
	if health == nil {
		return ""
	}
	return evidence.HealthText(*health)
}

// sharingColumn returns the sharing mode with the number of replicas, and how many of them are held.
func sharingColumn(offered *v1alpha1.DeviceOffer, held []v1alpha1.Holder, partitioned bool) string {
	if offered == nil {
		return withoutOffer(partitioned)
	}
	mode := offered.Sharing
	switch mode {
	case "":
		return "-"
	case trace.ModeTimeSlicing:
		mode = "time-slicing"
	case trace.ModeMPS:
		mode = "MPS"
	}
	shares := map[int]bool{}
	for _, holder := range held {
		if holder.Share > 0 {
			shares[holder.Share] = true
		}
	}
	return fmt.Sprintf("%s x%d, %d held", mode, offered.Replicas, len(shares))
}

// memorySlices returns the placement of a MIG device on its GPU.
func memorySlices(start, size int) string {
	if size <= 1 {
		return fmt.Sprintf("slice %d", start)
	}
	return fmt.Sprintf("slices %d-%d", start, start+size-1)
}

// memory returns "-" for a GPU whose memory is unknown, such as a lost GPU.
func memory(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f GiB", float64(bytes)/(1<<30))
}

func numa(node int) string {
	if node < 0 {
		return "-"
	}
	return fmt.Sprint(node)
}

// holders returns the pods that hold a device, without duplicates: "-" for none, and "" for a GPU whose holders are
// listed with its MIG devices.
func holders(list []v1alpha1.Holder, partitioned bool) string {
	var texts []string
	for _, holder := range list {
		if text := holderText(holder); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 && !partitioned {
		return "-"
	}
	return strings.Join(texts, ", ")
}

// holderText returns the name of a holder, marks orphans, and adds the requests, the sharing and the pods of a claim.
func holderText(holder v1alpha1.Holder) string {
	held := gpunode.HolderOf(&holder)
	switch held.Kind {
	case gpu.HolderOrphan:
		return held.String() + " (orphan)"
	case gpu.HolderClaim:
		var parts []string
		if len(holder.Requests) > 0 {
			parts = append(parts, "request "+strings.Join(holder.Requests, " and "))
		}
		switch sharing := holder.Sharing; {
		case sharing == nil:
		case sharing.Mode == v1alpha1.SharingMPS:
			parts = append(parts, "MPS")
		default:
			parts = append(parts, "time slice "+string(sharing.TimeSlice))
		}
		if pods := claimPods(&holder); pods != "" {
			parts = append(parts, pods)
		}
		if len(parts) > 0 {
			return held.String() + " (" + strings.Join(parts, "; ") + ")"
		}
	}
	return held.String()
}

// claimPods names the pods of a claim.
func claimPods(holder *v1alpha1.Holder) string {
	var names []string
	for _, pod := range holder.Pods {
		names = append(names, orElse(pod.Name, pod.UID))
	}
	if holder.MorePods > 0 {
		names = append(names, fmt.Sprintf("%d more", holder.MorePods))
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "pod " + names[0]
	default:
		return "pods " + phrase.And(names)
	}
}
