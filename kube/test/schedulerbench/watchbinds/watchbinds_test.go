package watchbinds

import (
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

func TestCount(t *testing.T) {
	tests := map[string]struct {
		pods []*corev1.Pod
		// want are the binds, with the seconds of the first and the last.
		wantBound, wantFirst, wantLast int
		wantErr                        string
	}{
		"none":                {},
		"not bound":           {pods: []*corev1.Pod{pod("a", "", 1)}},
		"bound":               {pods: []*corev1.Pod{pod("a", "", 1), pod("a", "n", 1), pod("b", "n", 2)}, wantBound: 2, wantFirst: 2, wantLast: 3},
		"seen again":          {pods: []*corev1.Pod{pod("a", "n", 1), pod("a", "n", 1), pod("a", "n", 1), pod("a", "n", 1)}, wantBound: 1, wantFirst: 1, wantLast: 1},
		"full":                {pods: []*corev1.Pod{pod("a", "n", 4), pod("b", "m", 8)}, wantBound: 2, wantFirst: 1, wantLast: 2},
		"bound twice":         {pods: []*corev1.Pod{pod("a", "n", 1), pod("a", "m", 1)}, wantBound: 1, wantFirst: 1, wantLast: 1, wantErr: "pod a is on node m"},
		"more GPUs than 8":    {pods: []*corev1.Pod{pod("a", "n", 5), pod("b", "n", 4)}, wantBound: 2, wantFirst: 1, wantLast: 2, wantErr: "2 pods with 9 GPUs"},
		"more pods than fit":  {pods: []*corev1.Pod{pod("a", "n", 0), pod("b", "n", 0), pod("c", "n", 0), pod("d", "n", 0)}, wantBound: 4, wantFirst: 1, wantLast: 4, wantErr: "4 pods with 0 GPUs"},
		"other nodes are not": {pods: []*corev1.Pod{pod("a", "n", 0), pod("b", "n", 0), pod("c", "n", 0), pod("d", "m", 0)}, wantBound: 4, wantFirst: 1, wantLast: 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			begin, second := time.Unix(0, 0), 0
			w := newWatch(Limits{Resource: gpus, GPUs: 8, Pods: 3}, func() time.Time { return begin.Add(time.Duration(second) * time.Second) })
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
		nodes int
		gpus  int64
		want  bool
	}{
		"a node without pods":          {bound: on("n", 8), nodes: 2, gpus: 8, want: true},
		"more than a node has":         {nodes: 2, gpus: 9},
		"free GPUs":                    {bound: on("n", 4), nodes: 1, gpus: 4, want: true},
		"too few free":                 {bound: on("n", 4), nodes: 1, gpus: 5},
		"free GPUs, too many pods":     {bound: on("n", 1, 1, 1), nodes: 1, gpus: 1},
		"neither node has both":        {bound: append(on("n", 1, 0, 0), on("m", 5)...), nodes: 2, gpus: 4},
		"no GPUs, and a place is left": {bound: append(on("n", 1, 0, 0), on("m", 8)...), nodes: 2, gpus: 0, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWatch(Limits{Resource: gpus, GPUs: 8, Pods: 3}, time.Now)
			for _, p := range tc.bound {
				w.keep(p)
			}
			if got := w.Fits(pod("z", "", tc.gpus), tc.nodes); got != tc.want {
				t.Errorf("Fits = %v, want %v", got, tc.want)
			}
		})
	}
}
