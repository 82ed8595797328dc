package drafleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/core/fleet/firstfit"
)

// lister lists the classes of a kit.
type lister map[string]*resourceapi.DeviceClass

func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	if one := l[name]; one != nil {
		return one, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %q", name)
}

func (l lister) List() ([]*resourceapi.DeviceClass, error) {
	return slices.Collect(maps.Values(l)), nil
}

// allocator returns one as the scheduler of Kubernetes 1.37 makes it with the default feature gates.
func (k *kit) allocator(t testing.TB, s *state, cache *cel.Cache) structured.Allocator {
	t.Helper()
	features := structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
		ConsumableCapacity: true, FractionalCapacityRange: true,
	}
	held := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for name := range s.held {
		parts := strings.Split(name, "/")
		held.AllocatedDevices.Insert(structured.MakeDeviceID(parts[0], parts[1], parts[2]))
	}
	made, err := structured.NewAllocator(t.Context(), features, held, lister(k.classes), s.slices, cache)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// answer is what the allocator or the prediction says: the devices, as CLAIM/REQUEST=DRIVER/POOL/DEVICE.
type answer struct {
	outcome firstfit.Outcome
	devices []string
}

// allocate asks the allocator. Unknown is an answer that took too long.
func (k *kit) allocate(t testing.TB, s *state, cache *cel.Cache) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	results, err := k.allocator(t, s, cache).Allocate(ctx, s.node, s.claims)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return answer{}
	case errors.Is(err, structured.ErrFailedAllocationOnNode) || err == nil && results == nil:
		return answer{outcome: firstfit.DoesNotFit}
	case err != nil:
		return answer{outcome: firstfit.Aborted}
	}
	made := answer{outcome: firstfit.Fits}
	for c, result := range results {
		for _, d := range result.Devices.Results {
			made.devices = append(made.devices, fmt.Sprintf("%d/%s=%s/%s/%s", c, d.Request, d.Driver, d.Pool, d.Device))
		}
	}
	return made
}

// class returns a class of the kit, or nil.
func (k *kit) class(name string) *resourceapi.DeviceClass { return k.classes[name] }

// predict is what the scheduler does.
func (k *kit) predict(t testing.TB, s *state, c *Converter) (answer, error) {
	t.Helper()
	n, err := c.Node(s.node, NewSlices(s.slices))
	if err != nil {
		return answer{}, err
	}
	claims, err := n.Claims(t.Context(), s.claims, k.class)
	if err != nil {
		return answer{}, err
	}
	held := n.Held(func(id firstfit.ID) bool { return s.held[id.Driver+"/"+id.Pool+"/"+id.Device] })
	result, err := n.Predict(claims, held, firstfit.DefaultSteps)
	if err != nil {
		return answer{}, err
	}
	made := answer{outcome: result.Outcome}
	for _, p := range result.Picks {
		id := n.ID(p.Device)
		request := s.claims[p.Claim].Spec.Devices.Requests[p.Request].Name
		made.devices = append(made.devices, fmt.Sprintf("%d/%s=%s/%s/%s", p.Claim, request, id.Driver, id.Pool, id.Device))
	}
	return made, nil
}

// seed returns BERTH_SEED, or 1.
func seed(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv("BERTH_SEED")
	if text == "" {
		return 1
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("BERTH_SEED: %v", err)
	}
	return n
}

