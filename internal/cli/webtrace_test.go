package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// askAsAnn returns the page at a path as the user ann sees it.
func askAsAnn(t *testing.T, api *signInAPI, path string) string {
	t.Helper()
	api.users = map[string]string{"t-ann": "ann"}
	answer := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer t-ann")
	signInPage(t, api).ServeHTTP(answer, r)
	return answer.Body.String()
}

// sharedNode returns signInNode with GPU-0 held by a pod of each namespace.
func sharedNode() *v1alpha1.GPUNode {
	node := signInNode()
	shared := &node.Status.Devices[0]
	shared.Offered = &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu", Sharing: "time-slicing", Replicas: 2}
	shared.Holders = []v1alpha1.Holder{
		{Kind: "Pod", Namespace: "ml", Pod: "train", PodUID: "train", Container: "main"},
		{Kind: "Pod", Namespace: "other-team", Pod: "secret", PodUID: "secret", Container: "main", Share: 1},
	}
	return node
}

// runningPod returns ml/train as the kubelet describes it, with GPU-0.
func runningPod() corev1.Pod {
	return corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train", UID: "train"},
		Spec:       corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			AllocatedResourcesStatus: []corev1.ResourceStatus{{Name: "nvidia.com/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "GPU-0"}}}},
		}}},
	}
}

// TestSignedInPods: the trace of a pod says that its GPU has holders that are not shown, and what is not shown is no disagreement.
func TestSignedInPods(t *testing.T) {
	const disagree = "different devices"
	tests := map[string]struct {
		pods   string // the namespace whose pods the user may list; each user may get them
		has    []string
		hasNot []string
	}{
		"list":     {pods: "ml", has: []string{"pod ml/train", "GPU-0", "holders of GPU-0 in namespaces whose pods you may not list: 1"}, hasNot: []string{"secret", "other-team", "GPU-1", disagree}},
		"list all": {pods: "*", has: []string{"pod ml/train", "other-team/secret"}, hasNot: []string{"you may not list", disagree}},
		"get":      {pods: "none", has: []string{"pod ml/train", "GPU-0", "holders of GPU-0 in namespaces whose pods you may not list: 2"}, hasNot: []string{"secret", "other-team", "GPU-1", disagree}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			body := askAsAnn(t, &signInAPI{
				rights:   map[string]bool{"ann gpunodes *": true, "ann pods " + tc.pods: true},
				gpuNodes: []v1alpha1.GPUNode{*sharedNode()}, pods: []corev1.Pod{runningPod()},
			}, "/pod/ml/train")
			checkTexts(t, body, tc.has, tc.hasNot)
			if took := time.Since(began); took > publishing {
				t.Errorf("it waited %v for a GPUNode that is complete", took)
			}
		})
	}
}

// TestConcernedBy: the devices of a trace are those that it shows itself, and those of its pods and claims.
func TestConcernedBy(t *testing.T) {
	got := concernedBy(&trace.Trace{
		Devices: []trace.Device{{UUID: "GPU-0"}},
		Pods:    []trace.Pod{{Containers: []trace.Container{{Devices: []trace.Device{{UUID: "MIG-1", Parent: "GPU-1"}}}}}},
		Claims:  []trace.Claim{{Devices: []trace.ClaimedDevice{{UUID: "GPU-2"}}}},
	})
	for id, want := range map[gpu.UUID]bool{"GPU-0": true, "GPU-1": true, "MIG-1": true, "GPU-2": true, "GPU-3": false} {
		if got[id] != want {
			t.Errorf("%s: %v, want %v", id, got[id], want)
		}
	}
}

// TestSignedInFleet: the trace of a GPU asks about the namespaces of its own node only, and an error does not list the others.
func TestSignedInFleet(t *testing.T) {
	api := &signInAPI{rights: map[string]bool{"ann gpunodes *": true, "ann pods ml": true}, gpuNodes: []v1alpha1.GPUNode{*signInNode()}}
	for i := range 300 {
		node := signInNode()
		node.Name = fmt.Sprintf("other-%d", i)
		for k := range node.Status.Devices {
			d := &node.Status.Devices[k]
			d.UUID, d.Holders[0].Namespace = fmt.Sprintf("OTHER-%d-%d", i, k), fmt.Sprintf("team-%d-%d", i, k)
		}
		api.gpuNodes = append(api.gpuNodes, *node)
	}
	checkTexts(t, askAsAnn(t, api, "/gpu/GPU-0"), []string{"pod ml/train"}, []string{"team-", "OTHER-", "you may not list"})
	want := []string{"", "ml", "other-team"}
	if got := slices.Compact(slices.Sorted(slices.Values(api.reviewed))); !slices.Equal(got, want) {
		t.Errorf("asked about %d namespaces, want %q: %q", len(got), want, got[:min(len(got), 5)])
	}
	checkTexts(t, askAsAnn(t, api, "/gpu/GPU-X"), []string{"find GPU-X: no source knows it", "GPU-0"}, []string{"team-", "holders of"})
	checkTexts(t, askAsAnn(t, api, "/gpu/GPU-"), []string{"2 devices start with that"}, []string{"team-", "holders of"})
	checkTexts(t, askAsAnn(t, api, "/gpu/OTHER-7-1"), []string{"holders of OTHER-7-1 in namespaces whose pods you may not list: 1"}, []string{"team-", "OTHER-7-0", "OTHER-8"})
}
