package offer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

var profiles = []string{"1g.5gb", "3g.20gb", "1g.5gb+me", "1c.3g.20gb"}

// drawParts repartitions a GPU; no MIG UUID is used twice.
func drawParts(t *rapid.T, c *gpu.GPU, next *int) {
	c.MIG = gpu.MIG{Enabled: rapid.Bool().Draw(t, "mig")}
	if !c.MIG.Enabled {
		return
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "parts") {
		*next++
		c.MIG.Devices = append(c.MIG.Devices, gpu.MIGDevice{
			Partition: gpu.Partition{UUID: gpu.UUID(fmt.Sprintf("MIG-%d", *next)), Index: i, Profile: rapid.SampledFrom(profiles).Draw(t, "profile")},
		})
	}
}

func drawNode(t *rapid.T, next *int) *gpu.Snapshot {
	snapshot := &gpu.Snapshot{}
	for i := range rapid.IntRange(0, 4).Draw(t, "GPUs") {
		c := gpu.GPU{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i,
			ComputeCapability: gpu.Version{Major: 8}, MemoryBytes: 40 << 30,
		}
		drawParts(t, &c, next)
		snapshot.GPUs = append(snapshot.GPUs, c)
	}
	return snapshot
}

func drawSharing(t *rapid.T) Sharing {
	return Sharing{
		Mode:     rapid.SampledFrom([]Mode{Whole, TimeSlicing, MPS}).Draw(t, "mode"),
		Replicas: rapid.IntRange(0, 3).Draw(t, "replicas"), Rename: rapid.Bool().Draw(t, "rename"),
		MPS: gpu.MPSLimits{SingleUser: rapid.Bool().Draw(t, "single user")}, RefuseMany: rapid.Bool().Draw(t, "refuse many"),
	}
}

func drawSettings(t *rapid.T) Settings {
	settings := Settings{MIGStrategy: rapid.SampledFrom([]string{MIGNone, MIGSingle, MIGMixed}).Draw(t, "strategy")}
	for range rapid.IntRange(0, 3).Draw(t, "rules") {
		settings.GPUs = append(settings.GPUs, GPURule{
			Select: GPUSelect{Index: rapid.SliceOfN(rapid.IntRange(0, 4), 0, 2).Draw(t, "index"),
				Count: rapid.IntRange(0, 2).Draw(t, "count")},
			Exclude: rapid.IntRange(0, 4).Draw(t, "exclude") == 0, Sharing: drawSharing(t),
			API: rapid.SampledFrom([]API{DevicePlugin, DevicePlugin, DRA}).Draw(t, "API"),
		})
	}
	for range rapid.IntRange(0, 2).Draw(t, "MIG rules") {
		settings.MIGDevices = append(settings.MIGDevices, MIGRule{
			Select: MIGSelect{Profile: []string{rapid.SampledFrom(append(profiles, "*")).Draw(t, "pattern")},
				Count: rapid.IntRange(0, 2).Draw(t, "count")},
			Sharing: drawSharing(t),
		})
	}
	return settings
}

// keysOf returns all devices of a node, in a fixed order.
func keysOf(snapshot *gpu.Snapshot) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for i := range snapshot.GPUs {
		c := &snapshot.GPUs[i]
		keys = append(keys, whole(c.UUID))
		for j := range c.MIG.Devices {
			keys = append(keys, gpu.DeviceKey{GPU: c.UUID, MIG: c.MIG.Devices[j].UUID})
		}
	}
	return keys
}

// shareHardware reports whether two devices overlap; it is written without the code under test.
func shareHardware(a, b gpu.DeviceKey) bool {
	if a.GPU != b.GPU {
		return false
	}
	return a.MIG == "" || b.MIG == "" || a.MIG == b.MIG
}

// find returns the unit of a device; zero when there is none.
func find(units []Unit, key gpu.DeviceKey) Unit {
	for _, unit := range units {
		if unit.Key == key {
			return unit
		}
	}
	return Unit{}
}

// checkShape checks the properties of every list of units in force.
func checkShape(t *rapid.T, snapshot *gpu.Snapshot, units []Unit) {
	keys := keysOf(snapshot)
	last := -1
	for i, unit := range units {
		at := slices.Index(keys, unit.Key)
		if at <= last {
			t.Fatalf("%v is out of order, duplicate, or not in the snapshot: %v", unit.Key, units)
		}
		last = at
		for _, other := range units[:i] {
			if shareHardware(unit.Key, other.Key) {
				t.Fatalf("%v and %v are in force on the same silicon", unit.Key, other.Key)
			}
		}
	}
}

