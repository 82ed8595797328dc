package deviceplugin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// devicesOf reads devices from lines of GPU[/MIG] [timeSlicing|mps N].
func devicesOf(t testing.TB, text string) []offer.Device {
	var devices []offer.Device
	indices := map[string]int{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		id, mig, _ := strings.Cut(f[0], "/")
		if _, seen := indices[id]; !seen {
			indices[id] = len(indices)
		}
		device := offer.Device{Key: gpu.DeviceKey{GPU: gpu.UUID(id), MIG: gpu.UUID(mig)}, Index: fmt.Sprint(indices[id]), Health: gpu.Healthy}
		if mig != "" {
			device.Index += ":" + strings.TrimPrefix(mig, "MIG-")
		}
		replicas := 0
		if len(f) > 1 {
			device.Mode = offer.Mode(f[1])
			if _, err := fmt.Sscan(f[2], &replicas); err != nil {
				t.Fatal(err)
			}
		}
		for n := range max(1, replicas) {
			device.Key.Share = min(replicas, n+1)
			device.ID = offer.DeviceID(device.Key)
			devices = append(devices, device)
		}
	}
	return devices
}

// TestReplicaTranscripts runs testdata/replicas.
//
//	offer [refuse]                               GPU[/MIG] [timeSlicing|mps N], a device or its replicas a line
//	ask N [packed] [must=(ID…)] [blocked=(ID…)]  the preferred of the free devices, the refusal, and the warning
//	take ID…                                     other containers have these
func TestReplicaTranscripts(t *testing.T) {
	var o offer.Offer
	var taken []string
	datadriven.RunTest(t, "testdata/replicas", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "offer":
			o = offer.Offer{Resource: "nvidia.com/gpu", RefuseMany: d.HasArg("refuse"), Devices: devicesOf(t, d.Input)}
			taken = nil
			return fmt.Sprintf("%d devices\n", len(o.Devices))
		case "take":
			for _, arg := range d.CmdArgs {
				taken = append(taken, arg.Key)
			}
			return ""
		}
		var policy placement.Policy
		var must, blocked []string
		for _, arg := range d.CmdArgs {
			switch arg.Key {
			case "packed":
				policy = placement.Packed
			case "must":
				must = arg.Vals
			case "blocked":
				blocked = arg.Vals
			}
		}
		v := (&viewer{vendors: testVendors(), strategy: Strategy{ID: v1alpha1.IDStrategyUUID}}).build(o, State{Policy: policy}, nil, nil, time.Time{})
		var available []string
		for _, device := range slices.Backward(o.Devices) {
			if !slices.Contains(taken, device.ID) {
				available = append(available, device.ID)
			}
		}
		ids, err := v.preferred(available, must, number(d.CmdArgs[0].Key), func(key gpu.DeviceKey) bool { return slices.Contains(blocked, offer.DeviceID(key)) })
		if err != nil {
			return err.Error()
		}
		text := strings.Join(ids, " ") + "\n"
		picked, err := v.pick(ids)
		if err == nil {
			err = v.limit(picked)
		}
		if err != nil {
			return text + err.Error() + "\n"
		}
		if warning := v.sharedWarning(picked); warning != "" {
			text += warning + "\n"
		}
		return text
	})
}

// twinChoice chooses one device at a time from all that are left: the GPU by policy, then, for the number of devices from that GPU, the
// MIG device by policy, then the lowest.
func twinChoice(devices []offer.Device, must, pool []int, size int, policy placement.Policy) []int {
	gpuOf := func(i int) string { return string(devices[i].Key.GPU) }
	deviceOf := func(i int) string { return string(devices[i].Key.Device()) }
	// grow completes must to size. Groups that are alike count in the order of their first devices.
	grow := func(must, pool []int, size int, group func(int) string) []int {
		var order []string
		load, picked := map[string]int{}, map[string]int{}
		for i := range devices {
			if order = append(order, group(i)); !slices.Contains(must, i) && !slices.Contains(pool, i) {
				load[group(i)]++
			}
		}
		chosen := slices.Clone(must)
		for _, i := range must {
			picked[group(i)]++
		}
		for len(chosen) < size {
			left := slices.DeleteFunc(slices.Clone(pool), func(i int) bool { return slices.Contains(chosen, i) })
			next := slices.MinFunc(left, func(i, j int) int {
				a, b := group(i), group(j)
				preferred := cmp.Compare(load[b]+picked[b], load[a]+picked[a])
				if policy == placement.Distributed {
					preferred = cmp.Or(cmp.Compare(picked[a], picked[b]), cmp.Compare(load[a], load[b]))
				}
				return cmp.Or(preferred, cmp.Compare(slices.Index(order, a), slices.Index(order, b)), cmp.Compare(i, j))
			})
			chosen = append(chosen, next)
			picked[group(next)]++
		}
		return chosen
	}
	count := map[string]int{}
	for _, i := range grow(must, pool, size, gpuOf) {
		count[gpuOf(i)]++
	}
	var all []int
	for name, n := range count {
		mine := func(list []int) []int {
			return slices.DeleteFunc(slices.Clone(list), func(i int) bool { return gpuOf(i) != name })
		}
		all = append(all, grow(mine(must), mine(pool), n, deviceOf)...)
	}
	slices.Sort(all)
	return all
}

