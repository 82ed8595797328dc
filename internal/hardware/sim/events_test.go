package sim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

// watch creates an event set for the XIDs of the given GPUs.
func watch(t testing.TB, lib nvml.Interface, devices ...nvml.Device) nvml.EventSet {
	t.Helper()
	set, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatalf("EventSetCreate = %v", ret)
	}
	t.Cleanup(func() { set.Free() })
	for _, d := range devices {
		if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
			t.Fatalf("RegisterEvents = %v", ret)
		}
	}
	return set
}

// drain returns the XIDs that are in the set now.
func drain(set nvml.EventSet) []string {
	var got []string
	for {
		data, ret := set.Wait(0)
		if ret != nvml.SUCCESS {
			return got
		}
		index, _ := data.Device.GetIndex()
		got = append(got, fmt.Sprintf("%d:%d", index, data.EventData))
	}
}

// TestTwoReaders checks that two agents each receive every XID from the moment they watch.
func TestTwoReaders(t *testing.T) {
	m := newMachine(t, "h100x8")
	second, err := Open(m.Dir()) // as another process does
	if err != nil {
		t.Fatal(err)
	}
	old, young := open(t, m), open(t, second)
	inject(t, m, Fault{GPU: "0", XID: 13})
	oldSet := watch(t, old, gpu(t, old, 0), gpu(t, old, 1))
	inject(t, m, Fault{GPU: "0", XID: 31})
	youngSet := watch(t, young, gpu(t, young, 0), gpu(t, young, 1))
	inject(t, second, Fault{GPU: "1", XID: 79})
	inject(t, m, Fault{GPU: "5", XID: 48}) // registered by neither set
	inject(t, m, Fault{GPU: "0", XID: 94})

	if diff := cmp.Diff([]string{"0:31", "1:79", "0:94"}, drain(oldSet)); diff != "" {
		t.Errorf("the first set (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1:79", "0:94"}, drain(youngSet)); diff != "" {
		t.Errorf("the second set (-want +got):\n%s", diff)
	}
}

// TestRegisterIsFromNow checks that events from before the registration are not delivered.
func TestRegisterIsFromNow(t *testing.T) {
	m := newMachine(t, "t4x4")
	lib := open(t, m)
	set := watch(t, lib)
	inject(t, m, Fault{GPU: "0", XID: 13})
	if ret := gpu(t, lib, 0).RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	inject(t, m, Fault{GPU: "0", XID: 31})
	if diff := cmp.Diff([]string{"0:31"}, drain(set)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWaitWakes(t *testing.T) {
	m := newMachine(t, "t4x4")
	lib := open(t, m)
	set := watch(t, lib, gpu(t, lib, 2))
	got := make(chan nvml.EventData, 1)
	go func() {
		data, _ := set.Wait(60_000)
		got <- data
	}()
	inject(t, m, Fault{GPU: "2", XID: 79})
	data := <-got
	if data.EventType != nvml.EventTypeXidCriticalError || data.EventData != 79 || data.GpuInstanceId != anyInstance {
		t.Errorf("event: %+v", data)
	}
	if _, ret := set.Wait(1); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("Wait = %v, want TIMEOUT", ret)
	}
	set.Free()
	if _, ret := set.Wait(1); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("Wait on a freed set = %v", ret)
	}
}

// TestEventTypes checks that an ECC error has its own event beside the XID, and that a set gets only the types it asked
// for.
func TestEventTypes(t *testing.T) {
	m := newMachine(t, "a100x8-40g")
	lib := open(t, m)
	d := gpu(t, lib, 0)
	all, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	defer all.Free()
	supported, _ := d.GetSupportedEventTypes()
	if ret := d.RegisterEvents(supported, all); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if ret := d.RegisterEvents(nvml.EventTypePowerSourceChange, all); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("register what it cannot report: %v", ret)
	}
	if ret := d.RegisterEvents(supported, watch(t, open(t, m))); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("register with another library's set: %v", ret)
	}
	xids := watch(t, lib, d)
	inject(t, m, Fault{GPU: "0", ECC: 1})
	mig, _, _ := firstMIG(t, d)
	uuid, _ := mig.GetUUID()
	inject(t, m, Fault{GPU: uuid, XID: 94})
	var got []string
	for {
		data, ret := all.Wait(0)
		if ret != nvml.SUCCESS {
			break
		}
		got = append(got, fmt.Sprintf("%d/%d/%d/%d", data.EventType, data.EventData, int32(data.GpuInstanceId),
			int32(data.ComputeInstanceId)))
	}
	want := []string{"2/0/-1/-1", "8/48/-1/-1", "256/0/-1/-1", "256/0/-1/-1", "256/0/-1/-1", "8/94/13/0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("type/data/GI/CI (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"0:48", "0:94"}, drain(xids)); diff != "" {
		t.Errorf("XIDs (-want +got):\n%s", diff)
	}
}

// TestEventLog compares the event log with its golden file.
func TestEventLog(t *testing.T) {
	m := newMachine(t, "t4x4")
	inject(t, m, Fault{GPU: "1", XID: 13, Temperature: 90})
	clearAll(t, m)
	events, _, err := readEvents(filepath.Join(m.Root(), eventsFile), 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, q := range events {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %d %s", q.event.Seq, q.event.Type, q.event.XID, q.event.Note)))
	}
	want := []string{"1 inject 0 XID 13, temperature 90", "2 xid 13", "3 clear 0 all"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParseEvents(f *testing.F) {
	f.Add([]byte("{\"seq\":1,\"type\":\"xid\",\"xid\":79}\n{\"seq\":2"))
	f.Add([]byte("\n\nnonsense\n"))
	f.Add(bytes.Repeat([]byte("x"), maxLine+10))
	f.Fuzz(func(t *testing.T, content []byte) {
		events, end, err := parseEvents(bytes.NewReader(content), 0)
		if err != nil {
			t.Fatal(err)
		}
		if end < 0 || end > int64(len(content)) || (end > 0 && content[end-1] != '\n') {
			t.Errorf("stopped at %d of %d", end, len(content))
		}
		if len(events) > bytes.Count(content, []byte("\n")) {
			t.Errorf("%d events in %d lines", len(events), bytes.Count(content, []byte("\n")))
		}
	})
}

func FuzzParseMajors(f *testing.F) {
	if real, err := os.ReadFile("/proc/devices"); err == nil {
		f.Add(string(real))
	}
	f.Add("Character devices:\n195 nvidia\nBlock devices:\n226 x\n")
	f.Fuzz(func(t *testing.T, content string) {
		for major := range parseMajors(content) {
			if major >= 1<<12 {
				t.Errorf("major %d", major)
			}
		}
	})
}
