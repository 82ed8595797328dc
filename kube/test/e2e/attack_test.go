package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAttacks checks that nothing that the author of a pod can write takes, blocks, hides or frees a device of another
// pod, neither while the kubelet has its checkpoint nor after it has lost it.
func TestAttacks(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	victim := r.run(t, podWithGPUs("victim", 1, "sleep", "10m"))[0]
	var all []string
	for _, uuid := range r.uuids(t) {
		all = append(all, uuid)
	}
	slices.Sort(all)
	grant := ""
	for _, mount := range r.assignment(t, victim).answer.GetMounts() {
		if strings.Contains(mount.GetHostPath(), "/grants/") {
			grant = filepath.Base(mount.GetHostPath())
		}
	}
	if grant == "" {
		t.Fatal("the answer to Allocate has no grant")
	}
	const variable = "BERTH_DEVICES_NVIDIA_COM_GPU"
	env := func(pod *corev1.Pod, pairs ...string) *corev1.Pod {
		for i := 0; i < len(pairs); i += 2 {
			c := &pod.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
		}
		return pod
	}
	// Claims every GPU without requesting one, with a folder in place of the victim's grant.
	forger := env(workloadPod("forger", "sleep", "10m"), variable, strings.Join(all, ","), "NVIDIA_VISIBLE_DEVICES",
		"/var/run/nvidia-container-devices")
	forger.Spec.Volumes = append(forger.Spec.Volumes, corev1.Volume{Name: "copy",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	forger.Spec.Containers[0].VolumeMounts = append(forger.Spec.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "copy", MountPath: "/run/berth/grants/" + grant})
	// Names in place of its own GPU: the victim's, every replica, and nothing.
	thief := env(podWithGPUs("thief", 1, "sleep", "10m"), variable, strings.Join(all, ","))
	sharer := env(podWithGPUs("sharer", 1, "sleep", "10m"), variable, strings.Join(all, "#1,")+"#1")
	hider := env(podWithGPUs("hider", 1, "sleep", "10m"), variable, "", "NVIDIA_VISIBLE_DEVICES", "")
	r.run(t, forger, thief, sharer, hider)
	holders := map[string]int{"victim": 1, "thief": 1, "sharer": 1, "hider": 1}

	// A copy of the victim's mirror pod, deleted at once.
	mirror := workloadPod("mirror", "sleep", "10m")
	mirror.Annotations = map[string]string{"kubernetes.io/config.mirror": string(victim.UID)}
	mirror.Spec.NodeName = r.node.Name()
	ctx := timeout(t, time.Minute)
	if _, err := r.CreatePod(ctx, mirror); err != nil {
		t.Logf("a forged mirror was refused: %v", err)
	} else if err := r.DeletePodAndWait(ctx, metav1.NamespaceDefault, "mirror", 0); err != nil {
		t.Fatal(err)
	}

	check := func(when string) {
		t.Helper()
		r.waitHolders(t, holders)
		r.waitAllocatable(t, len(all))
		pod := r.run(t, podWithGPUs("rest-"+when, len(all)-len(holders), "sleep", "10m"))[0]
		rest := map[string]int{"rest-" + when: len(all) - len(holders)}
		maps.Copy(rest, holders)
		r.waitHolders(t, rest)
		if err := r.remove(timeout(t, time.Minute), pod); err != nil {
			t.Fatal(err)
		}
	}
	check("before")
	r.restartKubelet(t, os.Remove)
	check("after")
}
