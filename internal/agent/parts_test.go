package agent

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/ledger"
	"github.com/berth-gpu/berth/internal/vendors/nvidia"
)

func key(id string) gpu.DeviceKey { return gpu.DeviceKey{GPU: gpu.UUID(id)} }

func TestFinished(t *testing.T) {
	assigned := []ledger.Assignment{
		{PodUID: "done", Container: "main", Keys: []gpu.DeviceKey{key("GPU-a")}},
		{PodUID: "runs", Container: "main", Keys: []gpu.DeviceKey{key("GPU-b")}},
		{PodUID: "starts", Container: "init", Keys: []gpu.DeviceKey{key("GPU-c")}},
		{PodUID: "starts", Container: "main", Keys: []gpu.DeviceKey{key("GPU-c")}},
	}
	tests := map[string]struct {
		view   ledger.NodeView
		active map[string]bool
		want   []ledger.NodePod
	}{
		"neither alive nor listed": {
			view:   ledger.NodeView{Assignments: assigned, Containers: []ledger.Container{{ID: "1", PodUID: "runs"}}},
			active: map[string]bool{"GPU-c": true},
			want:   []ledger.NodePod{{UID: "done", Ended: true}},
		},
		"all listed": {
			view:   ledger.NodeView{Assignments: assigned},
			active: map[string]bool{"GPU-a": true, "GPU-b": true, "GPU-c": true},
		},
		"processes not readable": {
			view: ledger.NodeView{Assignments: assigned, ContainersErr: errors.New("no /proc")},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, finished(tc.view, tc.active)); diff != "" {
				t.Errorf("finished (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBoard(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Unix(100, 0))
	b := newBoard(clock, slog.New(slog.DiscardHandler))
	b.fail("cdi", "CDI", errors.New("no space"))
	b.fail("checkpoint", "CHECKPOINT", errors.New("corrupt"))
	clock.SetTime(time.Unix(200, 0))
	b.fail("cdi", "CDI", errors.New("no space")) // It stands, since the first time.
	b.fail("checkpoint", "CHECKPOINT", nil)
	want := []gpu.Cause{{Code: "CDI", Message: "no space", Since: time.Unix(100, 0)}}
	if diff := cmp.Diff(want, b.all()); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	b.set("cdi", gpu.Cause{Code: "CDI", Message: "no driver"})
	if got := b.all(); len(got) != 1 || !got[0].Since.Equal(time.Unix(200, 0)) {
		t.Errorf("another problem of the same source is %v, want it to begin now", got)
	}
}

// TestEndedOrphans: an orphan's pod that is gone, was made anew, or has finished is not
// counted by the scheduler; one that runs is; without an answer nothing is said.
func TestEndedOrphans(t *testing.T) {
	pod := func(name, uid, phase string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"namespace": "ns", "name": name, "uid": uid},
			"status":   map[string]any{"phase": phase},
		}}
	}
	api := fake.NewSimpleDynamicClient(runtime.NewScheme(),
		pod("runs", "uid-runs", "Running"), pod("anew", "uid-other", "Running"), pod("done", "uid-done", "Succeeded"))
	api.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() == "unknown" {
			return true, nil, errors.New("the API server does not answer")
		}
		return false, nil, nil
	})
	book, err := ledger.Open(ledger.Deps{Path: t.TempDir() + "/ledger", BootID: "boot", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	var living []ledger.Container
	for _, name := range []string{"anew", "done", "gone", "runs", "unknown"} {
		living = append(living, ledger.Container{
			ID: "c-" + name, PodUID: "uid-" + name, Namespace: "ns", Pod: name, Name: "main", Keys: []gpu.DeviceKey{key("GPU-" + name)},
		})
	}
	book.Reconcile(ledger.NodeView{Containers: living})

	clock := testingclock.NewFakePassiveClock(time.Unix(100, 0))
	problems := newBoard(clock, slog.New(slog.DiscardHandler))
	orphans := &orphanPods{api: api, resources: func() []string { return []string{"nvidia.com/gpu"} }, clock: clock, board: problems}
	got := orphans.about(t.Context(), book.Holdings())
	want := []ledger.NodePod{
		{UID: "uid-anew", Namespace: "ns", Name: "anew", Ended: true},
		{UID: "uid-done", Namespace: "ns", Name: "done", Ended: true},
		{UID: "uid-gone", Namespace: "ns", Name: "gone", Ended: true},
		{UID: "uid-runs", Namespace: "ns", Name: "runs"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods of orphans (-want +got):\n%s", diff)
	}
	if all := problems.all(); len(all) != 1 || all[0].Code != "ORPHAN_POD_UNKNOWN" {
		t.Errorf("problems are %v, want one about the pod without an answer", all)
	}

	// Within a second only the one without an answer is asked about again; after it,
	// those that have not ended.
	for _, tc := range []struct {
		now  int64
		want int
	}{{100, 1}, {101, 2}} {
		clock.SetTime(time.Unix(tc.now, 0))
		api.ClearActions()
		if diff := cmp.Diff(want, orphans.about(t.Context(), book.Holdings())); diff != "" {
			t.Errorf("pods of orphans, asked again (-want +got):\n%s", diff)
		}
		if asked := len(api.Actions()); asked != tc.want {
			t.Errorf("at %d s the API server was asked %d times, want %d", tc.now, asked, tc.want)
		}
	}
}

func TestCountedDevices(t *testing.T) {
	tests := map[string]struct {
		spec string
		want int
	}{
		"two containers": {`{"containers": [
			{"resources": {"limits": {"nvidia.com/gpu": "2"}}}, {"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}}]}`, 3},
		"an init container needs no more": {`{"initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}],
			"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 2},
		"an init container needs more": {`{"initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}],
			"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 4},
		"a sidecar stays": {`{"initContainers": [{"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
			"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 3},
		"an init container beside a sidecar": {`{"initContainers": [
			{"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}, {"resources": {"limits": {"nvidia.com/gpu": "4"}}}],
			"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 5},
		"another resource": {`{"containers": [{"resources": {"limits": {"example.com/nic": "2"}}}]}`, 0},
		"no number":        {`{"containers": [{"resources": {"limits": {"nvidia.com/gpu": "two"}}}]}`, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &unstructured.Unstructured{}
			if err := pod.UnmarshalJSON([]byte(`{"apiVersion": "v1", "kind": "Pod", "spec": ` + tc.spec + `}`)); err != nil {
				t.Fatal(err)
			}
			if got := countedDevices(pod, []string{"nvidia.com/gpu"}); got != tc.want {
				t.Errorf("the scheduler counts %d, want %d", got, tc.want)
			}
		})
	}
}

// TestMPSDaemonIsNoOpener: the control daemon of the GPU and what it has started are Berth's own, nobody else is.
func TestMPSDaemonIsNoOpener(t *testing.T) {
	all := []nvidia.Opener{{PID: 10, Parent: 1}, {PID: 11, Parent: 10}, {PID: 12, Parent: 11}, {PID: 20, Parent: 1}, {PID: 21, Parent: 21}}
	for _, o := range all {
		if got, want := isDaemon(10, all, o), o.PID < 20; got != want {
			t.Errorf("process %d: %v, want %v", o.PID, got, want)
		}
		if isDaemon(0, all, o) {
			t.Errorf("process %d is of a daemon, and there is none", o.PID)
		}
	}
	if !isDaemon(10, all[1:], all[1]) {
		t.Error("a server whose daemon has not the GPU open is somebody else's")
	}
}
