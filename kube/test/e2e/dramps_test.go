package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// limitsOfClaim are the limits of a claim with mode mps.
const limitsOfClaim = `{"mode":"mps","mps":{"pinnedMemoryMiB":8192,"activeThreadPercentage":25}}`

// clientOf is a pod whose container is an MPS client of the GPU of a claim.
func clientOf(name, claim string) *corev1.Pod {
	pod := podUsing(name, claim)
	pod.Spec.Containers[0].Args = []string{"mps"}
	return pod
}

// sharedClaim is a claim for a Hopper GPU with configuration of sharing.
func sharedClaim(name, sharing string) *resourceapi.ResourceClaim {
	claim := claimOf(name, gpuRequest("gpu", 1, attribute("architecture", "Hopper")))
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: configOf(pool.DefaultDriver, claimConfig(sharing))}}
	return claim
}

// mpsOf returns the MPS side of the GPU that a pod's claim has.
func (l *draLab) mpsOf(t testing.TB, minor uint32) *mpsRig {
	t.Helper()
	for _, g := range hardware(t, l.node.SimDir()).GPUs {
		if uint32(g.Minor) == minor {
			return &mpsRig{sharingRig: &sharingRig{rig: l.rig}, uuid: g.UUID}
		}
	}
	t.Fatalf("there is no GPU %d", minor)
	return nil
}

// checkClientOfClaim checks that a pod is a client of the daemon of its GPU, with its limits.
func (l *draLab) checkClientOfClaim(t testing.TB, pod *corev1.Pod, m *mpsRig) {
	t.Helper()
	pipe := "/mps/" + m.uuid + "/pipe"
	if got := m.envIn(t, pod)["CUDA_MPS_PIPE_DIRECTORY"]; got != pipe {
		t.Errorf("CUDA_MPS_PIPE_DIRECTORY of pod %s is %q, want %q", pod.Name, got, pipe)
	}
	for path, want := range map[string]string{pipe: m.dir("pipe"), "/dev/shm": m.dir("shm")} {
		if err := sameFile(inside(t, pod, path), want); err != nil {
			t.Errorf("%s of pod %s: %v", path, pod.Name, err)
		}
	}
	granted := fmt.Sprintf("device 0 %s\npinned_mem_limit 0 8192M\nactive_thread_percentage 25.0\nready\n", m.uuid)
	waitUntil(t, 15*time.Second, "pod "+pod.Name+" is accepted by the daemon", func(ctx context.Context) error {
		log, err := m.PodLogs(ctx, pod.Namespace, pod.Name, "main")
		if err == nil && log != granted {
			err = fmt.Errorf("it printed %q, want %q", log, granted)
		}
		return err
	})
}

// testMPSOfClaim: two pods share the GPU of a claim as clients of its daemon, which continues when the agent is killed. A claim without MPS
// that gets the GPU directly after finds no daemon, and then the device plugin does.
func (l *draLab) testMPSOfClaim(t *testing.T) {
	l.claim(t, sharedClaim("shared", limitsOfClaim))
	pods := l.run(t, clientOf("client-a", "shared"), clientOf("client-b", "shared"))
	on := l.checkClaimed(t, pods[0], 1)[0]
	l.checkClaimed(t, pods[1], 1)
	m := l.mpsOf(t, on)
	for _, pod := range pods {
		l.checkClientOfClaim(t, pod, m)
	}
	if mode := m.computeMode(t); mode != exclusiveProcess {
		t.Errorf("the compute mode is %s", mode)
	}
	daemon, witnesses := m.mustDaemon(t), l.watchPods(t, pods...)
	l.kill(t)
	l.start(t)
	waitUntil(t, 20*time.Second, "the agent that started has the claim", func(ctx context.Context) error {
		held, err := l.holdings(ctx)
		if err == nil && len(held) != 1 {
			err = fmt.Errorf("it has %v", held)
		}
		return err
	})
	if now := m.mustDaemon(t); now != daemon {
		t.Errorf("the restart of the agent replaced the daemon %d by %d", daemon, now)
	}
	l.checkUndisturbed(t, witnesses...)
	// The allocator is first fit, so the next claim gets the same GPU.
	l.claim(t, sharedClaim("plain", `{"mode":"timeSlicing"}`))
	if err := l.remove(t.Context(), pods...); err != nil {
		t.Fatal(err)
	}
	plain := l.run(t, podUsing("plain", "plain"))[0]
	if got := l.claimed(t, "plain"); !slices.Equal(got, []uint32{on}) {
		t.Errorf("the next claim has the GPUs %v, want %d, on which the daemon was", got, on)
	}
	if pid, err := m.daemon(); err == nil {
		t.Errorf("the daemon %d runs beside a claim without MPS", pid)
	}
	if mode := m.computeMode(t); mode == exclusiveProcess {
		t.Error("the compute mode of a GPU without a daemon is exclusive")
	}
	if err := l.Client().CoreV1().Pods(plain.Namespace).Delete(t.Context(), plain.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
