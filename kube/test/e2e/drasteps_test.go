package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// testDRASteps kills the agent within a prepare and an unprepare, while the driver does not return from a call. Whatever was done until
// then, the next agent and the kubelet's retry complete it, and nothing is left of it in the end.
func testDRASteps(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": plainConfig + `gpus:
- select: {index: [0, 1, 2, 3, 4, 5, 6]}
  resourceName: ` + wholeResource + `
- select: {}
  allocation: {api: dra}
  dynamicMIG: true
`})
	l.waitDevices(t, 26)
	for _, test := range []struct {
		name string
		// call hangs; held and instances are what the claim has in the ledger and the GPU when the agent dies.
		call            string
		held, instances string
		unprepare       bool
	}{
		{name: "Acquired", call: "CreateGpuInstanceWithPlacement", held: "placement", instances: "none"},
		{name: "HalfCreated", call: "CreateComputeInstance", held: "placement", instances: "GPU instance"},
		{name: "Released", call: "Destroy", held: "nothing", instances: "MIG device", unprepare: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			name := "step-" + strings.ToLower(test.name)
			l.claim(t, claimOf(name, migRequest("gpu", "1g.10gb", 1)))
			pod := podUsing(name, name)
			t.Cleanup(func() { l.cleanUp(t, pod) })
			hang := func() {
				if err := l.machine.Inject(sim.Fault{GPU: fmt.Sprint(nodeGPUs - 1), Hang: test.call}); err != nil {
					t.Fatal(err)
				}
			}
			if !test.unprepare {
				hang()
			}
			if _, err := l.CreatePod(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			if test.unprepare {
				if _, err := l.WaitPhase(timeout(t, time.Minute), pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
					t.Fatal(err)
				}
				hang()
				if err := l.Client().CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			l.waitStep(t, test.held, test.instances)
			l.kill(t)
			if err := l.machine.Clear(sim.ClearAll); err != nil {
				t.Fatal(err)
			}
			l.start(t)
			if !test.unprepare {
				running, err := l.WaitPhase(timeout(t, 2*time.Minute), pod.Namespace, pod.Name, corev1.PodRunning)
				if err != nil {
					t.Fatal(err)
				}
				l.checkMIG(t, running, 1)
				l.waitStep(t, "MIG device", "MIG device")
				if err := l.remove(t.Context(), running); err != nil {
					t.Fatal(err)
				}
			}
			l.waitStep(t, "nothing", "none")
			l.waitDevices(t, 26)
		})
	}
	l.reset(t)
}

// waitStep waits until the ledger has a device of this form, for claims, and the last GPU these MIG instances.
func (l *draLab) waitStep(t testing.TB, held, instances string) {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("the ledger has %s, and the GPU %s", held, instances), func(ctx context.Context) error {
		now, err := l.holdings(ctx)
		if err != nil {
			return err
		}
		form := "nothing"
		for key, holder := range now {
			switch _, part, _ := strings.Cut(key, "/"); {
			case !strings.HasPrefix(holder, "Claim "):
				continue // the MIG change itself
			case strings.HasPrefix(part, "MIG-"):
				form = "MIG device"
			default:
				form = "placement"
			}
		}
		last := hardware(t, l.node.SimDir()).GPUs[nodeGPUs-1]
		is := "none"
		switch {
		case len(last.MIGDevices) > 0:
			is = "MIG device"
		case last.EmptyInstances > 0:
			is = "GPU instance"
		}
		if form != held || is != instances {
			return fmt.Errorf("the ledger has %s (%v), and the GPU %s", form, slices.Sorted(maps.Keys(now)), is)
		}
		return nil
	})
}
