package dra

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"sigs.k8s.io/yaml"

	internal "k8s.io/kubernetes/pkg/apis/resource"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/mig/migtest"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// twoIslands returns 8 x H100 of which 0 to 3 and 4 to 7 are linked.
func twoIslands(t testing.TB) *gpu.Snapshot {
	s := scan(t, "h100x8").snapshot
	topology := gpu.NewTopology(len(s.GPUs))
	for i := range s.GPUs {
		for k := range i {
			link := s.Topology[i][k]
			if i/4 != k/4 {
				link = gpu.Link{Path: gpu.PathSystem}
			}
			topology.Set(i, k, link)
		}
	}
	s.Topology = topology
	return s
}

// indices returns the positions of whole GPUs in a snapshot.
func indices(s *gpu.Snapshot, result pool.Result, names []string) []int {
	var list []int
	for _, name := range names {
		list = append(list, slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == result.Devices[name].GPU }))
	}
	return list
}

// templateOfDocument returns the ResourceClaimTemplate of docs/dra.md, after the API server has accepted it.
func templateOfDocument(t testing.TB) *resourceapi.ResourceClaimTemplate {
	t.Helper()
	document, err := os.ReadFile("../../../docs/dra.md")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(document), "```yaml\n") {
		text, _, fenced := strings.Cut(block, "```")
		if !fenced || !strings.Contains(text, "kind: ResourceClaimTemplate") {
			continue
		}
		var template resourceapi.ResourceClaimTemplate
		if err := yaml.UnmarshalStrict([]byte(text), &template); err != nil {
			t.Fatal(err)
		}
		stored, err := create[resourceapi.ResourceClaimTemplate](resourceclaimtemplate.NewStrategy(nil), "resourceclaimtemplates", "default",
			&template, &internal.ResourceClaimTemplate{})
		if err != nil {
			t.Fatal(err)
		}
		return stored
	}
	t.Fatal("docs/dra.md has no ResourceClaimTemplate")
	return nil
}

// TestFirstFitGivesNoLinkedGPUs proves what the documentation says: with two islands of four and the GPUs 3 to 7 free, a claim for four
// gets 3 to 6, over both islands. The template of the documentation gets 4 to 7.
func TestFirstFitGivesNoLinkedGPUs(t *testing.T) {
	s := twoIslands(t)
	result := build(t, s, settings(s, false))
	c := newCluster(t, result.Slices)
	taken, ok := c.allocate(t, claim(request{class: pool.DefaultDriver, count: 3}))
	if got := indices(s, result, taken); !ok || !slices.Equal(got, []int{0, 1, 2}) {
		t.Fatalf("the first three are %v", got)
	}
	names, ok := c.try(t, claim(request{class: pool.DefaultDriver, count: 4}))
	if got := indices(s, result, names); !ok || !slices.Equal(got, []int{3, 4, 5, 6}) {
		t.Errorf("four without a constraint are %v; the documentation says 3 to 6", got)
	}
	linked := &resourceapi.ResourceClaim{Spec: templateOfDocument(t).Spec.Spec}
	linked.UID = "linked"
	names, ok = c.try(t, linked)
	if got := indices(s, result, names); !ok || !slices.Equal(got, []int{4, 5, 6, 7}) {
		t.Errorf("four of one island are %v, want 4 to 7", got)
	}
	if _, ok := c.allocate(t, claim(request{class: pool.DefaultDriver, count: 2})); !ok {
		t.Fatal("two more do not fit")
	}
	if names, ok := c.try(t, linked); ok {
		t.Errorf("with 5 to 7 free, four of one island are %v", indices(s, result, names))
	}
}

