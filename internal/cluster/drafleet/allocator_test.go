package drafleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
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
		for _, one := range s.slices {
			converter.Forget(one.Name)
		}
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
			t.Fatalf("case %d of seed %d: outcome %d with %v, want %d with %v for %s", i, from, got.outcome, got.devices, want.outcome, want.devices, text)
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
