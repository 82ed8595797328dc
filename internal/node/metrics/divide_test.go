package metrics_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

const mib = 1 << 20

// memory is the memory of a GPU in bytes, and what the processes of each pod use of it; below 0 when that is not known.
type memory struct {
	used      float64
	free      float64
	reserved  float64
	total     float64
	pods      []float64
	host      float64
	exclusive bool
}

// memoryFields are the ends of the names of the fields of memory.
func memoryFields() []string { return []string{"USED", "FREE", "RESERVED", "TOTAL"} }

// input is a node with one GPU that the pods share: pod-0 has the first share, and so on.
func (m memory) input(t testing.TB) metrics.Input {
	sample := gpu.GPUSample{GPU: "GPU-a", ProcessesKnown: true}
	sample.Set(gpu.MemoryUsed, m.used)
	sample.Set(gpu.MemoryFree, m.free)
	sample.Set(gpu.MemoryReserved, m.reserved)
	sample.Set(gpu.MemorySize, m.total)
	in := metrics.Input{
		Node: "node-a", Vendors: []gpu.Traits{{Name: "v", DCGM: true}}, Snapshot: &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a", Vendor: "v"}}},
		Owners: map[int]metrics.Owner{},
	}
	for _, name := range memoryFields() {
		in.DCGMFields = append(in.DCGMFields, listed(t, "DCGM_FI_DEV_FB_"+name+", gauge, x")...)
	}
	for i, bytes := range m.pods {
		key := gpu.DeviceKey{GPU: "GPU-a", Share: i + 1}
		if m.exclusive {
			key.Share = 0
		}
		in.Owners[i+1] = owner(fmt.Sprint("pod-", i))
		in.Holdings = append(in.Holdings, holding(key, in.Owners[i+1], "", ""))
		if bytes != 0 {
			sample.Processes = append(sample.Processes, gpu.ProcessSample{
				PID: i + 1, GI: gpu.NoInstance, CI: gpu.NoInstance, MemoryKnown: bytes > 0, MemoryBytes: uint64(max(bytes, 0)),
			})
		}
	}
	if m.host > 0 {
		sample.Processes = append(sample.Processes, gpu.ProcessSample{PID: 1000, GI: gpu.NoInstance, CI: gpu.NoInstance, MemoryKnown: true, MemoryBytes: uint64(m.host)})
	}
	in.Sample.GPUs = []gpu.GPUSample{sample}
	return in
}

// orRest returns the label that distinguishes a part, or what the part without it is.
func orRest(of string) string {
	if of == "" {
		return "rest"
	}
	return of
}

