package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// twinDevices chooses one device at a time and sorts all free ones again each time.
func twinDevices(request DeviceRequest) []int {
	chosen := slices.Clone(request.Must)
	for len(chosen) < request.Size {
		picked := map[int]int{}
		for _, i := range chosen {
			picked[request.Devices[i].GPU]++
		}
		candidates := without(request.Available, chosen)
		slices.SortFunc(candidates, func(i, j int) int {
			a, b := request.Devices[i].GPU, request.Devices[j].GPU
			preferred := cmp.Compare(request.Load[b]+picked[b], request.Load[a]+picked[a])
			if request.Policy == Distributed {
				preferred = cmp.Or(cmp.Compare(picked[a], picked[b]), cmp.Compare(request.Load[a], request.Load[b]))
			}
			return cmp.Or(preferred, cmp.Compare(a, b), cmp.Compare(i, j))
		})
		chosen = append(chosen, candidates[0])
	}
	slices.Sort(chosen)
	return chosen
}

func TestChooseDevicesAgainstTwin(t *testing.T) {
	buffer := &DeviceBuffer{}
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.IntRange(1, 9).Draw(t, "gpus")
		request := DeviceRequest{
			Load:   rapid.SliceOfN(rapid.IntRange(0, 4), gpus, gpus).Draw(t, "load"),
			Policy: rapid.SampledFrom([]Policy{Distributed, Packed}).Draw(t, "policy"),
		}
		for _, g := range rapid.SliceOfN(rapid.IntRange(0, gpus-1), 1, 40).Draw(t, "devices") {
			request.Devices = append(request.Devices, Device{GPU: g})
		}
		all := make([]int, len(request.Devices))
		for i := range all {
			all[i] = i
		}
		shuffled := rapid.Permutation(all).Draw(t, "order")
		request.Available = shuffled[:rapid.IntRange(1, len(all)).Draw(t, "available")]
		request.Must = request.Available[:rapid.IntRange(0, len(request.Available)/2).Draw(t, "must")]
		request.Size = rapid.IntRange(max(1, len(request.Must)), len(request.Available)).Draw(t, "size")
		request.Buffer = buffer // the content of a used buffer must not matter
		got, err := ChooseDevices(request)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(twinDevices(request), got); diff != "" {
			t.Fatalf("(-twin +got)\n%s", diff)
		}
	})
}

// replicas returns count devices for each of some GPUs. Sorted by ID, the replicas of one GPU are adjacent, because an
// ID starts with the UUID.
func replicas(gpus, count int) ([]Device, []int) {
	var devices []Device
	var all []int
	for g := range gpus {
		for range count {
			all = append(all, len(devices))
			devices = append(devices, Device{GPU: g})
		}
	}
	return devices, all
}

// TestDeviceTranscripts runs testdata/devices.txt. It has one command:
//
//	devices policy=P size=N gpus=G replicas=R [load=(…)] [available=(…)] [must=(…)]
//
// Device i is replica i%R of GPU i/R.
func TestDeviceTranscripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/devices.txt", func(t *testing.T, d *datadriven.TestData) string {
		var policy string
		var size, gpus, count int
		d.ScanArgs(t, "policy", &policy)
		d.ScanArgs(t, "size", &size)
		d.ScanArgs(t, "gpus", &gpus)
		d.ScanArgs(t, "replicas", &count)
		devices, available := replicas(gpus, count)
		load := argInts(t, d, "load")
		if load == nil {
			load = make([]int, gpus)
		}
		if d.HasArg("available") {
			available = argInts(t, d, "available")
		}
		chosen, err := ChooseDevices(DeviceRequest{
			Devices: devices, Available: available, Must: argInts(t, d, "must"),
			Load: load, Size: size, Policy: Policy(policy),
		})
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		var text strings.Builder
		for g := range gpus {
			var mine []int
			for _, i := range chosen {
				if devices[i].GPU == g {
					mine = append(mine, i)
				}
			}
			if mine != nil {
				fmt.Fprintf(&text, "GPU %d: %v\n", g, mine)
			}
		}
		return text.String()
	})
}

func TestChooseDevicesErrors(t *testing.T) {
	tests := map[string]struct {
		change func(*DeviceRequest)
		want   string
	}{
		"policy": {func(r *DeviceRequest) { r.Policy = "spread" },
			`choose 2 devices: unknown policy "spread", want "distributed" or "packed"`},
		"no policy": {func(r *DeviceRequest) { r.Policy = "" },
			`choose 2 devices: unknown policy "", want "distributed" or "packed"`},
		"none":          {func(r *DeviceRequest) { r.Size = 0 }, "choose 0 devices: the number must be positive"},
		"too many":      {func(r *DeviceRequest) { r.Size = 5 }, "choose 5 devices: only 4 are available"},
		"twice is once": {func(r *DeviceRequest) { r.Available = []int{3, 3} }, "choose 2 devices: only 1 are available"},
		"available unknown": {func(r *DeviceRequest) { r.Available = []int{0, 4} },
			"choose 2 devices: available device 4 does not exist, there are 4"},
		"negative": {func(r *DeviceRequest) { r.Available = []int{-1, 1} },
			"choose 2 devices: available device -1 does not exist, there are 4"},
		"must not available": {func(r *DeviceRequest) { r.Available, r.Must = []int{0, 1}, []int{2} },
			"choose 2 devices: must be included: device 2 is not available"},
		"must too large": {func(r *DeviceRequest) { r.Must = []int{0, 1, 2} }, "choose 2 devices: 3 must be included"},
		"GPU without load": {func(r *DeviceRequest) { r.Load = []int{0} },
			"choose 2 devices: device 2 is on GPU 1, but there are loads for 1 GPUs"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			devices, all := replicas(2, 2)
			request := DeviceRequest{Devices: devices, Available: all, Load: make([]int, 2), Size: 2, Policy: Distributed}
			test.change(&request)
			got, err := ChooseDevices(request)
			if err == nil {
				t.Fatalf("got %v, want an error", got)
			}
			if diff := gocmp.Diff(test.want, err.Error()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func FuzzChooseDevices(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 2}, []byte{0, 1, 2, 4}, []byte{2}, []byte{3, 0, 1}, 2, true)
	f.Add([]byte{200}, []byte{1}, []byte{}, []byte{}, 1<<40, false)
	f.Fuzz(func(t *testing.T, devices, available, must, load []byte, size int, packed bool) {
		request := DeviceRequest{Size: size, Policy: Distributed}
		if packed {
			request.Policy = Packed
		}
		for _, g := range devices {
			request.Devices = append(request.Devices, Device{GPU: int(int8(g))})
		}
		request.Available, request.Must, request.Load = ints(available), ints(must), ints(load)
		got, err := ChooseDevices(request)
		if err != nil {
			return
		}
		if len(got) != size || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != size {
			t.Fatalf("asked for %d, got %v", size, got)
		}
		if left := without(request.Must, got); left != nil {
			t.Fatalf("%v must be included, got %v", left, got)
		}
		if strange := without(got, request.Available); strange != nil {
			t.Fatalf("%v were not available", strange)
		}
	})
}

func ints(values []byte) []int {
	var list []int
	for _, v := range values {
		list = append(list, int(int8(v)))
	}
	return list
}
