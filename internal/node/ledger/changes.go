package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// What is the kind of a change.
type What string

// What can become of a holding in Reconcile.
const (
	Confirmed What = "confirmed" // an Allocate got its pod
	Adopted   What = "adopted"   // the kubelet lists it, or may, and the ledger did not have it
	Orphaned  What = "orphaned"  // its container runs, and the kubelet does not list it
	Released  What = "released"  // the kubelet does not list it, and no process uses it
	Dropped   What = "dropped"   // an Allocate that the checkpoint never showed
	Updated   What = "updated"   // the same holder; something else about it
)

// Change is a change of the holding of one key.
type Change struct {
	What What
	// Holding is the new state, or the last one for Released and Dropped.
	Holding Holding
}

// Conflict is a device that more than one pod holds or uses. It is always an error.
type Conflict struct {
	Key  gpu.DeviceKey
	Pods []string // UIDs, or a claim's; the holder that the ledger keeps is the first
	Why  string
}

// Changes are the changes of a Reconcile, sorted by key.
type Changes struct {
	List      []Change
	Conflicts []Conflict
	// Unmarked are running containers of pods that request devices and have some from an unknown source; the devices
	// count as in use by them.
	Unmarked []Container
}

// String prints one change per line.
func (c Changes) String() string {
	var b strings.Builder
	for _, change := range c.List {
		fmt.Fprintf(&b, "%s %s\n", change.What, change.Holding)
	}
	for _, c := range c.Unmarked {
		fmt.Fprintf(&b, "unmarked %s of pod %s has %v open\n", c.Name, c.PodUID, c.Open)
	}
	for _, conflict := range c.Conflicts {
		fmt.Fprintf(&b, "conflict %s: %s: %s\n", conflict.Key, strings.Join(conflict.Pods, ", "), conflict.Why)
	}
	return b.String()
}

// String prints a holding in one line, without times.
func (h Holding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", h.Key, h.Holder.Kind)
	for _, text := range []string{h.Holder.ID, h.Holder.PodUID} {
		if text != "" {
			b.WriteString(" " + text)
		}
	}
	if h.Holder.Name != "" {
		fmt.Fprintf(&b, " (%s/%s)", h.Holder.Namespace, h.Holder.Name)
	}
	for _, part := range []struct {
		name  string
		texts []string
	}{{"requests", h.Requests}, {"pods", podUIDs(h.Pods)}, {"containers", h.Containers}, {"live", h.Live}} {
		if len(part.texts) > 0 {
			fmt.Fprintf(&b, " %s=%s", part.name, strings.Join(part.texts, ","))
		}
	}
	if h.Pending {
		b.WriteString(" pending")
	}
	if h.Uncounted {
		b.WriteString(" uncounted")
	}
	return b.String()
}

func podUIDs(pods []gpu.Pod) []string {
	var uids []string
	for _, pod := range pods {
		uids = append(uids, pod.UID)
	}
	return uids
}

func diff(before, after map[gpu.DeviceKey]*record) Changes {
	all := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.SortFunc(all, gpu.CompareKeys)
	var changes Changes
	for _, key := range slices.Compact(all) {
		old, had := before[key]
		now, has := after[key]
		switch {
		case had && has && equal(old.Holding, now.Holding):
		case had && !has && old.Pending:
			changes.add(Dropped, old.Holding)
		case had && !has:
			changes.add(Released, old.Holding)
		case now.Holder.Kind == gpu.HolderOrphan && (!had || old.Holder.Kind != gpu.HolderOrphan || old.Holder.PodUID != now.Holder.PodUID):
			changes.add(Orphaned, now.Holding)
		case had && old.Pending && !now.Pending:
			changes.add(Confirmed, now.Holding)
		case !had || !old.Holder.Same(now.Holder):
			changes.add(Adopted, now.Holding)
		default:
			changes.add(Updated, now.Holding)
		}
	}
	return changes
}

func (c *Changes) add(what What, h Holding) {
	c.List = append(c.List, Change{What: what, Holding: h.clone()})
}

func equal(a, b Holding) bool {
	return a.Key == b.Key && a.Holder == b.Holder && a.Since.Equal(b.Since) && a.Pending == b.Pending &&
		a.Uncounted == b.Uncounted && slices.Equal(a.Containers, b.Containers) && slices.Equal(a.Live,
		b.Live) && slices.Equal(a.Grants, b.Grants) &&
		a.Placement == b.Placement && a.Profile == b.Profile && a.TimeSlice == b.TimeSlice && a.MPS == b.MPS && slices.Equal(a.Requests, b.Requests) && slices.Equal(a.Pods, b.Pods)
}
