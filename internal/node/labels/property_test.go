package labels

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/labelset"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// refused are the labels that the API server would refuse, with its reasons.
func refused(labels Labels) string {
	var out strings.Builder
	for key, value := range labels {
		for _, why := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			fmt.Fprintf(&out, "%q = %q: %s\n", key, value, why)
		}
	}
	return out.String()
}

// anyText returns in some cases a product that hardware reports, and otherwise random text.
func anyText() *rapid.Generator[string] {
	return rapid.OneOf(rapid.SampledFrom([]string{"", "A", "B", h100, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", strings.Repeat("x y", 40)}), rapid.String())
}

func anyInput() *rapid.Generator[Input] {
	profiles := rapid.OneOf(rapid.SampledFrom([]string{"1g.5gb", "1g.5gb+me", "1c.3g.20gb", "2g.10gb-me", ""}), rapid.String())
	uses := rapid.Custom(func(t *rapid.T) offer.Use {
		return offer.Use{
			Resource: rapid.SampledFrom([]string{offer.DefaultResource, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"}).Draw(t, "resource"),
			Mode:     rapid.SampledFrom([]offer.Mode{offer.Whole, offer.TimeSlicing, offer.MPS}).Draw(t, "mode"),
			Replicas: rapid.IntRange(0, 4).Draw(t, "replicas"),
		}
	})
	return rapid.Custom(func(t *rapid.T) Input {
		n := rapid.IntRange(0, 6).Draw(t, "GPUs")
		in := Input{
			MIGStrategy: rapid.SampledFrom([]string{"", offer.MIGNone, offer.MIGSingle, offer.MIGMixed}).Draw(t, "strategy"),
			Host:        Host{Machine: anyText().Draw(t, "machine"), VGPU: &VGPU{Present: rapid.Bool().Draw(t, "vgpu"), DriverVersion: anyText().Draw(t, "host"), DriverBranch: anyText().Draw(t, "branch")}},
			Snapshot:    &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: anyText().Draw(t, "driver")}}}, Topology: gpu.NewTopology(n)},
		}
		for i := range n {
			g := gpu.GPU{
				Vendor: gpu.NVIDIA, UUID: uuid(i), Index: i, Product: anyText().Draw(t, "product"), ComputeCapability: gpu.Version{Major: rapid.IntRange(0, 14).Draw(t, "major")},
				Clique: gpu.Clique{ClusterUUID: anyText().Draw(t, "cluster")},
				Health: gpu.Health{State: rapid.SampledFrom([]gpu.State{"", gpu.Healthy, gpu.Degraded, gpu.Unhealthy, gpu.Gone}).Draw(t, "state")},
				MIG:    gpu.MIG{Enabled: rapid.Bool().Draw(t, "enabled")},
			}
			for k := range rapid.IntRange(0, 3).Draw(t, "devices") {
				id := gpu.UUID(fmt.Sprintf("MIG-%d-%d", i, k))
				has := rapid.IntRange(0, 3)
				g.MIG.Devices = append(g.MIG.Devices, gpu.MIGDevice{
					Partition:  gpu.Partition{UUID: id, Index: k, Profile: profiles.Draw(t, "profile"), MemoryBytes: rapid.Uint64().Draw(t, "memory")},
					Attributes: gpu.MIGAttributes{Multiprocessors: has.Draw(t, "multiprocessors"), OFAs: has.Draw(t, "OFAs")},
				})
				in.Units = append(in.Units, offer.Unit{Key: gpu.DeviceKey{GPU: g.UUID, MIG: id}, Use: uses.Draw(t, "use")})
			}
			in.Snapshot.GPUs = append(in.Snapshot.GPUs, g)
			in.Units = append(in.Units, unit(i, uses.Draw(t, "use")))
			for k := range i {
				if rapid.Bool().Draw(t, "linked") {
					in.Snapshot.Topology.Set(i, k, gpu.Link{Kind: gpu.LinkNVLink, Count: 1})
				}
			}
		}
		return in
	})
}

// TestAnyInput checks that the labels are valid whatever the driver reports, and that the order of GPUs and units does
// not matter.
func TestAnyInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := anyInput().Draw(t, "input")
		labels := build(in)
		if why := refused(labels); why != "" {
			t.Fatalf("the API server would refuse:\n%s", why)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		if diff := cmp.Diff(labels, build(shuffled(rand.New(rand.NewPCG(seed, 0)), in))); diff != "" {
			t.Fatalf("in another order (-first +then):\n%s", diff)
		}
		if diff := cmp.Diff(labels, parseText(labels.Text())); diff != "" {
			t.Fatalf("written and read (-want +got):\n%s", diff)
		}
	})
}

