package fit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// twinRequest is a request for whole GPUs; predicate is what its selector says, in Go.
type twinRequest struct {
	count     int
	selector  string
	predicate func(d *resourceapi.Device) bool
}

// twinClaim is a random claim.
type twinClaim struct {
	requests []twinRequest
	// match is the attribute of a constraint on all requests; empty for none.
	match string
}

func text(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	attribute := d.Attributes[name]
	switch {
	case attribute.StringValue != nil:
		return *attribute.StringValue
	case attribute.IntValue != nil:
		return fmt.Sprint(*attribute.IntValue)
	}
	return ""
}

// randomClaim draws a claim of up to three requests.
func randomClaim(r *rand.Rand) twinClaim {
	selectors := []twinRequest{
		{selector: `true`, predicate: func(*resourceapi.Device) bool { return true }},
		{selector: `device.attributes["gpu.berth.dev"].architecture == "Hopper"`, predicate: func(d *resourceapi.Device) bool { return text(d, "architecture") == "Hopper" }},
		{selector: `device.attributes["gpu.berth.dev"].architecture != "Volta"`, predicate: func(d *resourceapi.Device) bool { return text(d, "architecture") != "Volta" }},
		{
			selector: `device.capacity["gpu.berth.dev"].memory.compareTo(quantity("40Gi")) >= 0`,
			predicate: func(d *resourceapi.Device) bool {
				memory := d.Capacity["memory"].Value
				return memory.Value() >= 40<<30
			},
		},
		{
			selector:  `"nvlinkIsland" in device.attributes["gpu.berth.dev"]`,
			predicate: func(d *resourceapi.Device) bool { return text(d, "nvlinkIsland") != "" },
		},
		{
			selector:  `device.attributes["resource.kubernetes.io"].?numaNode.orValue(-1) == 1`,
			predicate: func(d *resourceapi.Device) bool { return text(d, "resource.kubernetes.io/numaNode") == "1" },
		},
	}
	var made twinClaim
	for range 1 + r.IntN(3) {
		request := selectors[r.IntN(len(selectors))]
		request.count = 1 + r.IntN(4)
		made.requests = append(made.requests, request)
	}
	made.match = []string{"", "", "gpu.berth.dev/nvlinkIsland", "resource.kubernetes.io/numaNode", "gpu.berth.dev/productName"}[r.IntN(5)]
	return made
}

func (c *twinClaim) file() string {
	var out strings.Builder
	out.WriteString("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: random}\nspec:\n  devices:\n    requests:\n")
	for i, r := range c.requests {
		fmt.Fprintf(&out, "    - {name: r%d, exactly: {deviceClassName: gpu.berth.dev, count: %d, selectors: [{cel: {expression: %q}}]}}\n", i, r.count, r.selector)
	}
	if c.match != "" {
		fmt.Fprintf(&out, "    constraints: [{matchAttribute: %s}]\n", c.match)
	}
	return out.String()
}

// possible tries every assignment of free devices to the requests.
func (c *twinClaim) possible(free []*resourceapi.Device) bool {
	var slots []int
	for i, r := range c.requests {
		slots = append(slots, slices.Repeat([]int{i}, r.count)...)
	}
	used := make([]bool, len(free))
	var place func(slot, from int, value string) bool
	place = func(slot, from int, value string) bool {
		if slot == len(slots) {
			return true
		}
		if slot > 0 && slots[slot] != slots[slot-1] {
			from = 0
		}
		for i := from; i < len(free); i++ {
			if used[i] || !c.requests[slots[slot]].predicate(free[i]) {
				continue
			}
			now := text(free[i], resourceapi.QualifiedName(strings.TrimPrefix(c.match, "gpu.berth.dev/")))
			if c.match != "" && (now == "" || slot > 0 && now != value) {
				continue
			}
			used[i] = true
			done := place(slot+1, i+1, now)
			used[i] = false
			if done {
				return true
			}
		}
		return false
	}
	return place(0, 0, "")
}

