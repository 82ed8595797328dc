package inventory

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// standing is the progress of a vendor's first scan. A change to unchanged, or from scanned to excused, has no effect.
type standing int

const (
	unchanged standing = iota
	// excused: the first scan failed, or is later than its deadline.
	excused
	scanned
	withdrawn
)

// part is the contribution of one vendor to the snapshot.
type part struct {
	snapshot *gpu.Snapshot
	records  map[gpu.UUID]health.Record
	// proves is true while proof of a repair is being gathered, which the snapshot does not show.
	proves bool
	// last is the last record of the kernel log that the records follow from; 0 when that is not known.
	last uint64
	standing
}

// merger joins the parts of the vendors into the published snapshot and the file of health records.
type merger struct {
	*Inventory
	// keeper writes the file; nil where there is none.
	keeper *keeper

	mu    sync.Mutex
	parts []part
	// unclaimed are the records of an earlier process about GPUs that no scan has found yet.
	unclaimed map[gpu.UUID]health.Record
	// kept are the records that the keeper received last.
	kept map[gpu.UUID]health.Record
	// last is the last record of the kernel log that the records follow from, and marked is true when the keeper has received one.
	last   uint64
	marked bool
}

func newMerger(i *Inventory, restored map[gpu.UUID]health.Record) *merger {
	m := &merger{Inventory: i, parts: make([]part, len(i.loops)), unclaimed: maps.Clone(restored)}
	for k := range m.parts {
		m.parts[k].snapshot = &gpu.Snapshot{}
	}
	return m
}

// update replaces the part of a vendor and publishes the result. It returns whether the snapshot changed. It waits for no
// file and no hardware.
func (m *merger) update(position int, next part) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.parts[position].standing; next.standing == unchanged || next.standing == excused && last == scanned {
		next.standing = last
	}
	m.parts[position] = next
	for id := range next.records {
		delete(m.unclaimed, id)
	}
	changed := m.publish(m.join())
	m.keep(changed)
	if m.settled() && !m.ready.Is() {
		m.ready.Set()
		m.changed.Set()
	}
	return changed
}

// publish makes next the current snapshot if it differs, and signals the subscribers. It
// returns whether it did.
func (m *merger) publish(next *gpu.Snapshot) bool {
	last := m.Current()
	if Equal(last, next) {
		return false
	}
	m.current.Store(next)
	m.deps.Log.Info("Hardware changed", "change", Diff(last, next).String())
	m.changed.Set()
	m.logHealth(last, next)
	return true
}

// logHealth logs each GPU whose health state differs from that of the last snapshot; a new GPU counts as healthy before.
func (m *merger) logHealth(last, next *gpu.Snapshot) {
	before := map[gpu.UUID]gpu.State{}
	if last != nil {
		for i := range last.GPUs {
			before[last.GPUs[i].UUID] = last.GPUs[i].Health.State
		}
	}
	for i := range next.GPUs {
		g := &next.GPUs[i]
		from := cmp.Or(before[g.UUID], gpu.Healthy)
		to := cmp.Or(g.Health.State, gpu.Healthy)
		if from == to {
			continue
		}
		level := slog.LevelWarn
		if to == gpu.Healthy {
			level = slog.LevelInfo
		}
		var causes []string
		for _, cause := range g.Health.Causes {
			causes = append(causes, cause.Code)
		}
		m.deps.Log.Log(context.Background(), level, "GPU health changed",
			"gpu", g.UUID, "index", g.Index, "from", from, "to", to, "causes", strings.Join(causes, ","))
	}
}

// settled reports whether no first scan is outstanding.
func (m *merger) settled() bool {
	count := map[standing]int{}
	for i := range m.parts {
		count[m.parts[i].standing]++
	}
	return count[unchanged] == 0 && (count[scanned] > 0 || count[withdrawn] == len(m.parts))
}

// keep passes the health records to the keeper if they have changed.
func (m *merger) keep(changed bool) {
	proves := slices.ContainsFunc(m.parts, func(p part) bool { return p.proves })
	if m.keeper == nil || !changed && !proves {
		return
	}
	records := maps.Clone(m.unclaimed)
	if records == nil {
		records = map[gpu.UUID]health.Record{}
	}
	for _, p := range slices.Backward(m.parts) {
		maps.Copy(records, p.records)
		m.last = max(m.last, p.last)
	}
	if reflect.DeepEqual(records, m.kept) && (m.marked || m.last == 0) {
		return
	}
	m.kept, m.marked = records, m.last > 0
	file := healthFile(m.deps.Keep, m.deps.BootID)
	if m.last > 0 {
		file.Mark = strconv.FormatUint(m.last, 10)
	}
	blob, err := file.Encode(records)
	if err != nil {
		m.deps.Log.Error("Could not store the health of GPUs; a restart would lose their faults", "error", err)
		return
	}
	m.keeper.keep(blob)
}

// owner returns a function that names the vendor before position that has reported a GPU or a partition; "" for none.
func (m *merger) owner(position int) func(gpu.UUID) string {
	return func(id gpu.UUID) string {
		m.mu.Lock()
		defer m.mu.Unlock()
		for k := range position {
			if found, _ := m.parts[k].snapshot.Device(id); found != nil {
				return m.loops[k].traits.Title
			}
		}
		return ""
	}
}

// join returns the snapshot of all vendors.
func (m *merger) join() *gpu.Snapshot {
	if len(m.parts) == 1 {
		return m.parts[0].snapshot
	}
	out := &gpu.Snapshot{}
	var blocks []*gpu.Snapshot
	taken := map[gpu.UUID]string{}
	for k := range m.parts {
		block, title := m.parts[k].snapshot, m.loops[k].traits.Title
		for _, fault := range block.Faults {
			fault.Message = title + ": " + fault.Message
			out.Faults = append(out.Faults, fault)
		}
		out.Vendors = append(out.Vendors, block.Vendors...)
		if id, first := clash(block, taken); first != "" {
			// The earlier vendor reported the GPU after this one; the next scan of this one is refused.
			out.Faults = append(out.Faults, gpu.Cause{Code: codeRefused, Message: fmt.Sprintf("%s: none of its GPUs is shown: %s is a GPU of %s", title, id, first)})
			continue
		}
		for i := range block.GPUs {
			taken[block.GPUs[i].UUID] = title
		}
		blocks = append(blocks, block)
	}
	slices.SortFunc(out.Vendors, func(a, b gpu.VendorState) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(out.Faults, health.CompareCauses)
	slices.SortStableFunc(blocks, func(a, b *gpu.Snapshot) int { return cmp.Compare(vendorOf(a), vendorOf(b)) })
	for _, block := range blocks {
		out.GPUs = append(out.GPUs, block.GPUs...)
	}
	out.Topology = gpu.NewTopology(len(out.GPUs))
	first := 0
	for _, block := range blocks {
		for i := range block.GPUs {
			for j := range block.GPUs {
				out.Topology[first+i][first+j] = link(block, i, j)
			}
		}
		first += len(block.GPUs)
	}
	return out
}

// clash returns a GPU of a part that another part has too, and the vendor of that part.
func clash(block *gpu.Snapshot, taken map[gpu.UUID]string) (id gpu.UUID, by string) {
	for i := range block.GPUs {
		if title, is := taken[block.GPUs[i].UUID]; is {
			return block.GPUs[i].UUID, title
		}
	}
	return "", ""
}

// vendorOf returns the name of the vendor of a part.
func vendorOf(block *gpu.Snapshot) string {
	if len(block.Vendors) == 0 {
		return ""
	}
	return block.Vendors[0].Name
}
