package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// migRequest is a request for MIG devices of a profile on a H100.
func migRequest(name, profile string, count int64) resourceapi.DeviceRequest {
	request := gpuRequest(name, count, attribute("architecture", "Hopper"))
	request.Exactly.DeviceClassName = "mig-" + profile + "." + pool.DefaultDriver
	return request
}

// waitDevices waits until the first node has published this number of devices.
func (l *draLab) waitDevices(t testing.TB, want int) {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("node %s has published %d devices", l.node.Name(), want), func(ctx context.Context) error {
		all, err := l.slices(ctx)
		n := 0
		for i := range all {
			n += len(all[i].Spec.Devices)
		}
		if err == nil && n != want {
			err = fmt.Errorf("it has published %d", n)
		}
		return err
	})
}

// migDevices returns the profiles of the MIG devices of each GPU of the first node that has some, in order.
func (l *draLab) migDevices(t testing.TB) map[int][]string {
	t.Helper()
	all := map[int][]string{}
	for _, g := range hardware(t, l.node.SimDir()).GPUs {
		for _, part := range g.MIGDevices {
			all[g.Minor] = append(all[g.Minor], part.Profile)
		}
		slices.Sort(all[g.Minor])
	}
	return all
}

// waitMIGDevices waits until the GPUs have exactly these MIG devices.
func (l *draLab) waitMIGDevices(t testing.TB, want map[int][]string) {
	t.Helper()
	waitUntil(t, 30*time.Second, fmt.Sprintf("the GPUs have the MIG devices %v", want), func(context.Context) error {
		if got := l.migDevices(t); !maps.EqualFunc(got, want, slices.Equal) {
			return fmt.Errorf("they have %v", got)
		}
		return nil
	})
}

// checkMIG checks that a pod has the nodes of one GPU, of a number of MIG devices on it, and of no other GPU. It returns the GPU.
func (l *draLab) checkMIG(t testing.TB, pod *corev1.Pod, parts int) uint32 {
	t.Helper()
	gpus := l.gpusIn(t, pod, "main")
	if len(gpus) != 1 {
		t.Fatalf("pod %s has the GPUs %v, want one", pod.Name, gpus)
	}
	l.checkNodes(t, pod, gpus)
	if _, capabilities := l.nodesOf(t, pod); len(capabilities) != 2*parts {
		t.Errorf("pod %s has the capabilities %v, want those of %d MIG devices", pod.Name, capabilities, parts)
	}
	return gpus[0]
}

// testDRADynamicMIG prepares MIG devices that exist only while claims have them.
func testDRADynamicMIG(t *testing.T, l *draLab) {
	const placements = 26 // of a H100: the whole GPU, and each MIG profile at each of its placements
	start := l.setConfigs(t, map[string]string{"default": plainConfig + `gpus:
- select: {}
  allocation: {api: dra}
  dynamicMIG: true
`})
	l.waitDevices(t, nodeGPUs*placements)
	t.Logf("%d devices of %d GPUs are in the API server %s after the edit", nodeGPUs*placements, nodeGPUs, ms(time.Since(start)))
	l.setConfigs(t, map[string]string{"default": plainConfig + `gpus:
- select: {index: [0, 1, 2, 3, 4, 5]}
  resourceName: ` + wholeResource + `
- select: {}
  allocation: {api: dra}
  dynamicMIG: true
`})
	l.waitDevices(t, 2*placements)
	l.waitMIGDevices(t, map[int][]string{})
	l.claim(t, claimOf("small", migRequest("gpu", "1g.10gb", 1)), claimOf("large", migRequest("gpu", "3g.40gb", 1)),
		claimOf("entire", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))), claimOf("none-left", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))))
	start = time.Now()
	parts := l.run(t, podUsing("small", "small"), podUsing("large", "large"))
	t.Logf("two pods run on MIG devices made for them %s after their creation", ms(time.Since(start)))
	on := l.checkMIG(t, parts[0], 1)
	if other := l.checkMIG(t, parts[1], 1); other != on {
		t.Errorf("the MIG devices are on the GPUs %d and %d, want one: first fit leaves the other GPU whole", on, other)
	}
	l.waitMIGDevices(t, map[int][]string{int(on): {"1g.10gb", "3g.40gb"}})
	_, capabilities := l.nodesOf(t, parts[0])
	if _, others := l.nodesOf(t, parts[1]); slices.Equal(capabilities, others) {
		t.Errorf("both pods have the capabilities %v", others)
	}
	whole := l.run(t, podUsing("entire", "entire"))[0]
	if got := l.checkClaimed(t, whole, 1); got[0] == on {
		t.Errorf("the whole GPU %d has MIG devices", on)
	}
	waiting := podUsing("none-left", "none-left")
	t.Cleanup(func() { l.cleanUp(t, waiting) })
	if _, err := l.CreatePod(t.Context(), waiting); err != nil {
		t.Fatal(err)
	}
	l.waitPending(t, waiting)
	witnesses := l.watchPods(t, parts[1], whole)

	// The agent dies while MIG devices are held, and one claim ends meanwhile.
	l.kill(t)
	if err := l.Client().CoreV1().Pods(parts[0].Namespace).Delete(t.Context(), parts[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.start(t)
	l.waitMIGDevices(t, map[int][]string{int(on): {"3g.40gb"}})
	l.checkUndisturbed(t, witnesses...)
	l.checkMIG(t, parts[1], 1)

	// The last MIG device goes, and the GPU can be claimed whole: no reset is needed.
	if err := l.remove(t.Context(), parts[1]); err != nil {
		t.Fatal(err)
	}
	running, err := l.WaitPhase(timeout(t, 2*time.Minute), waiting.Namespace, waiting.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.checkClaimed(t, running, 1); got[0] != on {
		t.Errorf("the waiting pod has GPU %v, want %d", got, on)
	}
	l.waitMIGDevices(t, map[int][]string{})
	l.checkUndisturbed(t, witnesses[1])
	if err := l.remove(t.Context(), whole, running); err != nil {
		t.Fatal(err)
	}
	l.waitNothingHeld(t)
	l.reset(t)
}
