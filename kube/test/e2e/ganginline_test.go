package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// holdAll fills all API nodes with pods of 8 GPUs, and returns their names by node.
func (l *gangLab) holdAll(t *testing.T) map[string]string {
	t.Helper()
	var pods []*corev1.Pod
	for i := range gangNodes {
		pod := l.template(fmt.Sprintf("holder-%d", i))
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		pods = append(pods, pod)
	}
	byNode := map[string]string{}
	for _, pod := range l.run(t, pods...) {
		byNode[pod.Spec.NodeName] = pod.Name
	}
	return byNode
}

// named returns the pods whose name has a prefix, but for those that are being deleted.
func (l *gangLab) named(ctx context.Context, prefix string) (pods []*corev1.Pod, err error) {
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if pod := &list.Items[i]; strings.HasPrefix(pod.Name, prefix) && pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// message returns the message of the condition PodScheduled of a pod.
func (l *gangLab) message(ctx context.Context, name string) (string, error) {
	pod, err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Message, nil
		}
	}
	return "", nil
}

// testGangPreempts: all nodes are held by pods of a low priority. A gang that requires a rack and needs both nodes of it ends the two pods
// there, with the rights of the chart, and one that needs three nodes in a rack ends none, since no rack has three.
func (l *gangLab) testGangPreempts(t *testing.T) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "gang-urgent"}, Value: 1000}
	if _, err := l.Client().SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	holders := l.holdAll(t)
	urgent := func(name string, members int) (pods []*corev1.Pod) {
		for i := range members {
			pod := ofGang(l.template(""), name, i, members, map[string]string{"berth.dev/topology-required": "rack"})
			pod.Spec.PriorityClassName = class.Name
			pods = append(pods, pod)
		}
		return pods
	}
	tooLarge := urgent("too-large", 3)
	t.Cleanup(func() { l.cleanUp(t, tooLarge...) })
	for _, pod := range tooLarge {
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	waitUntil(t, 20*time.Second, "the gang that is too large is refused", func(ctx context.Context) error {
		text, err := l.message(ctx, "too-large-0")
		if err == nil && !strings.Contains(text, "3 members have to fit in one rack, and at most 0 do") {
			err = fmt.Errorf("the condition says %q", text)
		}
		return err
	})
	pods := l.run(t, urgent("fits", 2)...)
	freed := []string{holders[pods[0].Spec.NodeName], holders[pods[1].Spec.NodeName]}
	slices.Sort(freed)
	left, err := l.named(t.Context(), "holder-")
	if err != nil {
		t.Fatal(err)
	}
	var gone []string
	for _, name := range holders {
		if !slices.ContainsFunc(left, func(pod *corev1.Pod) bool { return pod.Name == name }) {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	if !slices.Equal(gone, freed) {
		t.Errorf("pods %v have ended; want %v, on the nodes of the gang", gone, freed)
	}
	events, err := l.Client().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Preempted"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range freed {
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == name && strings.HasPrefix(e.Message, "Preempted by gang default/fits on node ")
		}) {
			t.Errorf("no event says that %s was preempted by the gang", name)
		}
	}
}

// jobs are small pods of which some wait at any time: one that has run for a while ends, and another one is created. Every second one
// has a short deadline.
type jobs struct {
	*gangLab
	mu    sync.Mutex
	bound map[string]time.Time
}

const (
	jobRuns                     = 3 * time.Second
	longDeadline, shortDeadline = 40, 5
)

// run keeps the stream going until the context ends, and deletes the jobs then.
func (j *jobs) run(ctx context.Context, t *testing.T) {
	created := 0
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		pods, err := j.named(ctx, "small-")
		if err != nil {
			continue
		}
		waiting := 0
		for _, pod := range pods {
			if pod.Spec.NodeName == "" {
				waiting++
			} else if j.seen(pod.Name) > jobRuns {
				_ = j.Client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			}
		}
		for ; waiting < 6; waiting++ {
			created++
			if _, err := j.CreatePod(ctx, j.job(created)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}
	after := context.WithoutCancel(ctx)
	pods, err := j.named(after, "small-")
	if err != nil {
		t.Error(err)
	}
	for _, pod := range pods {
		if err := j.Client().CoreV1().Pods(pod.Namespace).Delete(after, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
}

// seen returns how long ago a job was seen on a node first.
func (j *jobs) seen(name string) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.bound[name].IsZero() {
		j.bound[name] = time.Now()
	}
	return time.Since(j.bound[name])
}

// since returns how many jobs were bound after a time.
func (j *jobs) since(at time.Time) (count int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, bound := range j.bound {
		if bound.After(at) {
			count++
		}
	}
	return count
}

func (j *jobs) job(number int) *corev1.Pod {
	pod := j.template(fmt.Sprintf("small-%d", number))
	requestGPUs(&pod.Spec.Containers[0], 2)
	deadline := int64(longDeadline)
	if number%2 == 0 {
		deadline = shortDeadline
	}
	pod.Spec.RestartPolicy, pod.Spec.ActiveDeadlineSeconds, pod.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, &deadline, new(int64)
	return pod
}

// testGangReserved: a gang of 64 GPUs, all that there are, starts under a stream of small jobs, by the time that its reservation says. Jobs
// with a short deadline run before that on the reserved nodes.
func (l *gangLab) testGangReserved(t *testing.T) {
	j := &jobs{gangLab: l, bound: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { j.run(ctx, t) })
	stop := sync.OnceFunc(func() { cancel(); group.Wait() })
	t.Cleanup(stop)
	waitUntil(t, 30*time.Second, "jobs are on nodes", func(context.Context) error {
		if n := j.since(time.Time{}); n < 32 {
			return fmt.Errorf("%d jobs were bound", n)
		}
		return nil
	})
	var pods []*corev1.Pod
	for i := range gangNodes {
		pod := ofGang(l.template(""), "large", i, gangNodes, nil)
		pods = append(pods, pod)
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { l.cleanUp(t, pods...) })
	var start, reserved time.Time
	waitUntil(t, 30*time.Second, "places are reserved for the gang", func(ctx context.Context) error {
		text, err := l.message(ctx, "large-0")
		if err != nil {
			return err
		}
		_, reservation, found := strings.Cut(text, "places on 8 nodes are reserved for it until ")
		_, at, ends := strings.Cut(reservation, ", and it starts at the latest at ")
		if !found || !ends {
			return fmt.Errorf("the condition says %q", text)
		}
		reserved = time.Now()
		start, err = time.Parse(time.RFC3339, at[:len("2006-01-02T15:04:05Z")])
		return err
	})
	waitUntil(t, time.Until(start)+5*time.Second, "the gang is on nodes", func(ctx context.Context) error {
		pods, err := l.named(ctx, "large-")
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("%s has no node", pod.Name)
			}
		}
		return nil
	})
	passed := j.since(reserved)
	t.Logf("reserved with a start in %v, the gang started after %v; %d jobs were bound on reserved nodes before", start.Sub(reserved).Round(time.Second),
		time.Since(reserved).Round(100*time.Millisecond), passed)
	if passed == 0 {
		t.Error("no job with a short deadline was bound on reserved nodes")
	}
	stop()
}