// drawOffer makes GPUs that are whole, shared, or partitioned into MIG devices of which some are shared.
func drawOffer(t *rapid.T, modes ...offer.Mode) []offer.Device {
	var devices []offer.Device
	add := func(key gpu.DeviceKey, mode offer.Mode) {
		replicas := 1
		if mode != offer.Whole {
			replicas = rapid.IntRange(1, 4).Draw(t, "replicas")
		}
		for n := range replicas {
			if mode != offer.Whole {
				key.Share = n + 1
			}
			devices = append(devices, offer.Device{ID: offer.DeviceID(key), Key: key, Mode: mode, Health: gpu.Healthy})
		}
	}
	for c := range rapid.IntRange(1, 4).Draw(t, "GPUs") {
		key := gpu.DeviceKey{GPU: uuid(c)}
		mode := rapid.SampledFrom(modes).Draw(t, "mode")
		migs := rapid.IntRange(0, 3).Draw(t, "MIG devices")
		if migs == 0 || mode == offer.MPS {
			add(key, mode)
			continue
		}
		for p := range migs {
			key.MIG = gpu.UUID(fmt.Sprintf("MIG-%d%d", c, p))
			add(key, rapid.SampledFrom([]offer.Mode{offer.Whole, offer.TimeSlicing}).Draw(t, "MIG device's mode"))
		}
	}
	return devices
}

// drawRequest divides devices into those that must be, may be and cannot be taken.
func drawRequest(t *rapid.T, devices []offer.Device) (must, pool []int, size int) {
	for i := range devices {
		switch rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "state") {
		case 0:
			pool = append(pool, i)
		case 1:
			if rapid.Bool().Draw(t, "must") {
				must = append(must, i)
			}
		}
	}
	if len(must)+len(pool) == 0 {
		pool = []int{0}
	}
	return must, pool, rapid.IntRange(max(1, len(must)), len(must)+len(pool)).Draw(t, "size")
}

func viewOfDevices(devices []offer.Device, policy placement.Policy) *view {
	return (&viewer{vendors: testVendors(), strategy: Strategy{ID: v1alpha1.IDStrategyUUID}}).build(offer.Offer{Resource: resource, Devices: devices}, State{Policy: policy}, nil, nil, time.Time{})
}

func TestGroupsAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices := drawOffer(t, offer.Whole, offer.TimeSlicing)
		policy := rapid.SampledFrom([]placement.Policy{placement.Distributed, placement.Packed}).Draw(t, "policy")
		must, pool, size := drawRequest(t, devices)
		got := viewOfDevices(devices, policy).best(must, pool, size)
		if diff := gocmp.Diff(twinChoice(devices, must, pool, size, policy), got); diff != "" {
			t.Fatalf("%d of %v with %v, %s (-twin +got):\n%s", size, pool, must, policy, diff)
		}
	})
}

