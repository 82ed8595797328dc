package inventory

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// faultLab is a simulated machine with a test clock, whose scans and events happen when the test requests them.
type faultLab struct {
	t       *testing.T
	machine *sim.Machine
	adapter *nvidia.Adapter
	picture *picture
	now     time.Time
	events  chan gpu.Event
	id      gpu.UUID
}

func newFaultLab(t *testing.T, profile string) *faultLab {
	t.Helper()
	m, err := sim.Create(filepath.Join(t.TempDir(), "machine"), profile)
	if err != nil {
		t.Fatal(err)
	}
	l := &faultLab{t: t, machine: m, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), events: make(chan gpu.Event, 64)}
	l.picture = newPicture(health.Rules{}, nil)
	root := m.Root()
	l.adapter = nvidia.New(nvidia.Deps{Library: m.NVML(), Now: func() time.Time { return l.now }, Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}})
	l.scans(5 * time.Second)
	l.id = l.picture.scan.GPUs[1].UUID
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil { // The watch ends with the driver and starts again with it.
			l.adapter.Watch(ctx, func(e gpu.Event) { l.events <- e })
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; l.adapter.Close() })
	// The watch has started when it sees this event, which has no effect.
	for seen := false; !seen; {
		l.do(m.Inject(sim.Fault{GPU: "0", XID: 31}))
		select {
		case <-l.events:
			seen = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	return l
}

func (l *faultLab) do(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// scans scans every five seconds of the lab's clock for a duration, and less often over a long one.
func (l *faultLab) scans(long time.Duration) {
	l.t.Helper()
	step := max(aScan, long/24)
	for range long / step {
		l.now = l.now.Add(step)
		snapshot, err := l.adapter.Scan(l.t.Context())
		l.do(err)
		l.picture.scanned(snapshot, l.now, l.now, false)
	}
}

// await applies events until one matches.
func (l *faultLab) await(is func(gpu.Event) bool) {
	l.t.Helper()
	give := time.After(30 * time.Second)
	for {
		select {
		case e := <-l.events:
			e.Time = l.now
			l.picture.happened(e)
			if is(e) {
				return
			}
		case <-give:
			l.t.Fatal("the event does not come")
		}
	}
}

func (l *faultLab) verdict() string {
	card := l.picture.snapshot().GPU(l.id)
	if card == nil {
		return "absent"
	}
	codes := []string{}
	for _, c := range card.Health.Causes {
		codes = append(codes, c.Code)
	}
	slices.Sort(codes)
	return strings.TrimSpace(string(card.Health.State) + " " + strings.Join(codes, " "))
}

// act is a step of a fault's case: an action, a time that passes, and the wanted verdict afterwards.
type act struct {
	fault *sim.Fault
	// awaitXID waits for an event of this XID, and of the kernel's log where log is true, before the next scan.
	awaitXID uint64
	log      bool
	do       func(l *faultLab) error
	scan     time.Duration
	want     string
}

const aScan = 5 * time.Second

// believed is the time after which a value that the driver no longer has is believed to be gone.
const believed = 3 * aScan

func brk(f sim.Fault, want string) act { return act{fault: &f, scan: aScan, want: want} }
func xid(f sim.Fault, number uint64, want string) act {
	return act{fault: &f, awaitXID: number, log: true, want: want}
}
func wait(long time.Duration, want string) act { return act{scan: long, want: want} }
func clear1(want string) act {
	return act{do: func(l *faultLab) error { return l.machine.Clear(string(l.id)) }, scan: aScan, want: want}
}
func reset(want string) act { // by another program
	return act{do: func(l *faultLab) error { return l.machine.ResetGPUs(string(l.id)) }, scan: aScan, want: want}
}
func line(text string, want string) act {
	return act{do: func(l *faultLab) error {
		pci := strings.TrimSuffix(l.picture.scan.GPU(l.id).PCI.String(), ".0")
		return l.machine.Inject(sim.Fault{GPU: string(l.id), Log: fmt.Sprintf(text, pci)})
	}, log: true, scan: aScan, want: want}
}

// faultTable has every fault of the simulator with the verdict that it leads to and the steps of its repair.
func faultTable() map[string]struct {
	profile string
	acts    []act
} {
	const minute = time.Minute
	silent := func(n uint64) []act { // the driver never reports an event
		name := fmt.Sprintf("XID%d", n)
		at, later := "NeedsReset "+name, "NeedsReset "+name
		if n == 79 {
			at = "NeedsReboot " + name // until the GPU has answered two scans
		}
		return []act{
			xid(sim.Fault{XID: n, Recovery: "none"}, n, at), wait(2*aScan, later), wait(4*minute, later), wait(minute+aScan, "Healthy"),
			xid(sim.Fault{XID: n, Recovery: "none"}, n, at), wait(6*minute, later), wait(5*minute, "Healthy"),
		}
	}
	lags := func(n uint64) []act { // the driver reports an action after its third timeout
		name := fmt.Sprintf("XID%d", n)
		at := "NeedsReset " + name
		if n == 79 {
			at = "NeedsReboot " + name
		}
		return []act{
			xid(sim.Fault{XID: n, Recovery: "gpu-reset", RecoveryAfter: time.Hour}, n, at), wait(135*time.Second, "NeedsReset "+name),
			brk(sim.Fault{Recovery: "gpu-reset"}, "NeedsReset RECOVERY_ACTION "+name), wait(20*minute, "NeedsReset RECOVERY_ACTION "+name),
			brk(sim.Fault{Recovery: "none"}, "Healthy"),
		}
	}
	old := sim.Fault{XID: 48, Recovery: sim.RecoveryUnsupported}
	return map[string]struct {
		profile string
		acts    []act
	}{
		"XID, application": {"h100x8", []act{
			xid(sim.Fault{XID: 69}, 69, "Degraded XID69"), wait(aScan, "Healthy"),
		}},
		"XID, application, driver without field 230": {"h100x8", []act{
			{fault: &sim.Fault{Recovery: sim.RecoveryUnsupported}, scan: believed, want: "Healthy"},
			xid(sim.Fault{XID: 69}, 69, "Unhealthy XID69"), wait(55*time.Second, "Unhealthy XID69"), wait(2*aScan, "Healthy"),
		}},
		"XID, application, that was worse": {"h100x8", []act{
			xid(sim.Fault{XID: 69, Recovery: "gpu-reset"}, 69, "Degraded XID69"), wait(aScan, "NeedsReset RECOVERY_ACTION XID69"), reset("Healthy"),
		}},
		"XID that the driver never sends": {"h100x8", []act{xid(sim.Fault{XID: 3}, 3, "Degraded XID3"), wait(aScan, "Healthy")}},
		"XID 119, silent":                 {"h100x8", silent(119)},
		"XID 48, silent":                  {"h100x8", silent(48)},
		"XID 74, silent":                  {"h100x8", silent(74)},
		"XID 79, silent":                  {"h100x8", silent(79)},
		"XID 119, recovery lags":          {"h100x8", lags(119)},
		"XID 48, recovery lags":           {"h100x8", lags(48)},
		"XID 74, recovery lags":           {"h100x8", lags(74)},
		"XID 79, recovery lags":           {"h100x8", lags(79)},
		"XID in the log only":             {"h100x8", []act{xid(sim.Fault{XID: 119, LogOnly: true}, 119, "NeedsReset XID119"), reset("Healthy")}},
		"reset by others, field 230":      {"h100x8", []act{xid(sim.Fault{XID: 95, Recovery: "gpu-reset"}, 95, "NeedsReset XID95"), wait(aScan, "NeedsReset RECOVERY_ACTION XID95"), reset("Healthy")}},
		"reset by others, silent":         {"h100x8", []act{xid(sim.Fault{XID: 95, Recovery: "none"}, 95, "NeedsReset XID95"), wait(minute, "NeedsReset XID95"), reset("Healthy")}},
		"reset by others, no field 230":   {"h100x8", []act{xid(old, 48, "NeedsReset XID48"), wait(3*time.Hour, "NeedsReset XID48"), reset("Healthy")}},
		"reset by others, in the log": {"h100x8", []act{
			xid(old, 48, "NeedsReset XID48"), wait(minute, "NeedsReset XID48"), line("nvidia %s.0: reset done", "Healthy"),
		}},
		"forged lines": {"h100x8", []act{
			xid(old, 48, "NeedsReset XID48"), {do: func(l *faultLab) error {
				return l.machine.Inject(sim.Fault{GPU: string(l.id), Log: "a program called nvidia 0000:43:00.0: reset done"})
			}, scan: believed, want: "NeedsReset XID48"}, clear1("Healthy"),
		}},
		"recovery action in the log": {"h100x8", []act{
			xid(sim.Fault{XID: 119, Recovery: "none"}, 119, "NeedsReset XID119"), wait(minute, "NeedsReset XID119"),
			line("NVRM: Xid (PCI:%s): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "Healthy"),
		}},
		"driver loaded again": {"h100x8", []act{
			xid(old, 48, "NeedsReset XID48"), brk(sim.Fault{DriverGone: true}, "Gone DRIVER_MISSING XID48"),
			{do: func(l *faultLab) error { return l.machine.Clear(sim.ClearDriver) }, scan: aScan, want: "Healthy"},
		}},
		"driver loaded again unseen": {"h100x8", []act{
			xid(old, 48, "NeedsReset XID48"), wait(believed, "NeedsReset XID48"),
			{do: func(l *faultLab) error {
				if err := l.machine.Inject(sim.Fault{DriverGone: true}); err != nil {
					return err
				}
				return l.machine.Clear(sim.ClearDriver)
			}, scan: 2 * aScan, want: "Healthy"},
		}},
		"lost":                       {"h100x8", []act{xid(sim.Fault{Lost: true}, 79, "NeedsReboot XID79"), wait(aScan, "Gone GPU_LOST XID79"), clear1("Healthy")}},
		"lost silently":              {"h100x8", []act{brk(sim.Fault{LostSilently: true}, "Gone GPU_LOST"), clear1("Healthy")}},
		"off the bus":                {"h100x8", []act{xid(sim.Fault{OffBus: true}, 79, "NeedsReboot XID79"), wait(aScan, "Gone OFF_BUS XID79"), clear1("Healthy")}},
		"ECC":                        {"h100x8", []act{xid(sim.Fault{ECC: 2}, 48, "NeedsReset XID48"), wait(aScan, "NeedsReset ECC_DOUBLE_BIT RECOVERY_ACTION XID48"), reset("Healthy")}},
		"ECC in SRAM, silent driver": {"h100x8", []act{xid(sim.Fault{ECCSRAM: 2, Recovery: "none"}, 48, "NeedsReset XID48"), wait(time.Hour, "NeedsReset ECC_SRAM_UNCORRECTABLE XID48"), reset("Healthy")}},
		"ECC, contained": {"h100x8", []act{
			xid(sim.Fault{XID: 94}, 94, "Degraded XID94"), xid(sim.Fault{XID: 48}, 48, "Degraded XID48 XID94"), wait(aScan, "Degraded ECC_DOUBLE_BIT"),
			brk(sim.Fault{Recovery: "drain-and-reset"}, "Draining ECC_DOUBLE_BIT RECOVERY_ACTION"), reset("Healthy"),
		}},
		"ECC, not contained by the GPU": {"l40sx8", []act{
			xid(sim.Fault{XID: 94}, 94, "Degraded XID94"), wait(2*aScan, "NeedsReset ECC_DOUBLE_BIT"), reset("Healthy"),
		}},
		"temperature":       {"h100x8", []act{brk(sim.Fault{Temperature: 91}, "Degraded TEMPERATURE_SLOWDOWN"), brk(sim.Fault{Temperature: 120}, "Unhealthy TEMPERATURE_SHUTDOWN"), clear1("Healthy")}},
		"row remap pending": {"h100x8", []act{brk(sim.Fault{RowRemap: sim.RowRemapPending}, "Draining RECOVERY_ACTION ROW_REMAP_PENDING"), brk(sim.Fault{Recovery: "none"}, "Degraded ROW_REMAP_PENDING"), reset("Healthy")}},
		"row remap pending, no event": {"h100x8", []act{
			{fault: &sim.Fault{RowRemap: sim.RowRemapPending, Recovery: sim.RecoveryUnsupported}, scan: believed, want: "NeedsReset ROW_REMAP_PENDING"}, reset("Healthy"),
		}},
		"row remap failed": {"h100x8", []act{
			xid(sim.Fault{RowRemap: sim.RowRemapFailed}, 64, "NeedsReset XID64"), wait(aScan, "NeedsReset RECOVERY_ACTION ROW_REMAP_FAILURE XID64"),
			reset("NeedsReset RECOVERY_ACTION ROW_REMAP_FAILURE"), clear1("Healthy"),
		}},
		"NVLinks down":     {"h100x8", []act{xid(sim.Fault{NVLinksDown: []int{2}}, 74, "NeedsReset XID74"), wait(aScan, "NeedsReset NVLINK_DOWN RECOVERY_ACTION XID74"), reset("Healthy")}},
		"all NVLinks down": {"h100x8", []act{xid(sim.Fault{AllNVLinksDown: true}, 74, "NeedsReset XID74"), wait(aScan, "NeedsReset NVLINK_DOWN RECOVERY_ACTION XID74"), reset("Healthy")}},
		"NVLink errors":    {"h100x8", []act{brk(sim.Fault{NVLinkErrors: 500}, "Degraded NVLINK_ERRORS"), wait(11*minute, "Healthy")}},
		"retired pages":    {"v100x8-hybrid-mesh", []act{brk(sim.Fault{RetiredPages: true}, "NeedsReset RETIRED_PAGES_PENDING"), reset("Healthy")}},
		"throttle":         {"h100x8", []act{brk(sim.Fault{Throttle: sim.ThrottlePowerBrake}, "Healthy"), wait(15*time.Second, "Degraded THROTTLE_POWER_BRAKE"), clear1("Degraded THROTTLE_POWER_BRAKE"), wait(minute+aScan, "Healthy")}},
		"fabric":           {"h100x8", []act{brk(sim.Fault{Fabric: sim.FabricInProgress}, "Unhealthy FABRIC_NOT_READY"), brk(sim.Fault{Fabric: sim.FabricFailed}, "Unhealthy FABRIC_ERROR"), clear1("Healthy")}},
		"recovery action": {"h100x8", []act{
			brk(sim.Fault{Recovery: "gpu-reset"}, "NeedsReset RECOVERY_ACTION"), brk(sim.Fault{Recovery: "drain-and-reset"}, "Draining RECOVERY_ACTION"),
			brk(sim.Fault{Recovery: "drain-p2p"}, "Unhealthy RECOVERY_ACTION"), brk(sim.Fault{Recovery: "node-reboot"}, "NeedsReboot RECOVERY_ACTION"),
			brk(sim.Fault{Recovery: "bus-reset"}, "NeedsReset RECOVERY_ACTION"), brk(sim.Fault{Recovery: "system-reboot"}, "NeedsReboot RECOVERY_ACTION"),
			brk(sim.Fault{Recovery: "recover-imex-domain"}, "Unhealthy RECOVERY_ACTION"), brk(sim.Fault{Recovery: "none"}, "Healthy"),
		}},
		"busy":    {"h100x8", []act{brk(sim.Fault{Busy: true}, "Healthy")}},
		"removed": {"h100x8", []act{brk(sim.Fault{Remove: true}, "absent"), clear1("Healthy")}},
		"a call that hangs": {"h100x8", []act{{do: func(l *faultLab) error {
			if err := l.machine.Inject(sim.Fault{GPU: string(l.id), Hang: "GetTotalEccErrors", HangFor: time.Millisecond}); err != nil {
				return err
			}
			l.picture.hung("NVML_TIMEOUT", l.id, "nvmlDeviceGetTotalEccErrors", 10*time.Second, l.now) // as the loop records when the deadline passes
			return nil
		}, want: "Unhealthy NVML_TIMEOUT"}, wait(aScan, "Healthy")}},
		"a transient error": {"h100x8", []act{
			brk(sim.Fault{Transient: sim.TransientError{Call: "GetRemappedRows", Error: "UNKNOWN", Times: 1}}, "Degraded GPU_READ_FAILED"), wait(aScan, "Healthy"),
		}},
		"an error that stays": {"h100x8", []act{
			brk(sim.Fault{Transient: sim.TransientError{Call: "GetMigMode", Error: "UNKNOWN"}}, "Degraded GPU_READ_FAILED"),
			wait(2*aScan, "Unhealthy GPU_READ_FAILED GPU_UNREADABLE"), clear1("Healthy"),
		}},
		"transient errors do not prove anything": {"h100x8", []act{
			xid(sim.Fault{XID: 119, Recovery: "none"}, 119, "NeedsReset XID119"), wait(4*minute, "NeedsReset XID119"),
			brk(sim.Fault{Transient: sim.TransientError{Call: "GetFieldValues", Error: "TIMEOUT", Times: 1}}, "NeedsReset GPU_READ_FAILED XID119"),
			wait(4*minute, "NeedsReset XID119"), wait(2*minute, "Healthy"),
		}},
	}
}

// TestFaultTable injects each fault that the simulator supports. Each row has a GPU of its own; several rows, one after
// the other, share a machine.
func TestFaultTable(t *testing.T) {
	table := faultTable()
	const onOne = 6
	byProfile := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		byProfile[table[name].profile] = append(byProfile[table[name].profile], name)
	}
	for _, profile := range slices.Sorted(maps.Keys(byProfile)) {
		for names := range slices.Chunk(byProfile[profile], onOne) {
			t.Run(profile, func(t *testing.T) {
				t.Parallel() // most of the time is spent waiting for events
				l := newFaultLab(t, profile)
				cards := l.picture.scan.GPUs
				for i, name := range names {
					l.id = cards[i+1].UUID
					t.Run(name, func(t *testing.T) { l.run(t, table[name].acts) })
					l.do(l.machine.Clear(sim.ClearAll))
					l.scans(2 * aScan)
				}
			})
		}
	}
}

// run runs the steps of a fault.
func (l *faultLab) run(t *testing.T, acts []act) {
	outer := l.t
	l.t = t
	defer func() { l.t = outer }()
	if l.verdict() != "Healthy" {
		t.Fatalf("at first %s", l.verdict())
	}
	for i, step := range acts {
		if step.fault != nil {
			f := *step.fault
			if !f.DriverGone {
				f.GPU = string(l.id)
			}
			l.do(l.machine.Inject(f))
		}
		if step.do != nil {
			l.do(step.do(l))
		}
		switch {
		case step.awaitXID != 0: // from NVML and from the log, or the second one would be another report later
			copies := 2
			if step.fault.LogOnly {
				copies = 1
			}
			for range copies {
				l.await(func(e gpu.Event) bool { return e.Code == gpu.XID(step.awaitXID) })
			}
		case step.log:
			l.await(func(e gpu.Event) bool { return e.Log && (e.Reset || e.Code == gpu.XID(154)) })
		}
		l.scans(step.scan)
		if got := l.verdict(); got != step.want {
			t.Fatalf("step %d (%+v): got %q; want %q", i+1, step.fault, got, step.want)
		}
	}
}

// TestFaultTableIsComplete fails when the simulator supports a fault that the table does not have.
func TestFaultTableIsComplete(t *testing.T) {
	seen := map[string]bool{
		"GPU":  true,                                             // names the GPU
		"Hang": true, "HangFor": true, "Log": true, "Busy": true, // injected by a step's action
		"CUDA": true, // of libcuda, which no scan calls; the tests of berth-agent validate have them
	}
	for _, test := range faultTable() {
		for _, step := range test.acts {
			if step.fault == nil {
				continue
			}
			v := reflect.ValueOf(*step.fault)
			for i := range v.NumField() {
				seen[v.Type().Field(i).Name] = seen[v.Type().Field(i).Name] || !v.Field(i).IsZero()
			}
		}
	}
	fields := reflect.TypeFor[sim.Fault]()
	for field := range fields.Fields() {
		if !seen[field.Name] {
			t.Errorf("the table has no fault with %s", field.Name)
		}
	}
}
