package labels

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// TestProfiles prints the labels of each simulated machine.
func TestProfiles(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			n := newNode(t, profile)
			golden.File(t, "testdata/profiles/"+profile, string(build(n.input(offer.Settings{MIGStrategy: offer.MIGMixed})).Text()))
		})
	}
}

// TestMixedIsStable checks that with two models in a node the labels are the same in each of a hundred passes, each
// with a scan of its own and GPUs and units in another order.
func TestMixedIsStable(t *testing.T) {
	n := newNode(t, "mixed")
	want := string(build(n.input(offer.Settings{})).Text())
	random := rand.New(rand.NewPCG(1, 2))
	for pass := range 100 {
		in := shuffled(random, n.input(offer.Settings{}))
		if diff := cmp.Diff(want, string(build(in).Text())); diff != "" {
			t.Fatalf("pass %d (-first +now):\n%s", pass, diff)
		}
	}
}

// shuffled returns the same input in another order.
func shuffled(random *rand.Rand, in Input) Input {
	order := random.Perm(len(in.Snapshot.GPUs))
	other := *in.Snapshot
	other.GPUs = make([]gpu.GPU, len(order))
	other.Topology = nil
	if len(in.Snapshot.Topology) == len(order) {
		other.Topology = gpu.NewTopology(len(order))
	}
	for to, from := range order {
		other.GPUs[to] = in.Snapshot.GPUs[from]
		for k := range other.Topology {
			other.Topology[to][k] = in.Snapshot.Topology[from][order[k]]
		}
	}
	units := append([]offer.Unit(nil), in.Units...)
	random.Shuffle(len(units), func(i, k int) { units[i], units[k] = units[k], units[i] })
	in.Snapshot, in.Units = &other, units
	return in
}

// TestLostGPU checks that, when a node loses a GPU, only the counts change and the labels that only that GPU had.
func TestLostGPU(t *testing.T) {
	for profile, test := range map[string]struct {
		lost int
		// want are the labels that change, without those that are removed, with their old values
		want Labels
		not  Labels
	}{
		"h100x8": {lost: 3, want: Labels{
			"nvidia.com/gpu.count": "7", "berth.dev/gpu.healthy": "7", "berth.dev/gpu.unhealthy": "1", "berth.dev/nvlink.largest-island": "7",
		}},
		"mixed": {lost: 7, want: Labels{"berth.dev/gpu.healthy": "7", "berth.dev/gpu.unhealthy": "1"}, not: Labels{
			"model.berth.dev/Tesla-T4.count": "1", "model.berth.dev/Tesla-T4.replicas": "1", "model.berth.dev/Tesla-T4.sharing-strategy": "none",
			"model.berth.dev/Tesla-T4.memory": "15360", "model.berth.dev/Tesla-T4.family": "turing",
			"model.berth.dev/Tesla-T4.compute.major": "7", "model.berth.dev/Tesla-T4.compute.minor": "5",
		}},
	} {
		t.Run(profile, func(t *testing.T) {
			n := newNode(t, profile)
			before := n.input(offer.Settings{})
			want := build(before)
			if err := n.Machine.Inject(sim.Fault{GPU: string(before.Snapshot.GPUs[test.lost].UUID), Lost: true}); err != nil {
				t.Fatal(err)
			}
			maps.Copy(want, test.want)
			for key, value := range test.not {
				if want[key] != value {
					t.Errorf("before: %s is %q; want %q", key, want[key], value)
				}
				delete(want, key)
			}
			if diff := cmp.Diff(want, build(n.input(offer.Settings{}))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPartitions prints the labels that MIG adds to those of an unpartitioned machine, or changes.
func TestPartitions(t *testing.T) {
	halves := map[int]string{0: "2g.12gb", 2: "2g.12gb"}
	for name, test := range map[string]struct {
		strategy string
		GPUs     []map[int]string // by index; nil leaves the GPU whole
		sharing  offer.Sharing
	}{
		"none":                {strategy: offer.MIGNone, GPUs: []map[int]string{halves}},
		"none all":            {strategy: offer.MIGNone, GPUs: []map[int]string{halves, halves, halves, halves}},
		"single":              {strategy: offer.MIGSingle, GPUs: []map[int]string{halves, halves, halves, halves}},
		"single shared":       {strategy: offer.MIGSingle, GPUs: []map[int]string{halves, halves, halves, halves}, sharing: offer.Sharing{Mode: offer.TimeSlicing, Replicas: 3}},
		"single without MIG":  {strategy: offer.MIGSingle},
		"single empty GPU":    {strategy: offer.MIGSingle, GPUs: []map[int]string{halves, halves, halves, {}}},
		"single whole GPU":    {strategy: offer.MIGSingle, GPUs: []map[int]string{halves}},
		"single two profiles": {strategy: offer.MIGSingle, GPUs: []map[int]string{halves, halves, halves, {0: "4g.24gb"}}},
		"mixed":               {strategy: offer.MIGMixed, GPUs: []map[int]string{{0: "1g.6gb+me", 1: "1g.6gb", 2: "2g.12gb"}, {}, halves}},
		"mixed shared":        {strategy: offer.MIGMixed, GPUs: []map[int]string{halves}, sharing: offer.Sharing{Mode: offer.TimeSlicing, Replicas: 2}},
		"mixed renamed":       {strategy: offer.MIGMixed, GPUs: []map[int]string{halves}, sharing: offer.Sharing{Mode: offer.TimeSlicing, Replicas: 2, Rename: true}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "a30x4")
			before := build(n.input(offer.Settings{MIGStrategy: offer.MIGNone}))
			snapshot := n.Scan()
			for i, places := range test.GPUs {
				if places != nil {
					n.partition(snapshot.GPUs[i].UUID, places)
				}
			}
			settings := offer.Settings{MIGStrategy: test.strategy}
			if test.sharing.Replicas > 0 {
				settings.MIGDevices = []offer.MIGRule{{Sharing: test.sharing}}
			}
			after := build(n.input(settings))
			changed := Labels{}
			for key, value := range after {
				if old, ok := before[key]; !ok || old != value {
					changed[key] = value
				}
			}
			for key := range before {
				if _, ok := after[key]; !ok {
					changed[key] = "(gone)"
				}
			}
			golden.File(t, "testdata/mig/"+name, string(changed.Text()))
		})
	}
}
