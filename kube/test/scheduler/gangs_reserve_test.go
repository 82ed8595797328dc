package scheduler

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
)

// stream is jobs of which always some wait: as soon as one has a node it starts, runs for a while, ends, and another one is created.
type stream struct {
	*lab
	t *testing.T
	// runs is how long a job runs, waiting how many wait at any time, deadlines the activeDeadlineSeconds that they have in turn, 0 for
	// none.
	runs      time.Duration
	waiting   int
	gpus      int
	deadlines []int64

	mu      sync.Mutex
	created int
	// started are when the jobs were bound.
	started map[string]time.Time
}

// run keeps the stream going until the context ends.
func (s *stream) run(ctx context.Context) {
	for ctx.Err() == nil {
		list, err := s.client.CoreV1().Pods("ml").List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		waiting := 0
		for i := range list.Items {
			pod := &list.Items[i]
			if !strings.HasPrefix(pod.Name, "job-") {
				continue
			}
			if pod.Spec.NodeName == "" {
				waiting++
				continue
			}
			s.tend(ctx, pod)
		}
		for ; waiting < s.waiting; waiting++ {
			s.add(ctx)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// tend has a job start that has a node, and end when its time is over.
func (s *stream) tend(ctx context.Context, pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began, known := s.started[pod.Name]
	if !known {
		s.started[pod.Name] = time.Now()
		pod.Status.StartTime = new(metav1.Now())
		_ = s.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "ml")
		return
	}
	if time.Since(began) >= s.runs {
		_ = s.client.CoreV1().Pods("ml").Delete(ctx, pod.Name, metav1.DeleteOptions{})
	}
}

func (s *stream) add(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created++
	pod := makePod(fmt.Sprintf("job-%d", s.created), s.gpus, 1)
	pod.CreationTimestamp = metav1.Now()
	pod.Spec.RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, new(int64)
	if seconds := s.deadlines[s.created%len(s.deadlines)]; seconds > 0 {
		pod.Spec.ActiveDeadlineSeconds = &seconds
	}
	if _, err := s.client.CoreV1().Pods("ml").Create(ctx, pod, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
		s.t.Error(err)
	}
}

// bindings returns when jobs were bound.
func (s *stream) bindings() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.started)
}

// TestGangReserved: a gang that needs 64 GPUs, all of the cluster, starts under a stream of small jobs, by the time that its reservation
// says. Without a reservation it would not start: at no time are all GPUs free.
func TestGangReserved(t *testing.T) {
	tests := map[string]struct {
		deadlines []int64
		off       bool
		// passes is whether jobs may use reserved nodes.
		passes bool
		starts bool
	}{
		"jobs with a deadline":    {deadlines: []int64{8, 2}, passes: true, starts: true},
		"jobs without a deadline": {deadlines: []int64{0}, starts: true},
		"turned off":              {deadlines: []int64{8, 2}, off: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := gangLab(t, 16)
			l.limits = gangs.Limits{Look: 50 * time.Millisecond, Starve: time.Second, Repeat: 200 * time.Millisecond}
			if test.off {
				l.limits.Starve = -1
			}
			stop := l.runGangs(t)
			s := &stream{lab: l, t: t, runs: 1500 * time.Millisecond, waiting: 24, gpus: 1, deadlines: test.deadlines, started: map[string]time.Time{}}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); s.run(ctx) }()
			defer func() { cancel(); <-ended; stop() }()
			await(t, 20*time.Second, func() string {
				if busy := len(l.placed(t)); busy < 64 {
					return fmt.Sprintf("%d jobs run", busy)
				}
				return ""
			})
			l.create(t, "train", 16, 16, 4)
			if !test.starts {
				time.Sleep(8 * time.Second)
				if on := nodesOf(l.placed(t), "train"); len(on) > 0 {
					t.Fatalf("%d members are on nodes: the stream keeps no gang from starting, so that this test shows nothing", len(on))
				}
				return
			}
			var start, reserved time.Time
			await(t, 20*time.Second, func() string {
				why := l.why(t, "train-0")
				if !strings.Contains(why, "are reserved for it") {
					return "nothing is reserved: " + why
				}
				reserved = time.Now()
				if at := strings.LastIndex(why, "at the latest at "); at >= 0 {
					var err error
					if start, err = time.Parse(time.RFC3339, why[at+len("at the latest at "):][:len("2006-01-02T15:04:05Z")]); err != nil {
						t.Fatal(err)
					}
				}
				return ""
			})
			if known := !start.IsZero(); known != test.passes {
				t.Errorf("the start of the reservation is %v", start)
			}
			l.all(t, "train", 16)
			// Seconds are cut off in the text, and the gang is bound after the last pod has ended.
			if late := time.Since(start); test.passes && late > 4*time.Second {
				t.Errorf("the gang started %v after the start of its reservation", late)
			}
			passed := 0
			for _, at := range s.bindings() {
				if at.After(reserved) {
					passed++
				}
			}
			t.Logf("the gang started %v after the reservation, and %d of %d jobs were bound before that", time.Since(reserved).Round(time.Millisecond), passed, len(s.bindings()))
			if test.passes != (passed > 0) {
				t.Errorf("%d jobs were bound on reserved nodes", passed)
			}
		})
	}
}
