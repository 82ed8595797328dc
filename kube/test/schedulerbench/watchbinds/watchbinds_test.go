package watchbinds

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const gpus = "nvidia.com/gpu"

func pod(name, node string, count int64) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{gpus: *resource.NewQuantity(count, resource.DecimalSI)}}}}}}
}

// limits are those of the nodes n and m.
func limits() Limits { return Limits{Resource: gpus, GPUs: map[string]int{"n": 8, "m": 8}, Pods: 3} }

func TestCount(t *testing.T) {
	tests := map[string]struct {
		pods []*corev1.Pod
		// want are the binds, with the seconds of the first and the last.
		wantBound int
		wantFirst int
		wantLast  int
		wantErr   string
	}{
		"none":                     {},
		"not bound":                {pods: []*corev1.Pod{pod("a", "", 1)}},
		"bound":                    {pods: []*corev1.Pod{pod("a", "", 1), pod("a", "n", 1), pod("b", "n", 2)}, wantBound: 2, wantFirst: 2, wantLast: 3},
		"seen again":               {pods: []*corev1.Pod{pod("a", "n", 1), pod("a", "n", 1), pod("a", "n", 1), pod("a", "n", 1)}, wantBound: 1, wantFirst: 1, wantLast: 1},
		"full":                     {pods: []*corev1.Pod{pod("a", "n", 4), pod("b", "m", 8)}, wantBound: 2, wantFirst: 1, wantLast: 2},
		"bound twice":              {pods: []*corev1.Pod{pod("a", "n", 1), pod("a", "m", 1)}, wantBound: 1, wantFirst: 1, wantLast: 1, wantErr: "pod a is on node m"},
		"more GPUs than 8":         {pods: []*corev1.Pod{pod("a", "n", 5), pod("b", "n", 4)}, wantBound: 2, wantFirst: 1, wantLast: 2, wantErr: "2 pods with 9 GPUs"},
		"more pods than fit":       {pods: []*corev1.Pod{pod("a", "n", 0), pod("b", "n", 0), pod("c", "n", 0), pod("d", "n", 0)}, wantBound: 4, wantFirst: 1, wantLast: 4, wantErr: "4 pods with 0 GPUs"},
		"a node that is not there": {pods: []*corev1.Pod{pod("a", "x", 1)}, wantBound: 1, wantFirst: 1, wantLast: 1, wantErr: "has 3 and 0"},
		"other nodes are not":      {pods: []*corev1.Pod{pod("a", "n", 0), pod("b", "n", 0), pod("c", "n", 0), pod("d", "m", 0)}, wantBound: 4, wantFirst: 1, wantLast: 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			begin, second := time.Unix(0, 0), 0
			w := newWatch(limits(), func() time.Time { return begin.Add(time.Duration(second) * time.Second) })
			for i, p := range tc.pods {
				second = i + 1
				w.keep(p)
			}
			want := Progress{Bound: tc.wantBound}
			if tc.wantBound > 0 {
				want.First, want.Last = begin.Add(time.Duration(tc.wantFirst)*time.Second), begin.Add(time.Duration(tc.wantLast)*time.Second)
			}
			got, err := w.Progress()
			if got != want {
				t.Errorf("Progress = %+v, want %+v", got, want)
			}
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func TestFits(t *testing.T) {
	on := func(node string, gpus ...int64) (list []*corev1.Pod) {
		for i, n := range gpus {
			list = append(list, pod(node+string(rune('a'+i)), node, n))
		}
		return list
	}
	tests := map[string]struct {
		bound []*corev1.Pod
		gpus  int64
		want  bool
	}{
		"a node without pods":          {bound: on("n", 8), gpus: 8, want: true},
		"more than a node has":         {gpus: 9},
		"free GPUs":                    {bound: append(on("n", 4), on("m", 8)...), gpus: 4, want: true},
		"too few free":                 {bound: append(on("n", 4), on("m", 8)...), gpus: 5},
		"free GPUs, too many pods":     {bound: append(on("n", 1, 1, 1), on("m", 8)...), gpus: 1},
		"neither node has both":        {bound: append(on("n", 1, 0, 0), on("m", 5)...), gpus: 4},
		"no GPUs, and a place is left": {bound: append(on("n", 1, 0, 0), on("m", 8)...), gpus: 0, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWatch(limits(), time.Now)
			for _, p := range tc.bound {
				w.keep(p)
			}
			if got := w.Fits(pod("z", "", tc.gpus)); got != tc.want {
				t.Errorf("Fits = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPodsThatRunAlreadyDoNotCount(t *testing.T) {
	begin, second := time.Unix(0, 0), 0
	w := newWatch(limits(), func() time.Time { second++; return begin.Add(time.Duration(second) * time.Second) })
	w.keep(pod("r", "n", 6))
	w.begin()
	if got, err := w.Progress(); got != (Progress{}) || err != nil {
		t.Errorf("Progress = %+v, %v; want none", got, err)
	}
	w.keep(pod("r", "n", 6))
	w.keep(pod("a", "n", 2))
	want := Progress{Bound: 1, First: begin.Add(2 * time.Second), Last: begin.Add(2 * time.Second)}
	if got, err := w.Progress(); got != want || err != nil {
		t.Errorf("Progress = %+v, %v; want %+v", got, err, want)
	}
	w.keep(pod("b", "n", 1))
	if _, err := w.Progress(); err == nil {
		t.Error("no error, want one: the running pod takes its GPUs")
	}
}

func TestRefusals(t *testing.T) {
	said := func(name string, status corev1.ConditionStatus, reason, message string) *corev1.Pod {
		p := pod(name, "", 1)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: message}}
		return p
	}
	refused := func(name, message string) *corev1.Pod {
		return said(name, corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)
	}
	tests := map[string]struct {
		pods []*corev1.Pod
		// want are the seconds of the refusals, and what was said.
		want        map[string]int
		wantMessage string
	}{
		"none":                {pods: []*corev1.Pod{pod("a", "", 1)}},
		"refused":             {pods: []*corev1.Pod{refused("a", "too few"), refused("b", "too few")}, want: map[string]int{"a": 1, "b": 2}, wantMessage: "too few"},
		"again":               {pods: []*corev1.Pod{refused("a", "waits"), refused("a", "too few ")}, want: map[string]int{"a": 1}, wantMessage: "too few"},
		"bound later":         {pods: []*corev1.Pod{refused("a", "too few"), pod("a", "n", 1)}},
		"an error of its own": {pods: []*corev1.Pod{said("a", corev1.ConditionFalse, corev1.PodReasonSchedulerError, "no API server")}},
		"gated":               {pods: []*corev1.Pod{said("a", corev1.ConditionFalse, corev1.PodReasonSchedulingGated, "gated")}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			begin, second := time.Unix(0, 0), 0
			w := newWatch(limits(), func() time.Time { return begin.Add(time.Duration(second) * time.Second) })
			for i, p := range tc.pods {
				second = i + 1
				w.keep(p)
			}
			got := map[string]int{}
			for name, r := range w.Refusals() {
				got[name] = int(r.At.Sub(begin).Seconds())
				if r.Message != tc.wantMessage {
					t.Errorf("%s: %q, want %q", name, r.Message, tc.wantMessage)
				}
			}
			progress, err := w.Progress()
			if !maps.Equal(got, tc.want) || progress.Refused != len(tc.want) || err != nil {
				t.Errorf("refused at %v, %d in all, %v; want %v", got, progress.Refused, err, tc.want)
			}
		})
	}
}