// TestDivide checks the parts of a shared GPU's memory: the pods' in their order, then the rest.
func TestDivide(t *testing.T) {
	const third = 26002.67 * mib
	for title, test := range map[string]struct {
		memory
		want []string
	}{
		"whole MiB": {
			memory{used: 3000 * mib, free: 6000 * mib, reserved: 600 * mib, total: 9600 * mib, pods: []float64{1000 * mib, 1500 * mib}, host: 500 * mib}, []string{
				"USED pod-0=1000 pod-1=1500 rest=500", "FREE pod-0=2000 pod-1=3000 rest=1000",
				"RESERVED pod-0=200 pod-1=300 rest=100", "TOTAL pod-0=3200 pod-1=4800 rest=1600",
			},
		},
		"parts that are rounded up": {
			memory{used: 3 * third, free: 3000 * mib, total: 3*third + 3000*mib, pods: []float64{third, third, third}}, []string{
				"USED pod-0=26003 pod-1=26002 pod-2=26003 rest=0", "FREE pod-0=1000 pod-1=1000 pod-2=1000",
				"RESERVED pod-0=0 pod-1=0 pod-2=0", "TOTAL pod-0=27003 pod-1=27002 pod-2=27003",
			},
		},
		"a pod that uses nothing": {
			memory{used: 100 * mib, free: 900 * mib, reserved: 50 * mib, total: 1050 * mib, pods: []float64{0, 50 * mib}}, []string{
				"USED pod-0=0 pod-1=50 rest=50", "FREE pod-1=450 rest=450", "RESERVED pod-1=25 rest=25", "TOTAL pod-1=525 rest=525",
			},
		},
		"nothing is used": {
			memory{free: 900 * mib, reserved: 50 * mib, total: 950 * mib, pods: []float64{0, 0}}, []string{
				"USED pod-0=0 pod-1=0 rest=0", "FREE rest=900", "RESERVED rest=50", "TOTAL rest=950",
			},
		},
		"a full GPU": {
			memory{used: 900 * mib, reserved: 90 * mib, total: 990 * mib, pods: []float64{300 * mib, 600 * mib}}, []string{
				"USED pod-0=300 pod-1=600 rest=0", "FREE pod-0=0 pod-1=0", "RESERVED pod-0=30 pod-1=60", "TOTAL pod-0=330 pod-1=660",
			},
		},
		"processes of another moment": {
			memory{used: 100 * mib, free: 900 * mib, reserved: 50 * mib, total: 1050 * mib, pods: []float64{80 * mib, 30 * mib}}, []string{
				"USED rest=100", "FREE rest=900", "RESERVED rest=50", "TOTAL rest=1050",
			},
		},
		"a pod whose use is not known": {
			memory{used: 100 * mib, free: 900 * mib, reserved: 50 * mib, total: 1050 * mib, pods: []float64{-1, 20 * mib}}, []string{
				"USED pod-1=20 rest=80", "FREE pod-1=180 rest=720", "RESERVED pod-1=10 rest=40", "TOTAL pod-1=210 rest=840",
			},
		},
		"a GPU of one pod that uses nothing": {
			memory{free: 900 * mib, reserved: 50 * mib, total: 950 * mib, pods: []float64{0}, exclusive: true}, []string{
				"USED pod-0=0", "FREE pod-0=900", "RESERVED pod-0=50", "TOTAL pod-0=950",
			},
		},
	} {
		t.Run(title, func(t *testing.T) {
			families := parse(t, metrics.DCGM(test.input(t)))
			var got []string
			for _, name := range memoryFields() {
				line := name
				for _, m := range series(families, "DCGM_FI_DEV_FB_"+name, "GPU-a") {
					line += fmt.Sprintf(" %s=%v", orRest(label(m, "pod")), value(m))
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInstancesRest checks what a partitioned GPU has beside its one GPU instance.
func TestInstancesRest(t *testing.T) {
	for title, test := range map[string]struct {
		// used and free, in MiB
		gpu      [2]float64
		instance [2]float64
		want     string
	}{
		"a part of the GPU":            {[2]float64{50, 950}, [2]float64{40, 360}, "USED 3=40 rest=10 FREE 3=360 rest=590"},
		"the whole GPU":                {[2]float64{40, 960}, [2]float64{40, 960}, "USED 3=40 rest=0 FREE 3=960"},
		"a rest that is full":          {[2]float64{50, 360}, [2]float64{40, 360}, "USED 3=40 rest=10 FREE 3=360 rest=0"},
		"measured at another moment":   {[2]float64{30, 970}, [2]float64{40, 960}, "USED 3=40 FREE 3=960 rest=10"},
		"nothing is used or free here": {[2]float64{40, 0}, [2]float64{40, 0}, "USED 3=40 rest=0 FREE 3=0"},
	} {
		t.Run(title, func(t *testing.T) {
			in := memory{used: test.gpu[0] * mib, free: test.gpu[1] * mib}.input(t)
			in.Snapshot.GPUs[0].MIG = gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{{Partition: gpu.Partition{UUID: "MIG-1", Profile: "2g.20gb"}, GI: 3}}}
			instance := gpu.DeviceSample{UUID: "MIG-1"}
			instance.Set(gpu.MemoryUsed, test.instance[0]*mib)
			instance.Set(gpu.MemoryFree, test.instance[1]*mib)
			in.Sample.GPUs[0].Devices = []gpu.DeviceSample{instance}
			families := parse(t, metrics.DCGM(in))
			var got []string
			for _, name := range memoryFields()[:2] {
				got = append(got, name)
				for _, m := range series(families, "DCGM_FI_DEV_FB_"+name, "GPU-a") {
					got = append(got, fmt.Sprintf("%s=%v", orRest(label(m, "GPU_I_ID")), value(m)))
				}
			}
			if got := strings.Join(got, " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestDivideAddsUp: whatever the pods use, the parts of each field are whole, add up to the GPU's value, and differ by at most 1 MiB from
// the exact ones; no ratio is 0/0, and each pod that uses memory has one.
func TestDivideAddsUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bytes := func(name string) float64 {
			return float64(rapid.OneOf(rapid.Just[uint64](0), rapid.Uint64Range(0, 4*mib), rapid.Uint64Range(0, 192<<30)).Draw(rt, name))
		}
		var m memory
		for range rapid.IntRange(2, 12).Draw(rt, "pods") {
			m.pods = append(m.pods, bytes("pod"))
			m.used += m.pods[len(m.pods)-1]
		}
		m.host = bytes("host")
		m.used, m.free, m.reserved = m.used+m.host, bytes("free"), bytes("reserved")
		m.total = m.used + m.free + m.reserved
		in := m.input(t)
		families := parse(t, metrics.DCGM(in))
		for i, whole := range []float64{m.used, m.free, m.reserved, m.total} {
			name := memoryFields()[i]
			list := series(families, "DCGM_FI_DEV_FB_"+name, "GPU-a")
			if sum(list) != math.Round(whole/mib) {
				rt.Fatalf("%s adds up to %v, want %v", name, sum(list), math.Round(whole/mib))
			}
			for _, one := range list {
				if value(one) < 0 || value(one) != math.Trunc(value(one)) {
					rt.Fatalf("%s of pod %q is %v", name, label(one, "pod"), value(one))
				}
				i := slices.IndexFunc(in.Holdings, func(h metrics.Holding) bool { return h.Owner.Pod == label(one, "pod") })
				if i < 0 {
					continue
				}
				if exact := whole / mib * m.pods[i] / max(m.used, 1); math.Abs(value(one)-exact) >= 1.001 {
					rt.Fatalf("%s of pod-%d is %v, want about %v", name, i, value(one), exact)
				}
			}
		}
		for _, used := range series(families, "DCGM_FI_DEV_FB_USED", "GPU-a") {
			for _, below := range denominators() {
				if got, found := quotient(families, used, below); found && math.IsNaN(got) || !found && value(used) > 0 {
					rt.Fatalf("used/%v of pod %q is %v, %v", below, label(used, "pod"), got, found)
				}
			}
		}
	})
}
