package why

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// drawGang draws a gang on a small cluster in which all kinds of obstacles occur, and other gangs.
func drawGang(t *rapid.T, classes int) GangInput {
	first := drawInput(t)
	for i := range rapid.IntRange(0, 2).Draw(t, "more nodes") {
		drawNode(t, &first, fmt.Sprintf("m%d", i))
	}
	for i := range first.Holders {
		h := &first.Holders[i]
		h.Gang = rapid.SampledFrom([]string{"", "", "ml/a", "ml/b"}).Draw(t, "gang")
		h.Permanent = h.Permanent && h.Gang == ""
	}
	in := GangInput{Key: "ml/train", Name: "ml/train", Levels: []string{"rack"}, Domains: map[string][]string{}, Preferred: gang.Anywhere, Required: gang.Anywhere}
	for i := range first.Nodes {
		in.Domains[first.Nodes[i].Name] = []string{rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "rack")}
	}
	for c := range classes {
		one := first
		if c > 0 {
			one.Pod.Requests = []fleet.Shape{{CPU: 1000, Resource: gpuName, GPUs: 1}}
		}
		in.Classes, in.Alone = append(in.Classes, one), append(in.Alone, rapid.IntRange(0, 3).Draw(t, "alone") == 0)
	}
	if rapid.IntRange(0, 2).Draw(t, "level") == 0 {
		in.Required = rapid.IntRange(0, 1).Draw(t, "required")
		in.Preferred = in.Required
	}
	in.Min = rapid.IntRange(1, 4).Draw(t, "min")
	for i := range in.Min + rapid.IntRange(0, 1).Draw(t, "surplus") {
		in.Members = append(in.Members, GangMember{Class: i % classes})
	}
	drawPlaced(t, &in)
	return in
}

// drawPlaced makes pods on nodes the first members of the gang.
func drawPlaced(t *rapid.T, in *GangInput) {
	holders := slices.Clone(in.Classes[0].Holders)
	for i := range holders {
		if h := &holders[i]; in.Placed < len(in.Members)-1 && !h.Permanent && rapid.IntRange(0, 7).Draw(t, "placed") == 0 {
			h.Gang, in.Members[in.Placed].Node = in.Key, h.Node
			in.Placed++
		}
	}
	for c := range in.Classes {
		in.Classes[c].Holders = holders
	}
}

// asIs is the world in which one more member than there are on nodes has to fit where the least number is there.
func asIs(in *GangInput) *gangWorld {
	g := newGangWorld(in)
	if in.Placed >= in.least() {
		g.min = in.Placed + 1
	}
	return g
}

// sets calls a function with each subset of bundles.
func sets(list [][]Act, with func(acts []Act, chosen int)) {
	for bits := range 1 << len(list) {
		var acts []Act
		chosen := 0
		for i := range list {
			if bits>>i&1 == 1 {
				acts = append(acts, list[i]...)
				chosen++
			}
		}
		with(acts, chosen)
	}
}

// ofKind lists all changes of one kind: each alone, and the ends of the members of a gang together.
func ofKind(in *GangInput, kind ActKind) (list [][]Act, gangs int) {
	byGang := map[string]int{}
	of := map[string]string{}
	for i := range in.Classes[0].Holders {
		of[in.Classes[0].Holders[i].Name] = in.Classes[0].Holders[i].Gang
	}
	for _, a := range atoms(&in.Classes[0]) {
		name := of[a.Pod]
		if a.Kind != kind || name == in.Key {
			continue
		}
		if name == "" {
			list = append(list, []Act{a})
			continue
		}
		at, ok := byGang[name]
		if !ok {
			at = len(list)
			byGang[name] = at
			list = append(list, nil)
		}
		list[at] = append(list[at], a)
	}
	return list, len(byGang)
}

func weigh(acts []Act) (sum int) {
	for i := range acts {
		sum += acts[i].weight()
	}
	return sum
}

