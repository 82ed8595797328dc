package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// labelManager is the field manager of the labels about GPUs.
const labelManager = "berth-agent-features"

// ownLabels returns the labels of a Node that belong to the manager, according to the API server's managedFields.
func ownLabels(node *corev1.Node) (map[string]string, error) {
	own := map[string]string{}
	for _, entry := range node.ManagedFields {
		if entry.Manager != labelManager || entry.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			return nil, err
		}
		for field := range fields.Metadata.Labels {
			key := strings.TrimPrefix(field, "f:")
			if value, has := node.Labels[key]; has {
				own[key] = value
			}
		}
	}
	return own, nil
}

// waitLabels waits until the labels that the manager owns pass a check.
func (h *healthLab) waitLabels(t testing.TB, what string, check func(map[string]string) error) map[string]string {
	t.Helper()
	var labels map[string]string
	waitUntil(t, 20*time.Second, "the labels say "+what, func(ctx context.Context) error {
		node, err := h.nodeObject(ctx)
		if err != nil {
			return err
		}
		if labels, err = ownLabels(node); err != nil {
			return err
		}
		return check(labels)
	})
	return labels
}

// wantLabels compares some labels; an empty value means that the label must be absent.
func wantLabels(labels, want map[string]string) error {
	var wrong []error
	for _, key := range slices.Sorted(maps.Keys(want)) {
		got, has := labels[key]
		if got != want[key] || has != (want[key] != "") {
			wrong = append(wrong, fmt.Errorf("%s=%q, want %q", key, got, want[key]))
		}
	}
	return errors.Join(wrong...)
}

// testLabels checks that the Node has the labels of GPU feature discovery, as the agent prints them from the same
// hardware, and that none disappears when an agent ends, by any means, and another starts.
func testLabels(t *testing.T, h *healthLab) {
	labels := h.waitLabels(t, "the hardware", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{
			"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "40960",
			"nvidia.com/gpu.family": "ampere", "nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "0",
			"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/mig.capable": "true",
			"nvidia.com/mig.strategy": "mixed", "nvidia.com/mps.capable": "false",
			"nvidia.com/cuda.driver-version.full": h.driver(t),
			"berth.dev/gpu.healthy":               "8", "berth.dev/gpu.unhealthy": "0",
		})
	})
	if labels["nvidia.com/gfd.timestamp"] == "" {
		t.Errorf("there is no nvidia.com/gfd.timestamp among %v", labels)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(h.State().Bin, "berth-agent"), "inspect", "labels",
		"--sim", h.node.SimDir(), "--config", h.file).Output()
	if err != nil {
		t.Fatal(err)
	}
	printed := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		printed[key] = value
	}
	const timestamp = "nvidia.com/gfd.timestamp"
	had := maps.Clone(labels)
	delete(had, timestamp)
	delete(printed, timestamp)
	if !maps.Equal(had, printed) {
		t.Errorf("the Node's labels are\n%v\nand berth-agent inspect labels prints\n%v", had, printed)
	}

	watch := h.watchLabels(t, had)
	h.kill(t)
	ctx := timeout(t, time.Minute)
	if err := h.node.StopAgent(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.mode.Start(ctx); err != nil {
		t.Fatal(err)
	}
	after := h.waitLabels(t, "when the new agent started", func(now map[string]string) error {
		if now[timestamp] == labels[timestamp] {
			return errors.New("it is the old one")
		}
		return nil
	})
	delete(after, timestamp)
	if !maps.Equal(after, had) {
		t.Errorf("the labels were\n%v\nand are after two restarts of the agent\n%v", had, after)
	}
	seen := watch.stop(t)
	t.Logf("%d labels; during a kill and an orderly restart of the agent %d states of the Node were seen, with all "+
		"of them", len(labels), seen)
}

func (h *healthLab) driver(t testing.TB) string {
	t.Helper()
	return hardware(t, h.node.SimDir()).Driver
}

// labelWatch watches a Node and records each of its states that lacks a label.
type labelWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	states int
	wrong  []string
}

