package cli

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/web/board"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/whyview"
	"github.com/berth-gpu/berth/internal/core/why"
)

const (
	// evaluateEvery is the age at which reasons are evaluated again, and evaluateNew the least time between two evaluations, of which the
	// second has pods that the first did not have.
	evaluateEvery = 5 * time.Second
	evaluateNew   = time.Second
	// keepReasons is how long a reason is kept.
	keepReasons = time.Minute
)

// waitReasons are the reasons why pods wait, as far as they have been evaluated.
type waitReasons struct {
	mu         sync.Mutex
	known      map[string]waitReason // by NAMESPACE/NAME of the pod
	hidden     []why.Stop            // what the user may not read
	evaluating bool
	ended      time.Time // the last evaluation
}

type waitReason struct {
	why *v1alpha1.Why
	at  time.Time
}

func (w *waitReasons) setHidden(hidden []why.Stop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hidden = hidden
}

// begin tells whether the reasons of pods are to be evaluated now, and what the user may not read. Then end has to follow.
func (w *waitReasons) begin(now time.Time, pods []v1alpha1.BoardWaiting) (hidden []why.Stop, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evaluating || len(pods) == 0 {
		return nil, false
	}
	for i := range pods {
		known, is := w.known[keyOf(&pods[i])]
		due = due || is && now.Sub(known.at) >= evaluateEvery || !is && now.Sub(w.ended) >= evaluateNew
	}
	w.evaluating = due
	return w.hidden, due
}

// end keeps reasons, and drops those that were evaluated long ago.
func (w *waitReasons) end(now time.Time, reasons map[string]*v1alpha1.Why) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil {
		w.known = map[string]waitReason{}
	}
	maps.DeleteFunc(w.known, func(_ string, r waitReason) bool { return now.Sub(r.at) > keepReasons })
	for key, one := range reasons {
		w.known[key] = waitReason{one, now}
	}
	w.evaluating, w.ended = false, now
}

// of returns the reasons of pods that are known.
func (w *waitReasons) of(pods []v1alpha1.BoardWaiting) board.Reasons {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := board.Reasons{Pods: map[string]*v1alpha1.Why{}}
	for i := range pods {
		key := keyOf(&pods[i])
		known, is := w.known[key]
		if !is {
			continue
		}
		found.Pods[key] = known.why
		if found.Time.IsZero() || known.at.Before(found.Time) {
			found.Time = known.at
		}
	}
	return found
}

func keyOf(w *v1alpha1.BoardWaiting) string { return w.Namespace + "/" + w.Pod }

// reasons returns why the pods wait that a page shows, as far as that has been evaluated, and has it evaluated again when it is due. With
// wait it waits for that.
func (r *webReader) reasons(ctx context.Context, in *board.Input, shown []v1alpha1.BoardWaiting, wait bool) board.Reasons {
	if hidden, due := r.waits.begin(r.now(), shown); due {
		objects := whyview.Objects{Now: r.now(), Nodes: in.Nodes, GPUNodes: in.GPUNodes}
		may, ended := in.May, make(chan struct{})
		go func() {
			defer close(ended)
			defer r.lists.evaluates()()
			objects.Pods = r.podsAgain(may)
			r.waits.end(r.now(), r.evaluate(objects, hidden, shown))
		}()
		if wait {
			select {
			case <-ended:
			case <-ctx.Done():
			}
		}
	}
	return r.waits.of(shown)
}

// waitingOf returns the pods with GPUs or claims that wait for a node, those of a gang once, the oldest first.
func waitingOf(nodes []v1alpha1.GPUNode, pods []corev1.Pod) []v1alpha1.BoardWaiting {
	offered := offeredBy(nodes)
	gangs := map[gangplan.Key]int{}
	var all []v1alpha1.BoardWaiting
	for i := range pods {
		pod := &pods[i]
		if !waits(pod, offered) {
			continue
		}
		made := v1alpha1.BoardWaiting{Namespace: pod.Namespace, Name: pod.Name, Pod: pod.Name, Pods: 1, Since: pod.CreationTimestamp}
		if key, ok := gangplan.KeyOf(pod); ok {
			if at, known := gangs[key]; known {
				all[at].Pods++
				continue
			}
			gangs[key], made.Name, made.Gang = len(all), key.Name, true
		}
		all = append(all, made)
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.BoardWaiting) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// offeredBy returns the names of the resources that the nodes offer.
func offeredBy(nodes []v1alpha1.GPUNode) map[string]bool {
	names := map[string]bool{"nvidia.com/gpu": true}
	for i := range nodes {
		for k := range nodes[i].Status.Devices {
			d := &nodes[i].Status.Devices[k]
			if d.Offered != nil {
				names[d.Offered.Resource] = true
			}
			for m := range d.MIGDevices {
				if offer := d.MIGDevices[m].Offered; offer != nil {
					names[offer.Resource] = true
				}
			}
		}
	}
	return names
}

// waits tells whether a pod with GPUs or claims waits for a node. One with scheduling gates waits for something else.
func waits(pod *corev1.Pod, offered map[string]bool) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending && len(pod.Spec.SchedulingGates) == 0 &&
		wantsGPUs(pod, offered)
}

// wantsGPUs tells whether a pod requests one of the resources, or has claims.
func wantsGPUs(pod *corev1.Pod, offered map[string]bool) bool {
	return len(pod.Spec.ResourceClaims) > 0 || slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		for name, quantity := range c.Resources.Limits {
			if !quantity.IsZero() && (offered[string(name)] || strings.HasPrefix(string(name), "nvidia.com/")) {
				return true
			}
		}
		return false
	})
}

// evaluate finds why each of them waits.
func (r *webReader) evaluate(objects whyview.Objects, hidden []why.Stop, waiting []v1alpha1.BoardWaiting) map[string]*v1alpha1.Why {
	reasons := map[string]*v1alpha1.Why{}
	for i := range waiting {
		w := &waiting[i]
		at := slices.IndexFunc(objects.Pods, func(p corev1.Pod) bool { return p.Namespace == w.Namespace && p.Name == w.Pod })
		if at < 0 || r.ctx.Err() != nil {
			continue
		}
		// Each answer has notes of its own.
		one := &whyObjects{Objects: objects, client: r.api.Client, hidden: slices.Clone(hidden)}
		subject := &whySubject{title: kindPodOnly + " " + keyOf(w), kind: kindPodOnly, namespace: w.Namespace, name: w.Pod, pod: &objects.Pods[at]}
		answer, err := answerWhy(r.ctx, one, subject, &whyQuestion{kind: kindPodOnly, namespace: w.Namespace, name: w.Pod})
		if err != nil {
			answer = &v1alpha1.Why{Sentence: "The reason is not known: " + err.Error()}
		}
		reasons[keyOf(w)] = answer
	}
	return reasons
}
