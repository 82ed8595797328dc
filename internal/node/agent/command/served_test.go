package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestManifestServesPages checks that the DaemonSet serves what the PodMonitor scrapes, the probes request and berth on
// the node opens.
func TestManifestServesPages(t *testing.T) {
	sets := rendered[appsv1.DaemonSet](t, "DaemonSet")
	set := sets[slices.IndexFunc(sets, func(set appsv1.DaemonSet) bool { return set.Name == "berth-agent" })]
	type podMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector            metav1.LabelSelector `json:"selector"`
			PodMetricsEndpoints []struct {
				Port          string           `json:"port"`
				Path          string           `json:"path"`
				Interval      string           `json:"interval"`
				HonorLabels   bool             `json:"honorLabels"`
				Scheme        string           `json:"scheme"`
				TLSConfig     map[string]any   `json:"tlsConfig"`
				Authorization map[string]any   `json:"authorization"`
				Relabelings   []map[string]any `json:"relabelings"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	monitor := rendered[podMonitor](t, "PodMonitor")[0]

	container := set.Spec.Template.Spec.Containers[0]
	o, cmd := &sharedFlags{}, &cobra.Command{}
	o.Bind(cmd)
	if err := cmd.ParseFlags(container.Args); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(o.Config.MetricsListen, ":")
	if len(container.Ports) != 1 || container.Ports[0].Name != "metrics" || port != "9835" || container.Ports[0].ContainerPort != 9835 {
		t.Errorf("the agent listens on %q and the container has the ports %v, want one, metrics, 9835", o.Config.MetricsListen, container.Ports)
	}
	if set.Spec.Template.Spec.HostNetwork {
		t.Error("with the host's network two agents could not serve the port during an upgrade")
	}
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil || !selector.Matches(labels.Set(set.Spec.Template.Labels)) || monitor.Namespace != set.Namespace {
		t.Errorf("the PodMonitor selects %v in %s (%v), which the DaemonSet's pods are not", selector, monitor.Namespace, err)
	}
	// With every option it is served to clients with a token.
	if endpoints := monitor.Spec.PodMetricsEndpoints; len(endpoints) != 1 || (o.MetricsAuth == AuthKubernetes) != (endpoints[0].Scheme == "https") || endpoints[0].Port != container.Ports[0].Name || endpoints[0].Path != "/metrics" {
		t.Errorf("the PodMonitor scrapes %+v", endpoints)
	}
	var env []string
	for _, one := range container.Env {
		env = append(env, one.Name)
	}
	if !slices.Contains(env, "POD_NAME") {
		t.Errorf("the container has the variables %v: without POD_NAME the probes may query another pod's agent", env)
	}
	var paths []string
	for _, mount := range container.VolumeMounts {
		if !mount.ReadOnly {
			paths = append(paths, mount.MountPath)
		}
	}
	if !slices.Contains(paths, "/run/berth") {
		t.Errorf("the container writes to %v: without /run/berth the node does not see the agent's socket", paths)
	}
}
