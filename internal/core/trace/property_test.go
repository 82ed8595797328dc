package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// world draws evidence of a node on which most sources agree and some do not.
func world(t *rapid.T) Evidence {
	gpus := rapid.IntRange(1, 5).Draw(t, "GPUs")
	var e Evidence
	for i := range gpus {
		e.Devices = append(e.Devices, DeviceFact{
			Source: Source{Kind: Hardware}, UUID: deviceID(i), Index: fmt.Sprint(i), Minor: i, PCI: fmt.Sprintf("0000:%02x:00.0", i),
			Nodes:   []Node{{fmt.Sprintf("/dev/nvidia%d", i), 195, int64(i)}},
			Sharing: SharingFact{Mode: rapid.SampledFrom([]string{"", ModeTimeSlicing, ModeMPS}).Draw(t, "mode"), Replicas: 4},
		})
		e.CDI = append(e.CDI, CDIFact{Source: Source{Kind: CDISpec}, Name: "k/gpu=" + string(deviceID(i)), Nodes: e.Devices[i].Nodes})
	}
	set := rapid.SliceOfNDistinct(rapid.IntRange(0, gpus-1), 1, gpus, rapid.ID[int])
	for p := range rapid.IntRange(1, 3).Draw(t, "pods") {
		ref := Ref{UID: fmt.Sprintf("u%d", p), Namespace: "ns", Name: fmt.Sprintf("p%d", p)}
		if rapid.Bool().Draw(t, "named") {
			e.Pods = append(e.Pods, PodFact{Source: Source{Kind: PodSpec}, Ref: ref, Node: "node", Phase: "Running"})
		} else {
			e.Pods = append(e.Pods, PodFact{Source: Source{Kind: Directory}, Ref: ref})
		}
		truth := set.Draw(t, "truth")
		view := func(label string) []int {
			if rapid.IntRange(0, 9).Draw(t, label+" lies") == 0 {
				return set.Draw(t, label)
			}
			return truth
		}
		uid := Ref{UID: ref.UID}
		e.Assignments = append(e.Assignments,
			AssignmentFact{Source{Kind: Checkpoint}, uid, "main", "nvidia.com/gpu", names(view("checkpoint"))},
			AssignmentFact{Source{Kind: PodStatus}, ref, "main", "nvidia.com/gpu", names(view("status"))},
			AssignmentFact{Source{Kind: Ledger}, uid, "main", "nvidia.com/gpu", names(view("ledger"))})
		answer := AnswerFact{Source: Source{Kind: AllocResp}, Pod: uid, Container: "main", Resource: "nvidia.com/gpu"}
		for _, name := range names(view("answer")) {
			answer.CDINames = append(answer.CDINames, "k/gpu="+name)
		}
		e.Answers = append(e.Answers, answer)
		fact := ContainerFact{Source: Source{Kind: Process}, ID: "c" + ref.UID, Pod: uid, Container: "main", PIDs: []int{p + 1}}
		for _, i := range view("container") {
			fact.Nodes = append(fact.Nodes, e.Devices[i].Nodes...)
		}
		e.Containers = append(e.Containers, fact)
	}
	return e
}

