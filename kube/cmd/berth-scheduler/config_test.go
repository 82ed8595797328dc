package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/binding"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/podgroups"
	"github.com/berth-gpu/berth/kube/internal/plugins"
	"github.com/berth-gpu/berth/kube/internal/preemption"
)

// rendering is the chart with every option; a test of the chart keeps it equal to what Helm renders.
const rendering = "../../../charts/testdata/golden/everything.yaml"

// maxScore is the most that a plugin gives a node.
const maxScore = 100

// shipped is the configuration of the chart with its profiles, made once for the tests that use the default feature gates.
var shipped = sync.OnceValues(func() (*shippedScheduler, error) {
	of, err := readConfig()
	if err != nil {
		return nil, err
	}
	profiles, err := makeProfiles(of)
	return &shippedScheduler{config: of, profiles: profiles}, err
})

type shippedScheduler struct {
	config   *config.KubeSchedulerConfiguration
	profiles profile.Map
}

// readConfig returns the configuration of the chart, read as kube-scheduler reads it.
func readConfig() (*config.KubeSchedulerConfiguration, error) {
	text, err := os.ReadFile(rendering)
	if err != nil {
		return nil, err
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var object corev1.ConfigMap
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return nil, errors.New("the rendering has no ConfigMap berth-scheduler")
		} else if err != nil || object.Kind != "ConfigMap" || object.Name != "berth-scheduler" {
			continue // Another object, whose fields may be of other types.
		}
		dir, err := os.MkdirTemp("", "berth-scheduler-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		file := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(file, []byte(object.Data["config.yaml"]), 0o600); err != nil {
			return nil, err
		}
		return options.LoadConfigFromFile(klog.Background(), file)
	}
}