// TestCountsAgreeWithTwin compares the counts with a simpler computation.
func TestCountsAgreeWithTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := anyInput().Filter(func(in Input) bool { return len(in.Snapshot.GPUs) > 0 }).Draw(t, "input")
		in.MIGStrategy = offer.MIGNone
		got, want := build(in), Labels{}
		s, healthy, counts := in.Snapshot, 0, map[string]int{}
		island := make([]int, len(s.GPUs)) // the lowest GPU that responds
		for i := range s.GPUs {
			island[i] = i
			if s.GPUs[i].Health.OK() {
				healthy++
			}
			if name := labelset.Clean(s.GPUs[i].Product); name != "" && s.GPUs[i].Health.State != gpu.Gone {
				counts[name]++
			}
		}
		for range s.GPUs {
			for i := range s.GPUs {
				for k := range s.GPUs {
					if s.Topology[i][k].Count > 0 && s.GPUs[i].Health.State != gpu.Gone && s.GPUs[k].Health.State != gpu.Gone {
						island[i] = min(island[i], island[k])
					}
				}
			}
		}
		want[berthDomain+"gpu.healthy"] = fmt.Sprint(healthy)
		want[berthDomain+"gpu.unhealthy"] = fmt.Sprint(len(s.GPUs) - healthy)
		sizes, islands, largest := map[int]int{}, 0, 0
		for _, root := range island {
			sizes[root]++
		}
		for _, size := range sizes {
			if size > 1 {
				islands++
				largest = max(largest, size)
			}
		}
		if got["nvidia.com/mig.capable"] != "" { // at least one GPU responds
			want[berthDomain+"nvlink.islands"] = fmt.Sprint(islands)
			if largest > 0 {
				want[berthDomain+"nvlink.largest-island"] = fmt.Sprint(largest)
			}
		}
		most := 0
		for _, count := range counts {
			most = max(most, count)
		}
		if most > 0 {
			want["nvidia.com/gpu.count"] = fmt.Sprint(most)
		}
		for key, value := range want {
			if got[key] != value {
				t.Fatalf("%s is %q; want %q", key, got[key], value)
			}
		}
		if _, ok := got[berthDomain+"nvlink.largest-island"]; ok != (largest > 0) {
			t.Fatalf("largest island %v; want %v", got[berthDomain+"nvlink.largest-island"], largest)
		}
	})
}

// FuzzNames checks that the labels are valid for any name of a product, a profile and a machine.
func FuzzNames(f *testing.F) {
	f.Add(h100, "1g.10gb+me", "PowerEdge XE9680")
	f.Add("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "1c.3g.20gb", "To be filled by O.E.M.")
	f.Add("-._", "", "™")
	f.Add("a"+strings.Repeat("-", 80)+"b", strings.Repeat("g.", 60), "\x00\xff")
	f.Fuzz(func(t *testing.T, product, profile, machine string) {
		for _, strategy := range []string{offer.MIGNone, offer.MIGSingle, offer.MIGMixed} {
			s := gpus(product, product, "other")
			part := gpu.DeviceKey{GPU: uuid(0), MIG: "MIG-1"}
			s.GPUs[0].MIG = gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{{Partition: gpu.Partition{UUID: part.MIG, Profile: profile}}}}
			shared := offer.Use{Resource: offer.DefaultResource, Mode: offer.TimeSlicing, Replicas: 1 << 40}
			labels := build(Input{Snapshot: s, MIGStrategy: strategy, Host: Host{Machine: machine}, Units: []offer.Unit{unit(1, shared), {Key: part, Use: shared}}})
			if why := refused(labels); why != "" {
				t.Errorf("the API server would refuse:\n%s", why)
			}
			s.GPUs = s.GPUs[:1]
			if why := refused(build(Input{Snapshot: s, MIGStrategy: strategy, Units: []offer.Unit{{Key: part, Use: shared}}})); why != "" {
				t.Errorf("the API server would refuse:\n%s", why)
			}
		}
		if a, b := labelset.Clean(product), labelset.Clean(profile); a != b && labelset.Short(a, 46) == labelset.Short(b, 46) {
			t.Errorf("%q and %q have one key", product, profile)
		}
	})
}

// FuzzParse checks that a file with other content is not read as the agent's.
func FuzzParse(f *testing.F) {
	f.Add([]byte("a=b\nc=\n"))
	f.Add([]byte("a\n=\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		labels := parseText(content)
		if again := parseText(labels.Text()); !cmp.Equal(labels, again) {
			t.Errorf("read %v, written and read %v", labels, again)
		}
		if bytes.Count(content, []byte("=")) < len(labels) {
			t.Errorf("%d labels in %q", len(labels), content)
		}
	})
}