// TestSmallClaimsLeaveIslands allocates MIG devices and single GPUs on a node with two islands. All of them are in the first island, so
// that four linked GPUs are left.
func TestSmallClaimsLeaveIslands(t *testing.T) {
	s := twoIslands(t)
	result := build(t, s, settings(s, true))
	c := newCluster(t, result.Slices)
	for _, r := range []request{
		{class: migClass("1g.10gb"), count: 1}, {class: pool.DefaultDriver, count: 1}, {class: migClass("3g.40gb"), count: 1},
		{class: migClass("2g.20gb"), count: 3}, {class: pool.DefaultDriver, count: 1}, {class: migClass("1g.10gb"), count: 2},
	} {
		names, ok := c.allocate(t, claim(r))
		if got := indices(s, result, names); !ok || slices.Max(got) > 3 {
			t.Fatalf("%d x %s: %v on the GPUs %v", r.count, r.class, names, got)
		}
	}
	linked := &resourceapi.ResourceClaim{Spec: templateOfDocument(t).Spec.Spec}
	names, ok := c.try(t, linked)
	if got := indices(s, result, names); !ok || !slices.Equal(got, []int{4, 5, 6, 7}) {
		t.Errorf("four of one island are %v, want 4 to 7", got)
	}
}

// TestSelectors allocates with expressions about the attributes and capacities that claims are expected to use. The first healthy GPU is
// the third.
func TestSelectors(t *testing.T) {
	s := scan(t, "h100x8").snapshot
	s.GPUs[0].Health.State = gpu.NeedsReset // no claim may get it
	s.GPUs[1].Health.State = gpu.Degraded
	result := build(t, s, settings(s, true))
	attribute := func(rest string) string { return fmt.Sprintf("device.attributes[%q].%s", pool.DefaultDriver, rest) }
	for name, test := range map[string]struct {
		request request
		want    int // the index of the GPU, or -1
	}{
		"any GPU":              {request{class: pool.DefaultDriver}, 2},
		"healthy":              {request{class: pool.DefaultDriver, expressions: []string{attribute(`health == "Healthy"`)}}, 2},
		"degraded":             {request{class: pool.DefaultDriver, expressions: []string{attribute(`health == "Degraded"`)}}, 1},
		"memory":               {request{class: pool.DefaultDriver, expressions: []string{fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity("40Gi")) >= 0`, pool.DefaultDriver)}}, 2},
		"too much memory":      {request{class: pool.DefaultDriver, expressions: []string{fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity("100Gi")) >= 0`, pool.DefaultDriver)}}, -1},
		"architecture":         {request{class: pool.DefaultDriver, expressions: []string{attribute(`architecture == "Hopper"`)}}, 2},
		"another architecture": {request{class: pool.DefaultDriver, expressions: []string{attribute(`architecture == "Ampere"`)}}, -1},
		"product":              {request{class: pool.DefaultDriver, expressions: []string{attribute(`productName.contains("H100")`)}}, 2},
		"driver":               {request{class: pool.DefaultDriver, expressions: []string{attribute(`driverVersion.isGreaterThan(semver("580.0.0"))`)}}, 2},
		"compute capability":   {request{class: pool.DefaultDriver, expressions: []string{attribute(`cudaComputeCapability.compareTo(semver("9.0.0")) >= 0`)}}, 2},
		"NUMA node":            {request{class: pool.DefaultDriver, expressions: []string{`device.attributes["resource.kubernetes.io"].numaNode == 1`}}, 4},
		"MIG profile":          {request{class: migClass("2g.20gb")}, 2},
		"MIG multiprocessors":  {request{class: migClass("3g.40gb"), expressions: []string{fmt.Sprintf(`device.capacity[%q].multiprocessors.compareTo(quantity("60")) >= 0`, pool.DefaultDriver)}}, 2},
		"another GPU's MIG":    {request{class: migClass("1g.5gb")}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			test.request.count = 1
			names, ok := newCluster(t, result.Slices).try(t, claim(test.request))
			if !ok {
				names = nil
			}
			got := append(indices(s, result, names), -1)[0]
			if got != test.want {
				t.Errorf("got %v of GPU %d, want GPU %d", names, got, test.want)
			}
		})
	}
}

