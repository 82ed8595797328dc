package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/hack/images/image"
)

const (
	stockName     = "stock-plugin"
	stockImage    = "berth.dev/stock-plugin:test"
	stockResource = "example.com/stock"
	// pluginsDir is the kubelet's directory of plugins, on the node and in the plugin's pod.
	pluginsDir = "/var/lib/kubelet/device-plugins"
)

// testRebootStock repeats testRebootDevicePlugin with pods that have the devices of a plugin of NVIDIA's pattern
// (kube/test/stock-plugin): a DaemonSet with the priority system-node-critical. It starts faster than NVIDIA's, since it looks for no
// hardware. Berth's agent runs beside it.
func testRebootStock(t *testing.T, l *rebootLab) {
	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.startStock(t)
	devices := map[string]int{gpuResource: l.gpus, stockResource: l.pods}
	l.repeat(t, pluginReboots{
		resource: stockResource, devices: devices,
		check: func(back []*corev1.Pod) { l.checkStock(t, back) },
		after: func(int) { l.waitStock(t, l.pods) },
	})
}

// startStock starts the plugin on the node with one device for each pod, and removes it after the test.
func (l *rebootLab) startStock(t *testing.T) {
	t.Helper()
	files := map[string]string{"/stock-plugin": filepath.Join(l.State().Bin, stockName)}
	img, err := image.Make(stockImage, image.Spec{Files: files, Entrypoint: []string{"/stock-plugin"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.node.ImportImage(timeout(t, time.Minute), img); err != nil {
		t.Fatal(err)
	}
	sets := l.Client().AppsV1().DaemonSets(metav1.NamespaceSystem)
	if _, err := sets.Create(t.Context(), l.stockSet(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := sets.Delete(ctx, stockName, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := poll(ctx, "the plugin's devices are gone", func() error {
			now, err := l.healthyIDs(ctx)
			if err == nil && len(now[stockResource]) > 0 {
				err = fmt.Errorf("the kubelet has %v", counts(now))
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
	l.waitStock(t, l.pods)
}

// waitStock waits until the Node's status has the plugin's devices.
func (l *rebootLab) waitStock(t *testing.T, want int) {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("the Node has %d devices of the plugin", want), func(ctx context.Context) error {
		node, err := l.nodeObject(ctx)
		if err != nil {
			return err
		}
		if n := node.Status.Allocatable[stockResource]; n.Value() != int64(want) {
			return fmt.Errorf("it has %s", n.String())
		}
		return nil
	})
}

// stockSet is the plugin's DaemonSet, as the chart of NVIDIA's plugin makes one.
func (l *rebootLab) stockSet() *appsv1.DaemonSet {
	labels := map[string]string{"app": stockName}
	volume := corev1.Volume{Name: "plugins", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: pluginsDir}}}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: stockName, Namespace: metav1.NamespaceSystem},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector:      map[string]string{corev1.LabelHostname: l.node.Name()},
					PriorityClassName: "system-node-critical",
					Tolerations:       []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Volumes:           []corev1.Volume{volume},
					Containers: []corev1.Container{{
						Name: "main", Image: stockImage, Args: []string{stockResource, strconv.Itoa(l.pods)},
						VolumeMounts: []corev1.VolumeMount{{Name: volume.Name, MountPath: pluginsDir}},
					}},
				},
			},
		},
	}
}

// checkStock checks that each pod has one device of the plugin and no two have the same.
func (l *rebootLab) checkStock(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	holder := map[string]string{}
	for _, pod := range pods {
		got := ""
		for line := range strings.Lines(execIn(t, l.Cluster, pod, "env")) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name == "NVIDIA_VISIBLE_DEVICES" {
				got = value
			}
		}
		if got == "" || strings.Contains(got, ",") || holder[got] != "" {
			t.Errorf("pod %s has the devices %q; others have %v", pod.Name, got, holder)
		}
		holder[got] = pod.Name
	}
}
