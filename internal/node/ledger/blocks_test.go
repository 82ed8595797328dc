package ledger

import (
	"fmt"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestTableAgreesWithRules compares the published table with the rules, evaluated for every holding.
func TestTableAgreesWithRules(t *testing.T) {
	resources := []string{"", "a", "b", "c"}
	var keys []gpu.DeviceKey
	for _, g := range []string{"G0", "G1"} {
		for _, device := range []string{"", "#1", "#2", "/M1", "/M1#1", "/M1#2", "/M2", "/M2#3"} {
			keys = append(keys, key(g+device))
		}
	}
	dir, run := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		l, err := Open(Deps{Path: filepath.Join(dir, fmt.Sprint(run)), BootID: "boot", Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		some := func() []gpu.DeviceKey { return rapid.SliceOfN(rapid.SampledFrom(keys), 1, 3).Draw(t, "keys") }
		name := func() string { return rapid.SampledFrom([]string{"A", "B"}).Draw(t, "name") }
		resource := func() string { return rapid.SampledFrom(resources).Draw(t, "resource") }
		t.Repeat(map[string]func(*rapid.T){
			"pod":      func(*rapid.T) { _ = l.Acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: resource()}, some()) },
			"pod too":  func(*rapid.T) { _ = l.Acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: resource()}, some()) },
			"claim":    func(*rapid.T) { _ = l.Acquire(claim(name()), some()) },
			"adopt":    func(*rapid.T) { _ = adoptOne(l, claim(name()), some()) },
			"maintain": func(*rapid.T) { _ = l.Acquire(gpu.Holder{Kind: gpu.HolderMaintenance, ID: name()}, some()) },
			"release":  func(*rapid.T) { _ = l.Release(claim(name()), nil) },
			"reconcile": func(t *rapid.T) {
				uid := name()
				view := NodeView{Assignments: []Assignment{{PodUID: uid, Container: "c", Resource: resource(), Keys: some()}}}
				if rapid.Bool().Draw(t, "alive") {
					view.Containers = []Container{{ID: "c" + uid, PodUID: uid, Name: "other", Keys: some()}}
					view.Pods = []NodePod{{UID: uid, Devices: 1}}
				}
				l.Reconcile(view)
			},
			"": func(t *rapid.T) {
				for _, key := range keys {
					for _, resource := range resources {
						checkBlock(t, l, resource, key)
					}
				}
			},
		})
	})
}

func checkBlock(t *rapid.T, l *Ledger, resource string, key gpu.DeviceKey) {
	through, unseen := map[gpu.DeviceKey]bool{}, false
	for _, h := range l.Holdings() {
		if l.inWay(&h, gpu.Holder{Kind: gpu.HolderPod, Resource: resource}, gpu.Located{Key: key}) {
			through[h.Key] = true
			counted := h.Key == key && h.Holder.Kind == gpu.HolderOrphan && !h.Uncounted && !otherUse(h.Holder.Resource, resource)
			unseen = unseen || !counted
		}
	}
	block, blocked := l.BlockedBy(resource, key)
	if blocked != (len(through) > 0) || blocked && !through[block.Through] || block.Unseen != unseen {
		t.Fatalf("%s as %q: %v, %v, but in the way are %v (unseen %v)\n%v", key, resource, block, blocked, through, unseen, l.Holdings())
	}
	if blocked && block.Kind != l.records[block.Through].Holder.Kind {
		t.Fatalf("%s as %q: %v, but that is %v", key, resource, block, l.records[block.Through].Holding)
	}
}
