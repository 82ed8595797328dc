package gangs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// TestGangsGone: of 10,000 gangs and 10,000 other pods that come and go, whatever happens to them, nothing is kept.
func TestGangsGone(t *testing.T) {
	w := newWorld()
	other := &Plugin{gangs: w.registry}
	for i := range 10_000 {
		p := one(fmt.Sprintf("gang-%d", i), 0)
		key := gangplan.Key{Namespace: "ml", Name: fmt.Sprintf("gang-%d", i)}
		group := gangplan.Key{Source: gangplan.Volcano, Namespace: "ml", Name: key.Name}
		w.setGroup(group, &gangplan.Group{Min: 1})
		w.registry.set(p)
		w.why(p)
		bound := p.DeepCopy()
		bound.Spec.NodeName = fmt.Sprintf("n%d", i%7)
		switch i % 5 {
		case 0: // It is refused, and gets a reservation or none.
			w.refuse(t, p, running("x", 8))
			w.registry.remove(p)
		case 1: // It runs, and is deleted.
			w.registry.set(bound)
			w.registry.remove(bound)
		case 2: // It runs, and succeeds.
			w.registry.set(bound)
			bound.Status.Phase = v1.PodSucceeded
			w.registry.remove(bound)
		case 3: // It is planned and held, and another pod is refused for it.
			held := bound.Spec.NodeName
			w.holds.add(&hold{pod: p.UID, gang: key, node: held, amounts: amountsOf(running("m", 8))})
			node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: held}}, all: amounts{cpu: 8000, gpus: 8}}
			blocked := running(fmt.Sprintf("blocked-%d", i), 8)
			other.lacks(&cycle{seeker: seeker{amounts: amountsOf(blocked)}}, blocked, node)
			w.registry.remove(blocked)
			w.registry.remove(p)
		case 4: // It ends pods, and its own end waits for a finalizer.
			w.refuse(t, p)
			w.take(p, &attempt{changes: w.of(p).changes}, way1(p, true, []*v1.Pod{running(fmt.Sprintf("victim-%d", i), 8)}), false, 0)
			bound.DeletionTimestamp, bound.Finalizers, bound.DeletionGracePeriodSeconds = &metav1.Time{Time: start}, []string{"example.com/keep"}, new(int64)
			w.registry.set(bound)
			w.registry.remove(bound)
		}
		w.setGroup(group, nil)
	}
	w.clock.Step(w.limits.Lost + time.Minute)
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, kept := range map[string]int{
		"gangs": len(w.gangs), "pods": len(w.ofPod), "PodGroups": len(w.groups), "holds": len(w.holds.byPod), "nodes with holds": len(w.holds.byNode), "blocked pods": len(w.blocked.pods),
		"evictions": len(w.errands.evictions), "inquiries": len(w.errands.inquiries), "pods with finalizers": len(w.finalizing),
	} {
		if kept > 0 {
			t.Errorf("%d %s are kept", kept, what)
		}
	}
	if w.line.first != nil {
		t.Error("a gang is kept that has a reservation")
	}
}

// TestPodsOfOtherGangs: a gang is not planned for the pods of a node that are held for another one.
func TestPodsOfOtherGangs(t *testing.T) {
	s := newScene(t, 1, 8, Limits{})
	first := map[string]*v1.Pod{}
	for _, gang := range []string{"a", "b"} {
		for i := range 60 {
			p := sized(gang, i, 60, 0)
			if s.set(p); i == 0 {
				first[gang] = p
			}
		}
	}
	if node := s.cycle(first["a"]); node != "n1" {
		t.Fatal(node)
	}
	want := "berth: gang ml/b waits as a whole: 60 members have to fit together, and at most 40 do"
	if text := s.cycle(first["b"]); !strings.HasPrefix(text, want) {
		t.Errorf("%s; want %s", text, want)
	}
}