func deviceID(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", i)) }

func names(set []int) []string {
	var out []string
	for _, i := range set {
		out = append(out, string(deviceID(i)))
	}
	return out
}

// addClaims adds claims of the pods to the evidence: each of one pod, or shared with the first, and of any devices.
func addClaims(t *rapid.T, e *Evidence) {
	for _, pod := range slices.Clone(e.Pods) {
		claim := ClaimRef{UID: "c-" + pod.Ref.UID, Namespace: "ns", Name: "claim-" + pod.Ref.UID}
		pods := []Ref{{UID: pod.Ref.UID}}
		if rapid.Bool().Draw(t, "shared") {
			pods = append(pods, Ref{UID: "u0"})
		}
		if rapid.Bool().Draw(t, "used") {
			e.Uses = append(e.Uses, UseFact{Source: pod.Source, Pod: pod.Ref, Container: "main", Requests: []string{"gpus"},
				Claim: ClaimRef{Namespace: claim.Namespace, Name: claim.Name}})
		}
		for _, kind := range []Kind{ResourceClaim, ClaimRecord, Ledger, GPUNode} {
			fact := ClaimFact{Source: Source{Kind: kind}, Claim: claim, Pods: pods}
			for i := range e.Devices {
				if rapid.Bool().Draw(t, "has device") {
					fact.Devices = append(fact.Devices, ClaimDevice{ID: string(deviceID(i)), Requests: []string{"gpus"}, Admin: rapid.Bool().Draw(t, "admin")})
				}
			}
			e.Claims = append(e.Claims, fact)
		}
	}
}

// TestJSON checks that the parts of a picture, which berth trace prints, have lists where there is nothing, and decode to what they were
// but for what JSON leaves out: the parent of a device, and the UIDs of pods with a name.
func TestJSON(t *testing.T) {
	lessDetail := cmp.Options{
		cmpopts.IgnoreFields(Device{}, "Parent"),
		cmp.Transformer("text", func(r Ref) string { return r.String() }),
		cmpopts.EquateEmpty(),
	}
	rapid.Check(t, func(t *rapid.T) {
		evidence := world(t)
		addClaims(t, &evidence)
		picture := Join(testVendors(), evidence)
		picture.Pods = append(picture.Pods, Pod{UID: "gone", Containers: []Container{}})
		type parts struct {
			Pods          []Pod
			Claims        []Claim
			Devices       []Device
			Disagreements []Disagreement
		}
		want := parts{picture.Pods, picture.Claims, picture.Devices, picture.Disagreements}
		for i := range want.Pods {
			text, err := json.Marshal(want.Pods[i])
			if err != nil || bytes.Contains(text, []byte("null")) {
				t.Fatalf("%v\n%s", err, text)
			}
		}
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got parts
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, lessDetail); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func TestOrderOfEvidenceDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		evidence := world(t)
		addClaims(t, &evidence)
		want := Join(testVendors(), evidence)
		random := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		shuffled := merge(evidence, evidence) // duplicates must not matter
		shuffle(random, shuffled.Pods)
		shuffle(random, shuffled.Assignments)
		shuffle(random, shuffled.Answers)
		shuffle(random, shuffled.Claims)
		shuffle(random, shuffled.Uses)
		shuffle(random, shuffled.Containers)
		shuffle(random, shuffled.CDI)
		shuffle(random, shuffled.Devices)
		if diff := cmp.Diff(want, Join(testVendors(), shuffled)); diff != "" {
			t.Fatalf("trace depends on the order of the evidence (-first +shuffled):\n%s", diff)
		}
	})
}

func shuffle[T any](random *rand.Rand, list []T) {
	random.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
}

// TestTwin compares the join with the simplest implementation: for each pod, every source's devices as one text, where
// different texts disagree; for each GPU, the pods that any source assigns it to, where more than one is a conflict.
func TestTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		evidence := world(t)
		said, holders := map[string]map[string]bool{}, map[gpu.UUID]map[string]bool{}
		add := func(pod string, set []string) {
			slices.Sort(set)
			if said[pod] == nil {
				said[pod] = map[string]bool{}
			}
			said[pod][strings.Join(set, ",")] = true
			for _, id := range set {
				if holders[gpu.UUID(id)] == nil {
					holders[gpu.UUID(id)] = map[string]bool{}
				}
				holders[gpu.UUID(id)][pod] = true
			}
		}
		for _, fact := range evidence.Assignments {
			add(fact.Pod.UID, slices.Clone(fact.IDs))
		}
		for _, fact := range evidence.Answers {
			add(fact.Pod.UID, strings.Split(strings.ReplaceAll(strings.Join(fact.CDINames, ","), "k/gpu=", ""), ","))
		}
		for _, fact := range evidence.Containers {
			var set []string
			for _, node := range fact.Nodes {
				set = append(set, strings.Replace(node.Path, "/dev/nvidia", "GPU-", 1))
			}
			add(fact.Pod.UID, set)
		}
		want := map[string]bool{}
		for pod, sets := range said {
			if len(sets) > 1 {
				want["differ "+pod] = true
			}
		}
		for id, pods := range holders {
			if len(pods) > 1 {
				want["holders "+string(id)] = true
			}
		}
		got := map[string]bool{}
		for _, d := range Join(testVendors(), evidence).Disagreements {
			switch d.Code {
			case DevicesDiffer:
				got["differ "+d.Pod.UID] = true
			case TwoHolders:
				got["holders "+string(d.Device)] = true
			default:
				t.Fatalf("unexpected: %s", d.sentence())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("disagreements (-twin +join):\n%s", diff)
		}
	})
}