// makeProfiles makes the profiles of a configuration as kube-scheduler makes them.
func makeProfiles(of *config.KubeSchedulerConfiguration) (profile.Map, error) {
	registry := plugins.Registry(func(basemetrics.Registerable) error { return nil })
	client := fake.NewClientset()
	made, err := scheduler.New(context.Background(), client, informers.NewSharedInformerFactory(client, 0), nil,
		func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1) },
		scheduler.WithProfiles(of.Profiles...), scheduler.WithFrameworkOutOfTreeRegistry(registry),
		scheduler.WithPercentageOfNodesToScore(of.PercentageOfNodesToScore))
	if err != nil {
		return nil, err
	}
	return made.Profiles, nil
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
	shipped, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"berth-scheduler", "berth-scheduler-latency", "berth-scheduler-spread", "default-scheduler"}
	var names []string
	for name, of := range shipped.profiles {
		names = append(names, name)
		scores := weights(of.ListPlugins())
		others := int64(0)
		for plugin, weight := range scores {
			if plugin != placement.Name && plugin != podgroups.Name { // The latter scores only for members of a group for which it has a plan.
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
		if own, rest := scores[podgroups.Name], others+scores[placement.Name]; own <= maxScore*rest {
			t.Errorf("profile %s: the weight %d of %s is not above %d times %d, the sum of the others", name, own, podgroups.Name, maxScore, rest)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("the profiles are %q, want %q", names, want)
	}
}

// TestShippedProfiles checks what else the profiles have in common, and in what they differ.
func TestShippedProfiles(t *testing.T) {
	shipped, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	if lease := shipped.config.LeaderElection; !lease.LeaderElect || lease.ResourceName != "berth-scheduler" || lease.ResourceNamespace != "berth-system" {
		t.Errorf("leader election: %+v, want a Lease of its own", lease)
	}
	policies := map[string]string{"berth-scheduler": `{"policy":"pack"}`, "berth-scheduler-spread": `{"policy":"spread"}`,
		"berth-scheduler-latency": `{"policy":"latency"}`, "default-scheduler": `{"policy":"pack"}`}
	for i := range shipped.config.Profiles {
		p := &shipped.config.Profiles[i]
		if p.PercentageOfNodesToScore == nil || *p.PercentageOfNodesToScore != 100 {
			t.Errorf("profile %s does not score all nodes", p.SchedulerName)
		}
		if got := argsOf(p); got != policies[p.SchedulerName] {
			t.Errorf("profile %s: the plugin's arguments are %s, want %s", p.SchedulerName, got, policies[p.SchedulerName])
		}
		plugins := shipped.profiles[p.SchedulerName].ListPlugins()
		scores := weights(plugins)
		for _, plugin := range []string{"NodeResourcesFit", "NodeResourcesBalancedAllocation"} {
			if _, on := scores[plugin]; on != (p.SchedulerName == "default-scheduler") {
				t.Errorf("profile %s: %s scores: %v", p.SchedulerName, plugin, on)
			}
		}
		// Only the score is off: pods still have to fit.
		if !slices.ContainsFunc(plugins.Filter.Enabled, func(p config.Plugin) bool { return p.Name == "NodeResourcesFit" }) {
			t.Errorf("profile %s does not check that a pod fits", p.SchedulerName)
		}
		if after := plugins.PostFilter.Enabled; len(after) != 4 || after[0].Name != placement.Name || after[2].Name != gangs.Name || after[3].Name != preemption.Name {
			t.Errorf("profile %s: the plugins at postFilter are %v, want %s, DynamicResources, %s, %s", p.SchedulerName, after, placement.Name, gangs.Name, preemption.Name)
		}
		if sorts := plugins.QueueSort.Enabled; len(sorts) != 1 || sorts[0].Name != gangs.Name {
			t.Errorf("profile %s: the plugins at queueSort are %v, want %s", p.SchedulerName, sorts, gangs.Name)
		}
		if binds := plugins.Bind.Enabled; len(binds) != 3 || binds[0].Name != gangs.Name || binds[1].Name != binding.Name || binds[2].Name != "DefaultBinder" {
			t.Errorf("profile %s: the plugins at bind are %v, want %s and %s before DefaultBinder", p.SchedulerName, binds, gangs.Name, binding.Name)
		}
		for point, set := range map[string]config.PluginSet{"reserve": plugins.Reserve, "postBind": plugins.PostBind} {
			if !slices.ContainsFunc(set.Enabled, func(p config.Plugin) bool { return p.Name == binding.Name }) {
				t.Errorf("profile %s: %s is not at %s: its places would not come back", p.SchedulerName, binding.Name, point)
			}
		}
		for point, set := range map[string]config.PluginSet{"filter": plugins.Filter, "reserve": plugins.Reserve, "preFilter": plugins.PreFilter} {
			if !slices.ContainsFunc(set.Enabled, func(p config.Plugin) bool { return p.Name == placement.Name }) {
				t.Errorf("profile %s: the plugin is not at %s: %v", p.SchedulerName, point, set.Enabled)
			}
		}
	}
}

// TestFeatureGates: the profiles can be used with the feature gates of pod groups and without, and BerthPodGroups generates the placements.
func TestFeatureGates(t *testing.T) {
	const stock = "TopologyPlacementGenerator"
	for name, gates := range map[string]featuregatetesting.FeatureOverrides{
		"none":             {features.GenericWorkload: false, features.TopologyAwareWorkloadScheduling: false},
		"without topology": {features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: false},
		"with topology":    {features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true},
	} {
		t.Run(name, func(t *testing.T) {
			featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, gates)
			of, err := readConfig()
			if err != nil {
				t.Fatal(err)
			}
			profiles, err := makeProfiles(of)
			if err != nil {
				t.Fatal(err)
			}
			for name, made := range profiles {
				all := made.ListPlugins()
				if generate := all.PlacementGenerate.Enabled; len(generate) != 1 || generate[0].Name != podgroups.Name {
					t.Errorf("profile %s: %v generate placements, want %s", name, generate, podgroups.Name)
				}
				if first := all.PreFilter.Enabled[0].Name; first != podgroups.Name {
					t.Errorf("profile %s: the first plugin at preFilter is %s, want %s", name, first, podgroups.Name)
				}
				if reserve := all.Reserve.Enabled; reserve[len(reserve)-1].Name != podgroups.Name {
					t.Errorf("profile %s: the plugins at reserve are %v, want %s last", name, reserve, podgroups.Name)
				}
				if after := all.PodGroupPostFilter.Enabled; after[0].Name != preemption.Name {
					t.Errorf("profile %s: the plugins at podGroupPostFilter are %v, want %s first", name, after, preemption.Name)
				}
				gang := slices.ContainsFunc(all.Permit.Enabled, func(p config.Plugin) bool { return p.Name == "GangScheduling" })
				if gang != gates[features.GenericWorkload] {
					t.Errorf("profile %s: GangScheduling is on: %v, want %v", name, gang, gates[features.GenericWorkload])
				}
				score, others := int64(0), int64(0)
				for _, p := range all.PlacementScore.Enabled {
					if p.Name == podgroups.Name {
						score = int64(p.Weight)
					} else {
						others += int64(p.Weight)
					}
				}
				if score <= maxScore*others {
					t.Errorf("profile %s: the weights of the plugins that score placements are %v, want that of %s to decide", name, all.PlacementScore.Enabled, podgroups.Name)
				}
			}
			// Without the option of the chart a profile would have two plugins that generate placements.
			for i := range of.Profiles {
				multi := &of.Profiles[i].Plugins.MultiPoint
				multi.Enabled = append(multi.Enabled, config.Plugin{Name: stock})
			}
			if _, err := makeProfiles(of); err == nil {
				t.Errorf("profiles with %s and %s can be used; this test expects that one has to be off", podgroups.Name, stock)
			}
		})
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