// TestSettleProperties starts from arbitrary states, such as a file that was edited.
func TestSettleProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		next := 0
		snapshot := drawNode(t, &next)
		wanted, _ := Resolve(snapshot, drawSettings(t))
		keys := append(keysOf(snapshot), whole("GPU-lost"), gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-lost"})
		var applied []Unit
		consistent := rapid.Bool().Draw(t, "consistent")
		for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom(keys),
			func(k gpu.DeviceKey) gpu.DeviceKey { return k }).Draw(t, "applied") {
			clash := slices.ContainsFunc(applied, func(u Unit) bool { return shareHardware(u.Key, key) })
			if clash && consistent {
				continue
			}
			use := cmp.Or(find(wanted, key).Use, Use{Resource: "nvidia.com/gpu"})
			switch rapid.IntRange(0, 5).Draw(t, "change") {
			case 0:
				use.Resource = "nvidia.com/other"
			case 1:
				use.Mode = rapid.SampledFrom([]Mode{Whole, MPS}).Draw(t, "mode")
			case 2:
				use.SingleUser = !use.SingleUser
			case 3:
				use.Replicas++
			case 4:
				use.API = map[API]API{DevicePlugin: DRA, DRA: DevicePlugin}[use.API]
			}
			applied = append(applied, Unit{Key: key, Use: use, Draining: rapid.SampledFrom([]string{"", "old"}).Draw(t, "draining")})
		}
		held := map[gpu.DeviceKey][]string{}
		for _, key := range keys {
			if rapid.IntRange(0, 3).Draw(t, "held") == 0 {
				held[key] = []string{"a/" + string(key.Device())}
			}
		}
		holders := holdersIn(held)
		pending := map[gpu.UUID]string{}
		for i := range snapshot.GPUs {
			if rapid.IntRange(0, 4).Draw(t, "pending") == 0 {
				pending[snapshot.GPUs[i].UUID] = "is being changed"
			}
		}

		settled := Settle(snapshot, wanted, applied, holders, pending)

		checkShape(t, snapshot, settled)
		for _, unit := range settled {
			before, after := find(applied, unit.Key), find(wanted, unit.Key)
			reason, due := pending[unit.Key.GPU]
			switch {
			case due && (unit.Draining != reason || unit.Use != before.Use || before.Key != unit.Key):
				t.Fatalf("%v is due to change and became %v", before, unit)
			case !due && unit.Draining == "" && unit != after:
				t.Fatalf("%v is in force, and %v is wanted", unit, after)
			case !due && unit.Draining != "" && (unit.Use != before.Use || before.Key != unit.Key || len(holders(unit.Key)) == 0):
				t.Fatalf("%v became %v, held by %v", before, unit, holders(unit.Key))
			}
		}
		for _, unit := range wanted {
			_, due := pending[unit.Key.GPU]
			waits := slices.ContainsFunc(settled, func(u Unit) bool { return u.Draining != "" && shareHardware(u.Key, unit.Key) })
			if find(settled, unit.Key) != unit && !waits && !due {
				t.Fatalf("%v is wanted, and nothing is in its way", unit)
			}
		}
		for _, before := range applied {
			here := slices.Contains(keysOf(snapshot), before.Key)
			now := find(settled, before.Key)
			if consistent && here && len(holders(before.Key)) > 0 &&
				(now.Use.API != before.Use.API || now.Use.Resource != before.Use.Resource || now.Use.Mode != before.Use.Mode || now.Use.SingleUser != before.Use.SingleUser) {
				t.Fatalf("%v is held, and became %v", before, now)
			}
		}
		if len(held)+len(pending) == 0 && !slices.Equal(settled, wanted) {
			t.Fatalf("nothing is held, and %v is in force instead of %v", settled, wanted)
		}
		if again := Settle(snapshot, wanted, settled, holders, pending); !slices.Equal(again, settled) {
			t.Fatalf("the second call changed %v to %v", settled, again)
		}
		shuffled := Settle(snapshot, rapid.Permutation(wanted).Draw(t, "wanted"),
			rapid.Permutation(applied).Draw(t, "applied"), holders, pending)
		if !slices.Equal(shuffled, settled) {
			t.Fatalf("in another order %v became %v", settled, shuffled)
		}
	})
}