// TestMPSReplicasFromOneGPU: a request that devices without MPS, or one daemon, can serve is not refused.
func TestMPSReplicasFromOneGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices := drawOffer(t, offer.Whole, offer.TimeSlicing, offer.MPS, offer.MPS)
		policy := rapid.SampledFrom([]placement.Policy{placement.Distributed, placement.Packed}).Draw(t, "policy")
		must, pool, size := drawRequest(t, devices)
		v := viewOfDevices(devices, policy)
		possible := func(mine func(offer.Device) bool) bool {
			all := slices.DeleteFunc(slices.Concat(must, pool), func(i int) bool { return !mine(devices[i]) })
			outside := func(i int) bool { return !mine(devices[i]) }
			return len(all) >= size && !slices.ContainsFunc(must, outside)
		}
		can := size == 1 || possible(func(d offer.Device) bool { return d.Mode != offer.MPS })
		for i := range 4 {
			can = can || possible(func(d offer.Device) bool { return d.Mode == offer.MPS && d.Key.GPU == uuid(i) })
		}
		got := v.best(must, pool, size)
		if len(got) != size || !slices.IsSorted(got) {
			t.Fatalf("asked for %d, got %v", size, got)
		}
		if err := v.limit(got); (err == nil) != can {
			t.Fatalf("%d of %v with %v, %s: got %v, possible %v: %v", size, pool, must, policy, got, can, err)
		}
	})
}

func TestChannelSpecs(t *testing.T) {
	features := Features{IMEXChannels: []int{0, 7}}
	control := []gpu.DeviceNode{{Path: "/dev/nvidiactl", HostPath: "/driver/dev/nvidiactl"}}
	var got []string
	for _, spec := range features.channelSpecs("/dev/nvidia-caps-imex-channels/channel", control) {
		got = append(got, spec.HostPath+" "+spec.ContainerPath)
	}
	want := []string{
		"/driver/dev/nvidia-caps-imex-channels/channel0 /dev/nvidia-caps-imex-channels/channel0",
		"/driver/dev/nvidia-caps-imex-channels/channel7 /dev/nvidia-caps-imex-channels/channel7",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("specs differ (-want +got):\n%s", diff)
	}
}

// TestPreferDegradedReplicas: replicas of a degraded GPU are chosen when no healthy ones are left, and when the healthy ones
// could not be allocated together.
func TestPreferDegradedReplicas(t *testing.T) {
	const a, b, c = 0, 1, 2
	id := func(i, n int) string {
		return offer.DeviceID(gpu.DeviceKey{GPU: uuid(i), Share: n})
	}
	tests := map[string]struct {
		mode      offer.Mode
		degraded  int
		available []string
		size      int
		want      []string
	}{
		"a healthy replica":                       {offer.TimeSlicing, a, []string{id(a, 1), id(b, 1)}, 1, []string{id(b, 1)}},
		"healthy replicas of one GPU":             {offer.TimeSlicing, a, []string{id(a, 1), id(b, 1), id(b, 2)}, 2, []string{id(b, 1), id(b, 2)}},
		"a degraded replica besides":              {offer.TimeSlicing, a, []string{id(a, 1), id(a, 2), id(b, 1)}, 2, []string{id(a, 1), id(b, 1)}},
		"a healthy replica through MPS":           {offer.MPS, a, []string{id(a, 1), id(b, 1)}, 1, []string{id(b, 1)}},
		"healthy MPS replicas of one GPU":         {offer.MPS, a, []string{id(a, 1), id(a, 2), id(b, 1), id(b, 2), id(c, 1)}, 2, []string{id(b, 1), id(b, 2)}},
		"one healthy MPS replica is too few":      {offer.MPS, a, []string{id(a, 1), id(a, 2), id(b, 1)}, 2, []string{id(a, 1), id(a, 2)}},
		"healthy MPS replicas of two GPUs":        {offer.MPS, a, []string{id(a, 1), id(a, 2), id(b, 1), id(c, 1)}, 2, []string{id(a, 1), id(a, 2)}},
		"no GPU has enough MPS replicas: healthy": {offer.MPS, a, []string{id(a, 1), id(b, 1), id(c, 1)}, 2, []string{id(b, 1), id(c, 1)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var devices []offer.Device
			for i := range 3 {
				health := gpu.Healthy
				if i == tc.degraded {
					health = gpu.Degraded
				}
				for n := range 2 {
					key := gpu.DeviceKey{GPU: uuid(i), Share: n + 1}
					devices = append(devices, offer.Device{ID: offer.DeviceID(key), Key: key, Mode: tc.mode, Health: health})
				}
			}
			got, err := viewOfDevices(devices, placement.Distributed).preferred(tc.available, nil, tc.size, blocking())
			slices.Sort(got)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("preferred %v, %v; want %v", got, err, tc.want)
			}
		})
	}
}