// TestTwin compares the answers for random claims, on nodes of which a part is held and tainted, with a search of all assignments. What
// is said to be in the way is, and enough.
func TestTwin(t *testing.T) {
	random := rand.New(rand.NewPCG(10, 8))
	fits, codes := 0, map[v1alpha1.FitReasonCode]int{}
	const rounds = 200
	var clean []*cluster
	for _, profile := range []string{"h100x8", "mixed", "v100x8-hybrid-mesh", "a100x8-80g"} {
		clean = append(clean, newCluster(t, false, profile))
	}
	for round := range rounds {
		c := clean[round%len(clean)].copy()
		var all, free, unheld, untainted []*resourceapi.Device
		for n, name := range c.gpus["node-0"] {
			held, tainted := random.IntN(4) == 0, random.IntN(6) == 0
			if held {
				c.allocate(fmt.Sprintf("holder-%d", n), "node-0", name)
			}
			if tainted {
				c.taint("node-0", n)
			}
			for i := range c.Slices {
				for d := range c.Slices[i].Spec.Devices {
					device := &c.Slices[i].Spec.Devices[d]
					if device.Name != name {
						continue
					}
					all = append(all, device)
					if !held {
						unheld = append(unheld, device)
					}
					if !tainted {
						untainted = append(untainted, device)
					}
					if !held && !tainted {
						free = append(free, device)
					}
				}
			}
		}
		claim := randomClaim(random)
		items := c.check(t, claim.file())
		if again := c.check(t, claim.file()); fmt.Sprint(again) != fmt.Sprint(items) {
			t.Fatalf("the answer differs: %v and %v", items, again)
		}
		node := items[0].Nodes[0]
		if want := claim.possible(free); node.Fits != want || items[0].Fits != want {
			t.Fatalf("round %d: fits %v, want %v: %s\n%v", round, node.Fits, want, claim.file(), summary(items))
		}
		if node.Fits {
			fits++
			checkDevices(t, &claim, node.Devices, free)
			continue
		}
		has := map[v1alpha1.FitReasonCode]bool{}
		for _, reason := range node.Reasons {
			has[reason.Code] = true
			codes[reason.Code]++
		}
		loose := twinClaim{requests: claim.requests}
		switch {
		case len(has) == 0:
			t.Fatalf("round %d: no reason: %s", round, claim.file())
		case has[v1alpha1.FitTooFewMatch] || has[v1alpha1.FitTogether]:
			if loose.possible(all) {
				t.Fatalf("round %d: it would be possible with all devices: %s\n%v", round, claim.file(), summary(items))
			}
		case len(has) == 1 && has[v1alpha1.FitHeld]:
			if !claim.possible(untainted) {
				t.Fatalf("round %d: not possible if no device was held: %s\n%v", round, claim.file(), summary(items))
			}
		case len(has) == 1 && has[v1alpha1.FitTainted]:
			if !claim.possible(unheld) {
				t.Fatalf("round %d: not possible without taints: %s\n%v", round, claim.file(), summary(items))
			}
		case len(has) == 1 && has[v1alpha1.FitConstraint]:
			if !loose.possible(free) {
				t.Fatalf("round %d: not possible without the constraint: %s\n%v", round, claim.file(), summary(items))
			}
		default:
			if !loose.possible(all) {
				t.Fatalf("round %d: not possible without all of %v: %s\n%v", round, has, claim.file(), summary(items))
			}
		}
	}
	t.Logf("%d of %d fit; reasons: %v", fits, rounds, codes)
	if fits < rounds/5 || codes[v1alpha1.FitHeld] < 5 || codes[v1alpha1.FitTainted] < 5 || codes[v1alpha1.FitConstraint] < 5 || codes[v1alpha1.FitTooFewMatch] < 5 {
		t.Errorf("the comparison proves little")
	}
}

// copy returns a cluster that can be changed.
func (c *cluster) copy() *cluster {
	made := &cluster{Cluster: c.Cluster, gpus: c.gpus}
	made.Slices, made.Nodes, made.Classes = nil, nil, slices.Clone(c.Classes)
	for i := range c.Nodes {
		made.Nodes = append(made.Nodes, *c.Nodes[i].DeepCopy())
	}
	for i := range c.Slices {
		made.Slices = append(made.Slices, *c.Slices[i].DeepCopy())
	}
	return made
}

// checkDevices checks that each request has its devices, of those that are free.
func checkDevices(t *testing.T, claim *twinClaim, devices []v1alpha1.FitDevice, free []*resourceapi.Device) {
	t.Helper()
	used := map[string]bool{}
	for i, r := range claim.requests {
		n := 0
		for _, d := range devices {
			if d.Request != fmt.Sprintf("r%d", i) {
				continue
			}
			n++
			at := slices.IndexFunc(free, func(f *resourceapi.Device) bool { return f.Name == d.Device })
			if at < 0 || !r.predicate(free[at]) || used[d.Device] {
				t.Fatalf("request r%d has %s, which is not free, does not match or is used twice", i, d.Device)
			}
			used[d.Device] = true
		}
		if n != r.count {
			t.Fatalf("request r%d has %d devices, want %d", i, n, r.count)
		}
	}
}