// simNode is a simple model of a node, with pods that allocate what is advertised, an operator who changes the
// configuration, and a partitioner.
type simNode struct {
	t        *rapid.T
	snapshot *gpu.Snapshot
	settings Settings
	pending  map[gpu.UUID]string
	applied  []Unit
	// held is the use that each device had when its holder took it.
	held map[gpu.DeviceKey]Use
	next int
}

func (w *simNode) holders(key gpu.DeviceKey) []string {
	var names []string
	for at := range w.held {
		if at.GPU == key.GPU && (key.MIG == "" || at.MIG == key.MIG) {
			names = append(names, "pod/"+at.String())
		}
	}
	return names
}

func (w *simNode) heldKeys() []gpu.DeviceKey {
	return slices.SortedFunc(maps.Keys(w.held), gpu.CompareKeys)
}

// settle computes the units in force, and checks the invariants.
func (w *simNode) settle() {
	wanted, _ := Resolve(w.snapshot, w.settings)
	w.applied = Settle(w.snapshot, wanted, w.applied, w.holders, w.pending)
	checkShape(w.t, w.snapshot, w.applied)
	for key, use := range w.held {
		now := find(w.applied, gpu.DeviceKey{GPU: key.GPU, MIG: key.MIG})
		if now.Use.API != use.API || now.Use.Resource != use.Resource || now.Use.Mode != use.Mode {
			w.t.Fatalf("%v was taken as %v, and is in force as %v", key, use, now)
		}
	}
	w.checkOffers()
}

func (w *simNode) checkOffers() {
	ids := map[string]bool{}
	shares := 0
	for _, o := range Build(w.snapshot, w.applied) {
		for _, device := range o.Devices {
			shares++
			if ids[device.ID] || device.ID != DeviceID(device.Key) {
				w.t.Fatalf("device %s of %v is offered twice or has another's name", device.ID, device.Key)
			}
			ids[device.ID] = true
			unit := find(w.applied, gpu.DeviceKey{GPU: device.Key.GPU, MIG: device.Key.MIG})
			if unit.Use.API != DevicePlugin || unit.Use.Resource != o.Resource || unit.Use.Mode != device.Mode || (device.Health == gpu.Draining) != (unit.Draining != "") || device.Health.Allocatable() != (device.Reason == "") ||
				w.snapshot.GPUs[device.Position].UUID != device.Key.GPU || unit.Use.RefuseMany && !o.RefuseMany {
				w.t.Fatalf("%v is offered by %s as %v", unit, o.Resource, device)
			}
			for key := range w.held {
				if device.Health.Allocatable() && shareHardware(device.Key, key) && device.Key.MIG != key.MIG {
					w.t.Fatalf("%v is offered while %v of it is held", device.Key, key)
				}
			}
		}
	}
	want := 0
	for _, unit := range w.applied {
		if unit.Use.API == DevicePlugin {
			want += max(1, unit.Use.Replicas)
		}
	}
	if shares != want {
		w.t.Fatalf("%d devices are offered of %d", shares, want)
	}
}