func (h *healthLab) watchLabels(t testing.TB, want map[string]string) *labelWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := h.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + h.node.Name()})
	if err != nil {
		t.Fatal(err)
	}
	w := &labelWatch{cancel: cancel}
	w.done.Go(func() {
		for change := range stream.ResultChan() {
			node, ok := change.Object.(*corev1.Node)
			if !ok {
				continue
			}
			w.states++
			if err := wantLabels(node.Labels, want); err != nil {
				w.wrong = append(w.wrong, err.Error())
			}
		}
	})
	return w
}

// stop ends the watch and returns the number of states that it saw.
func (w *labelWatch) stop(t testing.TB) int {
	t.Helper()
	w.cancel()
	w.done.Wait()
	if len(w.wrong) > 0 {
		t.Errorf("%d of %d states of the Node lacked labels, at first: %s", len(w.wrong), w.states, w.wrong[0])
	}
	if w.states == 0 {
		t.Error("the watch saw nothing")
	}
	return w.states
}

// testLabelsOfLayout checks that the labels follow the partitions of a GPU, and how it is shared.
func testLabelsOfLayout(t *testing.T, h *healthLab) {
	h.waitLabels(t, "the first layout", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{
			"nvidia.com/mig-1g.5gb.count": "3", "nvidia.com/mig-3g.20gb.count": "1", "nvidia.com/mig-2g.10gb.count": "",
			"nvidia.com/mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/mig-1g.5gb.replicas": "1",
			"nvidia.com/mig-1g.5gb.slices.gi": "1", "nvidia.com/mig-3g.20gb.slices.gi": "3",
		})
	})
	start := time.Now()
	h.configure(t, "gpus:\n- select: {index: [1]}\n  mig: {devices: {2g.10gb: 3}}\n")
	h.waitAllocatableOf(t, map[string]int{gpuResource: 7, "nvidia.com/mig-2g.10gb": 3})
	h.waitLabels(t, "the second layout", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{
			"nvidia.com/mig-1g.5gb.count": "", "nvidia.com/mig-3g.20gb.count": "", "nvidia.com/mig-2g.10gb.count": "3",
			"nvidia.com/mig-1g.5gb.product": "", "nvidia.com/mig-2g.10gb.product": "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb",
			"nvidia.com/gpu.replicas": "1",
		})
	})
	t.Logf("another MIG layout is in the labels %s after it was requested", ms(time.Since(start)))
	h.configure(t, plainGPUs)
	h.waitAllocatableOf(t, map[string]int{gpuResource: 8})
	h.configure(t, "gpus:\n- select: {}\n  sharing: {mode: timeSlicing, replicas: 2}\n")
	h.waitLabels(t, "two replicas of each GPU", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{
			"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing",
			"nvidia.com/gpu.product":       "NVIDIA-A100-SXM4-40GB-SHARED",
			"nvidia.com/mig-2g.10gb.count": "",
		})
	})
}

// testUninstallLabels checks that berth-agent uninstall removes all of Berth's labels from the Node, and no others.
func testUninstallLabels(t *testing.T, h *healthLab) {
	h.waitNodeCondition(t, corev1.ConditionTrue)
	h.waitLabels(t, "anything", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{"nvidia.com/gpu.count": "8"})
	})
	before, err := h.nodeObject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own, err := ownLabels(before)
	if err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, time.Minute)
	if err := h.node.StopAgent(ctx); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	argv := h.node.AgentArgv()
	if err := h.node.RunInside(ctx, sandbox.Streams{Out: &out, Err: &out},
		append([]string{argv[0], "uninstall"}, argv[1:]...)...); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	after, err := h.nodeObject(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(before.Labels)
	for key := range own {
		delete(want, key)
	}
	delete(want, "nvidia.com/mig.config.state")
	if len(own) == 0 || !maps.Equal(after.Labels, want) {
		t.Errorf("the agent had %d labels; after its uninstallation the Node has\n%v\nwant\n%v", len(own), after.Labels, want)
	}
	for _, condition := range after.Status.Conditions {
		if condition.Type == "GPUsHealthy" {
			t.Errorf("the Node still has the condition %+v", condition)
		}
	}
	if len(after.Status.Conditions) < 4 {
		t.Errorf("only these conditions of the kubelet are left: %v", after.Status.Conditions)
	}
	if err := h.mode.Start(ctx); err != nil {
		t.Fatal(err)
	}
	h.waitLabels(t, "all again", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{"nvidia.com/gpu.count": "8"})
	})
}
