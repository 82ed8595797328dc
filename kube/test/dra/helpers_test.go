package dra

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

const (
	nodeName = "node-1"
	goldens  = "../../../internal/node/dra/pool/testdata"
)

// readGoldens returns the slices of each golden file by its name.
func readGoldens(t testing.TB) map[string][]resourceapi.ResourceSlice {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(goldens, "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	all := map[string][]resourceapi.ResourceSlice{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []resourceapi.ResourceSlice
		if err := yaml.UnmarshalStrict(content, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = list
	}
	return all
}

// machine is a simulated machine and what a scan found on it.
type machine struct {
	sys      string
	snapshot *gpu.Snapshot
}

func scan(t testing.TB, profile string) machine {
	t.Helper()
	n := nvidiatest.New(t, profile)
	return machine{sys: filepath.Join(n.Machine.Root(), "sys"), snapshot: n.Scan()}
}

// settings publishes all GPUs, dynamic or not.
func settings(s *gpu.Snapshot, dynamic bool) pool.Settings {
	made := pool.Settings{Node: nodeName, GPUs: map[gpu.UUID]pool.Use{}}
	for i := range s.GPUs {
		made.GPUs[s.GPUs[i].UUID] = pool.Use{DynamicMIG: dynamic}
	}
	return made
}

// build returns what a node publishes, validated.
func build(t testing.TB, s *gpu.Snapshot, with pool.Settings) pool.Result {
	t.Helper()
	result := pool.Build(s, with, nil)
	if err := pool.Validate(result.Slices); err != nil {
		t.Fatal(err)
	}
	return result
}

// cluster is what the scheduler's allocator reads.
type cluster struct {
	slices    []*resourceapi.ResourceSlice
	classes   classes
	allocated sets.Set[structured.DeviceID]
	cel       *cel.Cache
}

func newCluster(t testing.TB, list []resourceapi.ResourceSlice) *cluster {
	t.Helper()
	made, err := class.Classes(class.Settings{Profiles: class.DefaultProfiles()})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{classes: classes{}, allocated: sets.New[structured.DeviceID](), cel: cel.NewCache(200, cel.Features{})}
	for i := range made {
		c.classes[made[i].Name] = &made[i]
	}
	for i := range list {
		c.slices = append(c.slices, &list[i])
	}
	return c
}

// classes is a lister.
type classes map[string]*resourceapi.DeviceClass

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if one := c[name]; one != nil {
		return one, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %q", name)
}

func (c classes) List() (list []*resourceapi.DeviceClass, _ error) {
	for _, one := range c {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b *resourceapi.DeviceClass) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// features are those that are on by default in Kubernetes 1.37.
func features() structured.Features {
	return structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
		ConsumableCapacity: true, FractionalCapacityRange: true,
	}
}

// try asks the allocator for a claim; false when it does not fit.
func (c *cluster) try(t testing.TB, claim *resourceapi.ResourceClaim) ([]string, bool) {
	t.Helper()
	state := structured.AllocatedState{
		AllocatedDevices: c.allocated, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(t.Context(), features(), state, c.classes, c.slices, c.cel)
	if err != nil {
		t.Fatal(err)
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	results, err := allocator.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) == 0 {
		return nil, false
	}
	var names []string
	for _, result := range results[0].Devices.Results {
		names = append(names, result.Device)
	}
	return names, true
}

// allocate asks for a claim and keeps the devices.
func (c *cluster) allocate(t testing.TB, claim *resourceapi.ResourceClaim) ([]string, bool) {
	t.Helper()
	names, ok := c.try(t, claim)
	for _, name := range names {
		c.allocated.Insert(structured.MakeDeviceID(pool.DefaultDriver, nodeName, name))
	}
	return names, ok
}

// request is a part of a claim: a number of devices of a class, which meet the expressions.
type request struct {
	class       string
	count       int
	expressions []string
}

func claim(requests ...request) *resourceapi.ResourceClaim {
	made := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim"}}
	for i, r := range requests {
		exact := &resourceapi.ExactDeviceRequest{DeviceClassName: r.class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(r.count)}
		for _, expression := range r.expressions {
			exact.Selectors = append(exact.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
		}
		made.Spec.Devices.Requests = append(made.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i), Exactly: exact})
	}
	return made
}

// migClass returns the name of the class of a profile without attributes.
func migClass(profile string) string { return "mig-" + profile + "." + pool.DefaultDriver }