// TestSettleOverTime runs random sequences of events on a node.
func TestSettleOverTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &simNode{t: t, held: map[gpu.DeviceKey]Use{}, pending: map[gpu.UUID]string{}}
		w.snapshot = drawNode(t, &w.next)
		w.settle()
		drawGPU := func(t *rapid.T) *gpu.GPU {
			if len(w.snapshot.GPUs) == 0 {
				t.Skip("no GPUs")
			}
			return &w.snapshot.GPUs[rapid.IntRange(0, len(w.snapshot.GPUs)-1).Draw(t, "GPU")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { w.t = t; w.settle() },
			"configure": func(t *rapid.T) {
				w.settings = drawSettings(t)
				w.settings.Changing = w.pending
			},
			"take": func(t *rapid.T) {
				var free []Device
				for _, o := range Build(w.snapshot, w.applied) {
					for _, device := range o.Devices {
						if _, held := w.held[device.Key]; !held && device.Health.Allocatable() {
							free = append(free, device)
						}
					}
				}
				if len(free) == 0 {
					t.Skip("nothing is free")
				}
				key := rapid.SampledFrom(free).Draw(t, "device").Key
				w.held[key] = find(w.applied, gpu.DeviceKey{GPU: key.GPU, MIG: key.MIG}).Use
			},
			"claim": func(t *rapid.T) {
				var free []Unit
				for _, unit := range w.applied {
					if unit.Use.API == DRA && unit.Draining == "" && len(w.holders(unit.Key)) == 0 {
						free = append(free, unit)
					}
				}
				if len(free) == 0 {
					t.Skip("nothing is free")
				}
				unit := rapid.SampledFrom(free).Draw(t, "unit")
				w.held[unit.Key] = unit.Use
			},
			"end": func(t *rapid.T) {
				if len(w.held) == 0 {
					t.Skip("nothing is held")
				}
				delete(w.held, rapid.SampledFrom(w.heldKeys()).Draw(t, "key"))
			},
			"plan": func(t *rapid.T) { w.pending[drawGPU(t).UUID] = "is to be partitioned" },
			"partition": func(t *rapid.T) {
				c := drawGPU(t)
				if _, due := w.pending[c.UUID]; !due || len(w.holders(whole(c.UUID))) > 0 {
					t.Skip("not due, or held")
				}
				drawParts(t, c, &w.next)
			},
			"done": func(t *rapid.T) { delete(w.pending, drawGPU(t).UUID) },
			"restart": func(t *rapid.T) {
				blob, err := json.Marshal(w.applied)
				if err != nil {
					t.Fatal(err)
				}
				before := w.applied
				w.applied = nil
				if err := json.Unmarshal(blob, &w.applied); err != nil {
					t.Fatal(err)
				}
				if diff := gocmp.Diff(before, w.applied); diff != "" {
					t.Fatalf("what was kept differs (-before +after):\n%s", diff)
				}
			},
		})
		clear(w.held)
		clear(w.pending)
		w.settle()
		if wanted, _ := Resolve(w.snapshot, w.settings); !slices.Equal(w.applied, wanted) {
			t.Fatalf("at the end of the day %v is in force instead of %v", w.applied, wanted)
		}
	})
}

// TestResolveProperties compares the result with an independent evaluation of the settings.
func TestResolveProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		next := 0
		snapshot, settings := drawNode(t, &next), drawSettings(t)
		units, problems := Resolve(snapshot, settings)
		checkShape(t, snapshot, units)
		for i, problem := range problems {
			if problem.Code == "" || problem.Message == "" || slices.Contains(problems[:i], problem) {
				t.Fatalf("problem %d is empty or a duplicate: %v", i, problems)
			}
		}
		decided := DecidingRules(snapshot, settings.GPUs)
		for i := range snapshot.GPUs {
			c := &snapshot.GPUs[i]
			rule, ok := decided[c.UUID]
			if want := firstRule(snapshot, settings.GPUs, i); want != rule && ok || ok != (want >= 0) {
				t.Fatalf("rule %d (%v) decides about %s, not %d", rule, ok, c.UUID, want)
			}
			parted := c.MIG.Enabled && settings.MIGStrategy != MIGNone
			excluded := ok && settings.GPUs[rule].Exclude
			for _, unit := range units {
				if unit.Key.GPU != c.UUID {
					continue
				}
				if excluded || parted != (unit.Key.MIG != "") {
					t.Fatalf("%v is offered of %+v", unit, c)
				}
				if use := unit.Use; CheckResource(use.Resource) != "" || (use.Mode == Whole) != (use.Replicas == 0) ||
					(use.Mode == MPS) != (use.PinnedMemoryMiB != 0) || use.Mode == MPS && c.MIG.Enabled {
					t.Fatalf("%v is invalid: %+v", unit, use)
				}
			}
		}
	})
}

// firstRule returns the rule that decides about a GPU: the first that selects it and has not reached its count.
func firstRule(snapshot *gpu.Snapshot, rules []GPURule, i int) int {
	for r, rule := range rules {
		had := 0
		for before := range i {
			if firstRule(snapshot, rules, before) == r {
				had++
			}
		}
		index := snapshot.GPUs[i].Index
		if (len(rule.Select.Index) == 0 || slices.Contains(rule.Select.Index, index)) && had < cmp.Or(rule.Select.Count, 1000) {
			return r
		}
	}
	return -1
}