func TestNamesByDevices(t *testing.T) {
	entry := func(pod Ref, container string, ids ...string) containerDevices {
		return containerDevices{Pod: pod, Container: container, Resource: "nvidia.com/gpu", IDs: ids}
	}
	uid := func(uid string) Ref { return Ref{UID: uid} }
	name := func(name string) Ref { return Ref{Namespace: "ns", Name: name} }
	tests := map[string]struct {
		byUID, byName []containerDevices
		want          map[string]Ref
	}{
		"the devices name the pod": {
			byUID:  []containerDevices{entry(uid("u1"), "main", "a", "b"), entry(uid("u2"), "main", "c")},
			byName: []containerDevices{entry(name("p"), "main", "b", "a")},
			want:   map[string]Ref{"u1": {UID: "u1", Namespace: "ns", Name: "p"}},
		},
		"init container is named by its pod's app container": {
			byUID:  []containerDevices{entry(uid("u1"), "init", "a"), entry(uid("u1"), "main", "a")},
			byName: []containerDevices{entry(name("p"), "main", "a")},
			want:   map[string]Ref{"u1": {UID: "u1", Namespace: "ns", Name: "p"}},
		},
		"one name for two UIDs names neither": {
			byUID:  []containerDevices{entry(uid("u1"), "main", "a"), entry(uid("u2"), "main", "a")},
			byName: []containerDevices{entry(name("p"), "main", "a")},
			want:   map[string]Ref{},
		},
		"two names for one UID name it not": {
			byUID:  []containerDevices{entry(uid("u1"), "main", "a")},
			byName: []containerDevices{entry(name("p"), "main", "a"), entry(name("q"), "main", "a")},
			want:   map[string]Ref{},
		},
		"another container is another holder": {
			byUID:  []containerDevices{entry(uid("u1"), "main", "a")},
			byName: []containerDevices{entry(name("p"), "side", "a")},
			want:   map[string]Ref{},
		},
		"no devices, no name": {
			byUID:  []containerDevices{entry(uid("u1"), "main")},
			byName: []containerDevices{entry(name("p"), "main")},
			want:   map[string]Ref{},
		},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			if diff := cmp.Diff(test.want, namesByDevices(test.byUID, test.byName)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	names := []string{"default/demo", "default/train-0", "ml/demo", "kube-system/etcd"}
	tests := map[string]struct {
		text string
		want []string
	}{
		"other namespace": {"default/demo", []string{"default/demo", "ml/demo"}},
		"a letter":        {"default/trian-0", []string{"default/train-0"}},
		"part of it":      {"train", []string{"default/train-0"}},
		"nothing like it": {"zzzzzzzzzz", nil},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			got := Nearest(test.text, names, 2)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func BenchmarkJoin(b *testing.B) {
	var e Evidence
	for i := range 16 {
		e.Devices = append(e.Devices, DeviceFact{Source: Source{Kind: Hardware}, UUID: deviceID(i), Index: fmt.Sprint(i), Minor: i})
	}
	for p := range 100 {
		ref := Ref{UID: fmt.Sprintf("u%d", p), Namespace: "ns", Name: fmt.Sprintf("p%d", p)}
		e.Pods = append(e.Pods, PodFact{Source: Source{Kind: PodSpec}, Ref: ref})
		ids := []string{fmt.Sprintf("%s::%d", deviceID(p%16), p/16)}
		for _, kind := range []Kind{Checkpoint, PodResources, PodStatus, Ledger} {
			e.Assignments = append(e.Assignments, AssignmentFact{Source{Kind: kind}, ref, "main", "nvidia.com/gpu", ids})
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		Join(testVendors(), e)
	}
}
