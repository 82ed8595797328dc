package kubeletsync

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

const (
	// askWithin bounds the total time that one Ask waits.
	askWithin = 200 * time.Millisecond
	// unseenWithin is the same when the watch has never seen one of the pods, as directly after the agent's start: the kubelet's checkpoint
	// lists pods that were deleted before it, until the next allocation. Only the API server's list shows their end, which takes longer on
	// a busy machine.
	unseenWithin = time.Second
	// unansweredWithin is the same while the kubelet has not answered. On a busy machine an answer takes long, and more pods may end at
	// once than Gets are allowed in a second; a refusal would fail a pod whose devices the kubelet has just taken from one that has ended.
	unansweredWithin = 2 * time.Second
	// askStep is the pause between two reads of the state of the watch of pods.
	askStep = 10 * time.Millisecond
	// getStep is the pause between two Gets for one pod.
	getStep = 100 * time.Millisecond
	// getsPerSecond bounds the Gets to the kubelet, which allows 100 per second to all its clients together.
	getsPerSecond = 10
)

// Ask collects more information about devices that the checkpoint lists for pods that have not been reported as ended:
// it gives the watch time to receive events that are on their way, requests the pods that the watch has never seen, and
// asks the kubelet whether it still has the devices. It returns those that the kubelet has dropped.
func (n *Reader) Ask(questions []ledger.Question) []ledger.Question {
	var uids []string
	for _, q := range questions {
		uids = append(uids, q.PodUID)
	}
	unanswered, cancel := context.WithTimeout(context.Background(), unansweredWithin)
	defer cancel()
	ctx, cancelWatch := context.WithTimeout(unanswered, n.limit(uids))
	defer cancelWatch()
	resolved := make(chan struct{})
	go func() {
		defer close(resolved)
		if err := n.deps.Pods.Resolve(ctx, uids); err != nil && ctx.Err() == nil {
			n.deps.Log.Debug("Could not look for pods that the watch has not seen", "error", err)
		}
	}()
	defer func() {
		cancelWatch()
		<-resolved
	}()
	a := &asking{reader: n, questions: questions, answered: map[string]bool{}, unknown: map[string]bool{}, tried: map[string]time.Time{}}
	for {
		_ = n.lookAtCgroups() // Without a new look the last one remains valid.
		n.NoteListed(append(n.listedUIDs(), uids...))
		open, wait := false, ctx
		for i := range questions {
			switch a.look(unanswered, &questions[i]) {
			case openForWatch:
				open = true
			case openForKubelet:
				open, wait = true, unanswered
			}
		}
		if !open {
			return a.dropped
		}
		select {
		case <-wait.Done():
			return a.dropped
		case <-n.deps.Clock.After(askStep):
		}
	}
}

// asking is what one Ask has found so far, by the UIDs of pods.
type asking struct {
	reader    *Reader
	questions []ledger.Question
	dropped   []ledger.Question
	answered  map[string]bool // by the kubelet
	unknown   map[string]bool // to the watch
	tried     map[string]time.Time
}

// openness is what may still answer a question.
type openness int

const (
	closed openness = iota
	openForWatch
	openForKubelet
)

// look looks for the answer to a question, for which it asks the kubelet at most every getStep, and returns what may still answer it.
func (a *asking) look(ctx context.Context, q *ledger.Question) openness {
	facts := a.reader.Pod(q.PodUID)
	switch {
	case facts.State == ledger.PodEnded || a.answered[q.PodUID]:
		return closed
	case facts.Containers == nil:
		a.unknown[q.PodUID] = true
		return openForWatch // The watch may have received it by now.
	case knowsContainer(facts, q.All):
		clock := a.reader.deps.Clock
		if last, again := a.tried[q.PodUID]; !again || clock.Since(last) >= getStep {
			a.tried[q.PodUID] = clock.Now()
			gone, asked := a.reader.keptByKubelet(ctx, facts, a.questions, q.PodUID)
			a.dropped = append(a.dropped, gone...)
			a.answered[q.PodUID] = asked
		}
		if a.answered[q.PodUID] {
			return closed
		}
		return openForKubelet // The watch may have received its end by now.
	case !a.unknown[q.PodUID]:
		return openForWatch // The kubelet does not list pods with init containers alone; the watch may receive the pod's end.
	}
	return closed
}

// limit returns how long an Ask about pods may wait.
func (n *Reader) limit(uids []string) time.Duration {
	for _, uid := range uids {
		if _, state := n.deps.Pods.Pod(uid); state == podwatch.Unknown {
			return unseenWithin
		}
	}
	return askWithin
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

// knowsContainer reports whether PodResources lists at least one of the containers: it leaves out init containers that
// are not sidecars.
func knowsContainer(facts ledger.PodFacts, names []string) bool {
	return slices.ContainsFunc(facts.Containers, func(c ledger.PodContainer) bool { return !c.Init && slices.Contains(names, c.Name) })
}

// keptByKubelet asks the kubelet for one pod and returns those of the devices that it does not list for that pod. The
// second result is false when there was no response.
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
	// The kubelet forgets a pod as a whole. So when it lists nothing for a container that the checkpoint lists, the
	// entries of init containers, which it never lists, are gone too.
	var dropped []ledger.Question
	for _, q := range questions {
		forgotten := knowsContainer(facts, q.All) && !some[q.Resource]
		if q.PodUID == uid && (forgotten || knowsContainer(facts, q.Containers) && !kept[q.Resource+" "+offer.DeviceID(q.Key)]) {
			dropped = append(dropped, q)
		}
	}
	return dropped, true
}

// mayGet limits the rate of Gets.
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