// TestAllocatorKeepsMIGRules allocates random claims on two GPUs until few fit, and asks the planner of MIG layouts about each answer:
// what is allocated is possible on the GPUs, and what does not fit is not.
func TestAllocatorKeepsMIGRules(t *testing.T) {
	for _, profile := range []string{"h100x8", "rtxpro6000x8"} {
		t.Run(profile, func(t *testing.T) {
			s := scan(t, profile).snapshot
			with := pool.Settings{Node: nodeName, GPUs: map[gpu.UUID]pool.Use{
				s.GPUs[0].UUID: {DynamicMIG: true}, s.GPUs[5].UUID: {DynamicMIG: true},
			}}
			result := build(t, s, with)
			c := newCluster(t, result.Slices)
			random := rand.New(rand.NewPCG(7, 8))
			names := []string{pool.DefaultDriver}
			profiles := map[string]string{}
			for _, p := range s.GPUs[0].MIG.Geometry.Profiles {
				class := "mig-" + strings.ReplaceAll(p.Name, "+", ".") + "." + pool.DefaultDriver
				names, profiles[class] = append(names, class), p.Name
			}
			granted, refused := 0, 0
			for range 40 {
				c.allocated.Clear()
				holds := map[gpu.UUID][]mig.Placed{}
				for range 14 {
					class := names[random.IntN(len(names))]
					got, ok := c.allocate(t, claim(request{class: class, count: 1}))
					if ok {
						granted++
						device := result.Devices[got[0]]
						holds[device.GPU] = append(holds[device.GPU], device.Placed)
						if !migtest.Possible(s.GPU(device.GPU), holds[device.GPU]) {
							t.Fatalf("%s beside %v", got[0], holds[device.GPU])
						}
						continue
					}
					refused++
					for id := range with.GPUs {
						if at := fits(s.GPU(id), holds[id], profiles[class]); at != nil {
							t.Fatalf("%s does not fit, and %v is free beside %v", class, *at, holds[id])
						}
					}
				}
			}
			if granted < 100 || refused < 100 {
				t.Errorf("%d granted and %d refused: the comparison proves little", granted, refused)
			}
		})
	}
}

// fits returns a placement of a profile that is possible beside others; nil when there is none. An empty profile is the whole GPU.
func fits(g *gpu.GPU, beside []mig.Placed, profile string) *mig.Placed {
	if profile == "" {
		if len(beside) == 0 {
			return &mig.Placed{}
		}
		return nil
	}
	for _, p := range mig.Placements(&g.MIG.Geometry) {
		if p.Profile == profile && migtest.Possible(g, append(slices.Clone(beside), p)) {
			return &p
		}
	}
	return nil
}

// processorTime returns what the process has used so far. On a machine with other work it says more than the time that has passed.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkAllocate measures one call of the scheduler's allocator for a node with 8 x H100 and every MIG device, all of it free. The
// last two claims do not fit; the scheduler pays their time for each node that it tries.
func BenchmarkAllocate(b *testing.B) {
	s := scan(b, "h100x8").snapshot
	result := build(b, s, settings(s, true))
	devices := len(result.Devices)
	whole, one, three := pool.DefaultDriver, migClass("1g.10gb"), migClass("3g.40gb")
	for _, test := range []struct {
		name     string
		requests []request
		fits     bool
	}{
		{"1x1g", []request{{class: one, count: 1}}, true},
		{"8x1g", []request{{class: one, count: 8}}, true},
		{"32x1g", []request{{class: one, count: 32}}, true},
		{"1xGPU", []request{{class: whole, count: 1}}, true},
		{"8xGPU", []request{{class: whole, count: 8}}, true},
		{"8-requests", slices.Repeat([]request{{class: one, count: 1}}, 8), true},
		{"32-requests", slices.Repeat([]request{{class: one, count: 1}}, 32), true},
		{"16x3g", []request{{class: three, count: 16}}, true},
		{"infeasible-7xGPU+8x1g", []request{{class: whole, count: 7}, {class: one, count: 8}}, false},
		{"infeasible-4xGPU+13x3g", []request{{class: whole, count: 4}, {class: three, count: 13}}, false},
	} {
		b.Run(test.name, func(b *testing.B) {
			c := newCluster(b, result.Slices)
			wanted := claim(test.requests...)
			c.try(b, wanted) // compiles the expressions
			before := processorTime(b)
			for b.Loop() {
				if _, ok := c.try(b, wanted); ok != test.fits {
					b.Fatalf("it fits: %v, want %v", ok, test.fits)
				}
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(devices), "devices")
		})
	}
}
