package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
)

// rendering is the chart with every option; a test of the chart keeps it equal to what Helm renders.
const rendering = "../../../charts/testdata/golden/everything.yaml"

// maxScore is the most that a plugin gives a node.
const maxScore = 100

// shippedConfig returns the configuration of the chart, read as kube-scheduler reads it.
func shippedConfig(t *testing.T) *config.KubeSchedulerConfiguration {
	t.Helper()
	text, err := os.ReadFile(rendering)
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object corev1.ConfigMap
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			t.Fatal("the rendering has no ConfigMap berth-scheduler")
		}
		if err == nil && object.Kind == "ConfigMap" && object.Name == "berth-scheduler" {
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(object.Data["config.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			read, err := options.LoadConfigFromFile(klog.Background(), file)
			if err != nil {
				t.Fatal(err)
			}
			return read
		}
	}
}

// frameworks makes the profiles of the configuration as kube-scheduler makes them.
func frameworks(t *testing.T, of *config.KubeSchedulerConfiguration) profile.Map {
	t.Helper()
	registry := frameworkruntime.Registry{}
	if err := registry.Register(placement.Name, placement.New); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	made, err := scheduler.New(t.Context(), client, informers.NewSharedInformerFactory(client, 0), nil,
		func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1) },
		scheduler.WithProfiles(of.Profiles...), scheduler.WithFrameworkOutOfTreeRegistry(registry),
		scheduler.WithKubeConfig(&rest.Config{Host: "https://127.0.0.1:1"}),
		scheduler.WithPercentageOfNodesToScore(of.PercentageOfNodesToScore))
	if err != nil {
		t.Fatal(err)
	}
	return made.Profiles
}

// weights returns the weight of each plugin that scores in a profile.
func weights(plugins *config.Plugins) map[string]int64 {
	all := map[string]int64{}
	for _, p := range plugins.Score.Enabled {
		all[p.Name] = int64(p.Weight)
	}
	return all
}

// TestPlacementDecides proves that in each profile that the chart ships a difference of 1 in the plugin's score is worth more than all that
// the other plugins can give: whichever scores they have, the order of two nodes is the plugin's.
func TestPlacementDecides(t *testing.T) {
	shipped := shippedConfig(t)
	made := frameworks(t, shipped)
	want := []string{"berth-scheduler", "berth-scheduler-latency", "berth-scheduler-spread", "default-scheduler"}
	var names []string
	for name, of := range made {
		names = append(names, name)
		scores := weights(of.ListPlugins())
		others := int64(0)
		for plugin, weight := range scores {
			if plugin != placement.Name {
				others += weight
			}
		}
		// Those of upstream: TaintToleration, NodeAffinity, PodTopologySpread, InterPodAffinity, ImageLocality and more.
		if len(scores) < 6 || others < 10 {
			t.Errorf("profile %s: only %v score, so this test has missed some", name, scores)
		}
		if own := scores[placement.Name]; own <= maxScore*others {
			t.Errorf("profile %s: the weight %d of %s is not above %d times %d, the sum of the others: %v",
				name, own, placement.Name, maxScore, others, scores)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("the profiles are %q, want %q", names, want)
	}
}

// TestShippedProfiles checks what else the profiles have in common, and in what they differ.
func TestShippedProfiles(t *testing.T) {
	shipped := shippedConfig(t)
	made := frameworks(t, shipped)
	if lease := shipped.LeaderElection; !lease.LeaderElect || lease.ResourceName != "berth-scheduler" || lease.ResourceNamespace != "berth-system" {
		t.Errorf("leader election: %+v, want a Lease of its own", lease)
	}
	policies := map[string]string{"berth-scheduler": `{"policy":"pack"}`, "berth-scheduler-spread": `{"policy":"spread"}`,
		"berth-scheduler-latency": `{"policy":"latency"}`, "default-scheduler": `{"policy":"pack"}`}
	for i := range shipped.Profiles {
		p := &shipped.Profiles[i]
		if p.PercentageOfNodesToScore == nil || *p.PercentageOfNodesToScore != 100 {
			t.Errorf("profile %s does not score all nodes", p.SchedulerName)
		}
		if got := argsOf(p); got != policies[p.SchedulerName] {
			t.Errorf("profile %s: the plugin's arguments are %s, want %s", p.SchedulerName, got, policies[p.SchedulerName])
		}
		scores := weights(made[p.SchedulerName].ListPlugins())
		for _, plugin := range []string{"NodeResourcesFit", "NodeResourcesBalancedAllocation"} {
			if _, on := scores[plugin]; on != (p.SchedulerName == "default-scheduler") {
				t.Errorf("profile %s: %s scores: %v", p.SchedulerName, plugin, on)
			}
		}
		// Only the score is off: pods still have to fit.
		if !slices.ContainsFunc(made[p.SchedulerName].ListPlugins().Filter.Enabled, func(p config.Plugin) bool { return p.Name == "NodeResourcesFit" }) {
			t.Errorf("profile %s does not check that a pod fits", p.SchedulerName)
		}
	}
}

// argsOf returns the arguments of Berth's plugin in a profile, as JSON.
func argsOf(p *config.KubeSchedulerProfile) string {
	for _, c := range p.PluginConfig {
		if raw, ok := c.Args.(*runtime.Unknown); ok && c.Name == placement.Name {
			return string(raw.Raw)
		}
	}
	return ""
}