// TestGangSmallest compares the changes of one kind with all sets of such changes: the planner is asked about each.
func TestGangSmallest(t *testing.T) {
	proposed := map[ActKind]int{}
	check := func(t *rapid.T) {
		in := drawGang(t, 1)
		answer := ExplainGang(in)
		if asIs(&in).fits() || len(answer.Changes) == maxChanges {
			return
		}
		for i := range answer.Changes {
			if !asIs(&in).with(answer.Changes[i].Acts).fits() {
				t.Fatalf("with %+v it does not fit\n%+v", answer.Changes[i], in)
			}
		}
		for _, kind := range []ActKind{EndPod, Uncordon, Validate, RepairGPU, Tolerate, SelectLess} {
			list, gangs := ofKind(&in, kind)
			if len(list) > 8 {
				continue
			}
			want := -1
			sets(list, func(acts []Act, _ int) {
				if other := distinctGangs(&in, acts); other < 2 && (want < 0 || weigh(acts) < want) && asIs(&in).with(acts).fits() {
					want = weigh(acts)
				}
			})
			got := -1
			for i := range answer.Changes {
				if kinds := answer.Changes[i].kinds(); len(kinds) == 1 && kinds[0] == kind {
					got = answer.Changes[i].Weight
					proposed[kind]++
				}
			}
			if got != want {
				t.Fatalf("%s: weight %d, the smallest set has %d (of %d, %d gangs)\n%+v\n%+v", kind, got, want, len(list), gangs, in, answer)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 10 {
			check(t)
		}
	})
	for _, kind := range []ActKind{EndPod, Uncordon, RepairGPU, Tolerate, SelectLess} {
		if proposed[kind] == 0 {
			t.Errorf("no change of the kind %s was compared: %v", kind, proposed)
		}
	}
}

// distinctGangs counts the gangs that end.
func distinctGangs(in *GangInput, acts []Act) int {
	var names []string
	for _, a := range acts {
		for i := range in.Classes[0].Holders {
			if h := &in.Classes[0].Holders[i]; h.Name == a.Pod && h.Gang != "" {
				names = append(names, h.Gang)
			}
		}
	}
	return len(distinct(names))
}

// TestGangNothingToSpare checks the changes of gangs of two classes and of segments: there is one when all ends together are enough, and
// none of its acts can be left out.
func TestGangNothingToSpare(t *testing.T) {
	found := 0
	check := func(t *rapid.T) {
		in := drawGang(t, rapid.IntRange(1, 2).Draw(t, "classes"))
		if rapid.Bool().Draw(t, "segments") {
			in.Segment = gang.Segment{Size: 2, Level: 0}
			in.Required, in.Preferred = gang.Anywhere, gang.Anywhere
		}
		if _, alike := newGangWorld(&in).alike(); alike {
			return
		}
		answer := ExplainGang(in)
		if asIs(&in).fits() || len(answer.Changes) == maxChanges {
			return
		}
		list, _ := ofKind(&in, EndPod)
		at := slices.IndexFunc(answer.Changes, func(c Change) bool { return slices.Equal(c.kinds(), []ActKind{EndPod}) })
		if enough := asIs(&in).with(slices.Concat(list...)).fits(); enough != (at >= 0) {
			t.Fatalf("all ends are enough: %v, but the changes are %+v\n%+v", enough, answer.Changes, in)
		}
		if at < 0 {
			return
		}
		found++
		for _, spared := range list {
			without := slices.DeleteFunc(slices.Clone(answer.Changes[at].Acts), func(a Act) bool {
				return slices.ContainsFunc(spared, func(b Act) bool { return a.Pod == b.Pod })
			})
			if len(without) < len(answer.Changes[at].Acts) && asIs(&in).with(without).fits() {
				t.Fatalf("%v can be left out of %+v\n%+v", spared, answer.Changes[at].Acts, in)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 10 {
			check(t)
		}
	})
	if found == 0 {
		t.Error("no change was checked")
	}
}

// TestGangOthers: a gang whose members together lack pods, or another resource, says so, whatever the kind of the member that does not fit.
func TestGangOthers(t *testing.T) {
	tests := map[string]struct {
		wants func(class int) map[string]int64
		code  Code
		want  string // empty for a gang that fits
	}{
		"pods": {func(int) map[string]int64 { return map[string]int64{pods: 1} }, PodLimit,
			"The gang waits because its 24 members are 24 pods, and the nodes that they can use take 20 more. At most 20 of its 24 members fit."},
		"another resource": {func(class int) map[string]int64 { return map[string]int64{"rdma/hca": int64(1 + class)} }, OtherInUse,
			"The gang waits because its 24 members request 36 rdma/hca, and of the 40 of the nodes that they can use 30 are free. At most 20 of its 24 members fit."},
		"enough": {func(class int) map[string]int64 {
			return []map[string]int64{{"rdma/hca": 1}, {"example.com/nic": 1}}[class]
		}, Fits, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := GangInput{Key: "ml/train", Name: "ml/train", Required: gang.Anywhere, Preferred: gang.Anywhere, Min: 24}
			var list []Node
			for _, node := range []string{"n0", "n1"} {
				n := Node{Node: fleet.Empty(node, "A", 64000, 6400, 8), Kind: "kind"}
				for k := range n.GPUs {
					n.GPUs[k] = fleet.GPU{Resource: gpuName, Unit: fleet.Whole, Free: fleet.Whole, Physical: uint8(k)}
				}
				list = append(list, n)
			}
			for class, request := range []fleet.Shape{{CPU: 1, Resource: gpuName, GPUs: 1}, {CPU: 1}} {
				wants, nodes := test.wants(class), slices.Clone(list)
				for i := range nodes {
					nodes[i].Others = map[string]Other{} // A class knows what it requests.
					for name, other := range map[string]Other{pods: {All: 10, Free: 10}, "rdma/hca": {All: 20, Free: 15}, "example.com/nic": {All: 20, Free: 20}} {
						if wants[name] > 0 {
							nodes[i].Others[name] = other
						}
					}
				}
				in.Classes = append(in.Classes, Input{Pod: Pod{Requests: []fleet.Shape{request}, Others: wants}, Nodes: nodes})
				in.Alone = append(in.Alone, false)
			}
			for i := range in.Min {
				in.Members = append(in.Members, GangMember{Class: i % 2})
			}
			answer := ExplainGang(in)
			if answer.Code != test.code || test.want != "" && answer.Sentence != test.want {
				t.Errorf("%s %s; want %s %s", answer.Code, answer.Sentence, test.code, test.want)
			}
		})
	}
}

// TestGangManyKinds checks that nothing is said about how many members fit where the planner does not know it.
func TestGangManyKinds(t *testing.T) {
	in := GangInput{Key: "ml/train", Name: "ml/train", Required: gang.Anywhere, Preferred: gang.Anywhere, Min: 14}
	n := Node{Node: fleet.Empty("n0", "A", 64000, 6400, 0), Kind: "kind", Others: map[string]Other{pods: {All: 100, Free: 100}}}
	for k := range 13 {
		n.GPUs = append(n.GPUs, fleet.GPU{Resource: gpuName, Unit: fleet.Whole, Free: fleet.Whole, Physical: uint8(k)})
	}
	for i := range in.Min {
		one := Input{Pod: Pod{Requests: []fleet.Shape{{CPU: int64(i + 1), Resource: gpuName, GPUs: 1}}, Others: map[string]int64{pods: 1}}, Nodes: []Node{n}}
		in.Classes, in.Alone, in.Members = append(in.Classes, one), append(in.Alone, false), append(in.Members, GangMember{Class: i})
	}
	answer := ExplainGang(in)
	want := "The gang waits because its 14 members request 14 nvidia.com/gpu, and the cluster has 13 in all. How many of its members fit is not known: they are of too many kinds."
	if answer.Code != FewGPUs || answer.Sentence != want {
		t.Errorf("%s %s; want %s", answer.Code, answer.Sentence, want)
	}
}