// TestAllocator compares predictions with the scheduler's allocator: 500 random cases, or 10,000 with BERTH_SOAK=1. BERTH_SEED
// repeats a run.
func TestAllocator(t *testing.T) {
	cases := 500
	if os.Getenv("BERTH_SOAK") != "" {
		cases = 10_000
	}
	from := seed(t)
	t.Logf("seed %d", from)
	k := newKit(t)
	converter, cache := New(200), cel.NewCache(200, cel.Features{EnableConsumableCapacity: true})
	outcomes := map[firstfit.Outcome]int{}
	notSimple, slow, unknown := 0, 0, 0
	for i := range cases {
		s := k.random(t, rand.New(rand.NewPCG(from, uint64(i))))
		converter.Keep(nil) // The slices of all cases have the same names and versions.
		got, err := k.predict(t, s, converter)
		if errors.Is(err, firstfit.ErrNotSimple) {
			notSimple++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want := k.allocate(t, s, cache)
		if want.outcome == firstfit.Unknown {
			slow++
			continue
		}
		if got.outcome == firstfit.Unknown {
			unknown++
			continue
		}
		outcomes[want.outcome]++
		if got.outcome != want.outcome || !slices.Equal(got.devices, want.devices) {
			text, _ := yaml.Marshal(s.claims)
			t.Fatalf("case %d of seed %d: outcome %d with %v, want %d with %v for %s",
				i, from, got.outcome, got.devices, want.outcome, want.devices, text)
		}
	}
	t.Logf("[walks] %d cases, outcomes %v; %d not of the simple form; the allocator took too long for %d, and %d others are unknown",
		cases, outcomes, notSimple, slow, unknown)
	few := cases / 50
	if outcomes[firstfit.Fits] < 10*few || outcomes[firstfit.DoesNotFit] < 10*few || outcomes[firstfit.Aborted] < few {
		t.Errorf("outcomes %v: the comparison proves little", outcomes)
	}
	if notSimple > cases/5 || slow+unknown > few {
		t.Errorf("%d not of the simple form, %d too slow and %d unknown: the comparison proves little", notSimple, slow, unknown)
	}
}

// plainSlice returns a slice of a driver with devices 0, 1, and so on, as change makes them.
func plainSlice(driver string, devices int, change func(at int, d *resourceapi.Device)) *resourceapi.ResourceSlice {
	s := gpus("1", make([]string, devices)...)
	s.Name, s.Spec.Driver = driver, driver
	for i := range s.Spec.Devices {
		s.Spec.Devices[i].Name = strconv.Itoa(i)
		change(i, &s.Spec.Devices[i])
	}
	return s
}

// TestAllocatorOrder has what random cases meet seldom: what is wanted is what the allocator allocates, too.
func TestAllocatorOrder(t *testing.T) {
	k := newKit(t)
	yes := true
	set := func(d *resourceapi.Device, name resourceapi.QualifiedName, text string) {
		d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &text}
	}
	nothing := func(int, *resourceapi.Device) {}
	binding := func(at int, d *resourceapi.Device) {
		if at == 0 {
			d.Attributes["gpu.berth.dev/binding"] = resourceapi.DeviceAttribute{BoolValue: &yes}
			d.BindingConditions = []string{"example.com/ready"}
		}
	}
	perDevice := plainSlice("d", 3, func(at int, d *resourceapi.Device) {
		name := []string{"node-2", nodeName, nodeName}[at]
		d.NodeName = &name
	})
	perDevice.Spec.NodeName, perDevice.Spec.PerDeviceNodeSelection = nil, &yes
	twice := plainSlice("d", 8, func(at int, d *resourceapi.Device) { // All have "a"; four of them have "b" in the long form.
		set(d, "x", "a")
		if at == 1 || at == 3 || at == 4 || at == 6 {
			set(d, "d/x", "b")
		}
	})
	lists := plainSlice("d", 3, func(at int, d *resourceapi.Device) {
		d.Attributes["x"] = resourceapi.DeviceAttribute{StringValues: []string{"a"}}
		if at > 0 {
			set(d, "x", "a")
		}
	})
	tests := map[string]struct {
		slices []*resourceapi.ResourceSlice
		claim  *resourceapi.ResourceClaim
		held   []string
		want   []string
	}{
		"drivers by name": {
			[]*resourceapi.ResourceSlice{plainSlice("b", 1, nothing), plainSlice("a", 1, nothing)},
			of(2, "plain"), nil, []string{"a/0", "b/0"},
		},
		"pools with conditions last": {
			[]*resourceapi.ResourceSlice{plainSlice("b", 1, nothing), plainSlice("a", 2, binding)},
			of(2, "plain"), nil, []string{"b/0", "a/1"},
		},
		"a device of another node": {
			[]*resourceapi.ResourceSlice{perDevice},
			of(1, "plain"), nil, []string{"d/1"},
		},
		"not all are of the node": {
			[]*resourceapi.ResourceSlice{perDevice},
			of(3, "plain"), nil, nil,
		},
		"the long form comes first": {
			[]*resourceapi.ResourceSlice{twice},
			of(4, "plain", "d/x"), []string{"d/0"}, []string{"d/1", "d/3", "d/4", "d/6"},
		},
		"no list is equal to a value": {
			[]*resourceapi.ResourceSlice{lists},
			of(2, "plain", "d/x"), nil, []string{"d/1", "d/2"},
		},
		"a list alone": {
			[]*resourceapi.ResourceSlice{lists},
			of(1, "plain", "d/x"), nil, []string{"d/0"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := &state{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, slices: test.slices, held: map[string]bool{}}
			s.claims = []*resourceapi.ResourceClaim{test.claim}
			for _, name := range test.held {
				s.held[strings.Replace(name, "/", "/"+nodeName+"/", 1)] = true
			}
			want := answer{outcome: firstfit.DoesNotFit}
			for _, name := range test.want {
				want.outcome = firstfit.Fits
				want.devices = append(want.devices, "0/gpu="+strings.Replace(name, "/", "/"+nodeName+"/", 1))
			}
			allocated := k.allocate(t, s, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
			predicted, err := k.predict(t, s, New(10))
			if err != nil || !reflect.DeepEqual(allocated, want) || !reflect.DeepEqual(predicted, want) {
				t.Errorf("allocated %v, predicted %v, %v, want %v", allocated, predicted, err, want)
			}
		})
	}
}
