package nodeview

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	// askWithin bounds everything that one Ask waits for.
	askWithin = 200 * time.Millisecond
	// askStep is the pause between two reads of what the watch of pods knows.
	askStep = 10 * time.Millisecond
	// maxTries bounds the Gets for one pod in one Ask.
	maxTries = 3
	// getsPerSecond bounds the Gets to the kubelet, which allows 100 per second to all its clients together.
	getsPerSecond = 10
)

// Ask finds out more about devices that the checkpoint lists for pods that are not known to have ended: the watch gets time to
// bring what is under way, pods that it never saw are looked for, and the kubelet is asked whether it still has the
// devices. It returns those that the kubelet has dropped.
func (n *Reader) Ask(questions []ledger.Question) []ledger.Question {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	var uids []string
	for _, q := range questions {
		uids = append(uids, q.PodUID)
	}
	resolved := make(chan struct{})
	go func() {
		defer close(resolved)
		if err := n.deps.Pods.Resolve(ctx, uids); err != nil && ctx.Err() == nil {
			n.deps.Log.Debug("Could not look for pods that the watch has not seen", "error", err)
		}
	}()
	defer func() { <-resolved }()
	var dropped []ledger.Question
	answered, unknown, tries := map[string]bool{}, map[string]bool{}, map[string]int{}
	for {
		_ = n.lookAtCgroups() // Without it the last look stands.
		n.NoteListed(append(n.listedUIDs(), uids...))
		open := false
		for _, q := range questions {
			facts := n.Pod(q.PodUID)
			switch {
			case facts.State == ledger.PodEnded || answered[q.PodUID]:
			case facts.Containers == nil:
				open, unknown[q.PodUID] = true, true // The watch may bring it.
			case knowsContainer(facts, q.All) && tries[q.PodUID] < maxTries:
				tries[q.PodUID]++
				gone, asked := n.keptByKubelet(ctx, facts, questions, q.PodUID)
				dropped = append(dropped, gone...)
				answered[q.PodUID] = asked
				open = open || !asked // The watch may bring its end.
			case !unknown[q.PodUID]:
				open = true // Of a pod with init containers alone the kubelet says nothing; the watch may bring the pod's end.
			}
		}
		if !open {
			return dropped
		}
		select {
		case <-ctx.Done():
			return dropped
		case <-n.deps.Clock.After(askStep):
		}
	}
}

func (n *Reader) listedUIDs() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var uids []string
	for uid := range n.listed {
		uids = append(uids, uid)
	}
	return uids
}

// knowsContainer tells whether PodResources shows at least one of the containers: it leaves out init containers that are
// no sidecars.
func knowsContainer(facts ledger.PodFacts, names []string) bool {
	return slices.ContainsFunc(facts.Containers, func(c ledger.PodContainer) bool { return !c.Init && slices.Contains(names, c.Name) })
}

// keptByKubelet asks the kubelet for one pod and returns the devices among the questions that it has not for that pod. The
// second result is false when there was no answer.
func (n *Reader) keptByKubelet(ctx context.Context, facts ledger.PodFacts, questions []ledger.Question, uid string) ([]ledger.Question, bool) {
	if !n.mayGet() {
		return nil, false
	}
	pod, err := n.deps.Resources.Get(ctx, facts.Namespace, facts.Name)
	if err != nil && !errors.Is(err, kubelet.ErrNoPod) {
		n.deps.Log.Debug("Could not ask the kubelet for the devices of a pod", "pod", facts.Namespace+"/"+facts.Name, "error", err)
		return nil, false
	}
	kept, some := map[string]bool{}, map[string]bool{}
	for _, container := range pod.Containers {
		for _, devices := range container.Devices {
			for _, id := range devices.IDs {
				some[devices.Resource], kept[devices.Resource+" "+id] = true, true
			}
		}
	}
	// The kubelet forgets a pod as a whole. So when it shows nothing for a container that the checkpoint lists, the
	// entries of init containers, which it never shows, are gone too.
	var dropped []ledger.Question
	for _, q := range questions {
		forgotten := knowsContainer(facts, q.All) && !some[q.Resource]
		if q.PodUID == uid && (forgotten || knowsContainer(facts, q.Containers) && !kept[q.Resource+" "+offer.DeviceID(q.Key)]) {
			dropped = append(dropped, q)
		}
	}
	return dropped, true
}

// mayGet keeps the rate of Gets.
func (n *Reader) mayGet() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.deps.Clock.Now()
	n.gets = slices.DeleteFunc(n.gets, func(at time.Time) bool { return now.Sub(at) >= time.Second })
	if len(n.gets) >= getsPerSecond {
		return false
	}
	n.gets = append(n.gets, now)
	return true
}
