package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func openTest(t testing.TB, path string, change func(*Deps)) *Ledger {
	t.Helper()
	deps := Deps{Path: path, BootID: "boot1", Clock: clocktesting.NewFakePassiveClock(start), Log: quiet()}
	if change != nil {
		change(&deps)
	}
	l, err := Open(deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

var pod = gpu.Holder{Kind: gpu.HolderPod, Resource: "nvidia.com/gpu"}

func claim(id string) gpu.Holder { return gpu.Holder{Kind: gpu.HolderClaim, ID: id} }

func names(l *Ledger) []string {
	var all []string
	for _, h := range l.Holdings() {
		all = append(all, h.String())
	}
	return all
}

// TestKilledAtEachStep kills the agent at each step of a write: the next one finds the complete state either before or
// after the write.
func TestKilledAtEachStep(t *testing.T) {
	before, after := []string{"G0 Claim A"}, []string{"G0 Claim A", "G1 Claim B"}
	tests := map[Step]struct{ want []string }{
		StepLock:   {want: before},
		StepCreate: {want: before},
		StepTorn:   {want: before},
		StepClose:  {want: before},
		StepRename: {want: after},
	}
	died := errors.New("died")
	for step, test := range tests {
		t.Run(string(step), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			var at Step
			l := openTest(t, path, func(d *Deps) {
				d.Fault = func(s Step) error {
					if s == at {
						return died
					}
					return nil
				}
			})
			if err := l.Acquire(claim("A"), []gpu.DeviceKey{key("G0")}); err != nil {
				t.Fatal(err)
			}
			at = step
			if err := l.Acquire(claim("B"), []gpu.DeviceKey{key("G1")}); !errors.Is(err, died) {
				t.Fatalf("Acquire returned %v, want %v", err, died)
			}
			l.store.close() // Close would write
			next := openTest(t, path, nil)
			if diff := cmp.Diff(test.want, names(next)); diff != "" {
				t.Errorf("after death (-want +got):\n%s", diff)
			}
			if faults := next.Faults(); len(faults) > 0 {
				t.Errorf("faults: %v", faults)
			}
			if err := next.Acquire(claim("C"), []gpu.DeviceKey{key("G2")}); err != nil {
				t.Errorf("next write: %v", err)
			}
		})
	}
}

// TestDiskFull checks that an Allocate is granted and a claim is not, and that the fault remains until a write
// succeeds.
func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	full := false
	l := openTest(t, path, func(d *Deps) {
		d.Fault = func(s Step) error {
			if full && s == StepTorn {
				return errors.New("no space left on device")
			}
			return nil
		}
	})
	full = true
	if err := l.Acquire(pod, []gpu.DeviceKey{key("G0")}); err != nil {
		t.Errorf("Acquire for a pod: %v", err)
	}
	if err := l.Acquire(claim("A"), []gpu.DeviceKey{key("G1")}); err == nil {
		t.Error("Acquire for a claim was granted without having been written")
	}
	if _, blocked := l.BlockedBy("nvidia.com/gpu", key("G1")); blocked {
		t.Error("the refused claim blocks its device")
	}
	if faults := l.Faults(); len(faults) != 1 || faults[0].Code != "LEDGER_UNWRITABLE" || !strings.Contains(faults[0].Message,
		"no space left") {
		t.Errorf("faults: %v", faults)
	}
	full = false
	l.Reconcile(NodeView{})
	if faults := l.Faults(); len(faults) > 0 {
		t.Errorf("faults after a write: %v", faults)
	}
	if diff := cmp.Diff([]string{"G0 Pod pending"}, names(openTest(t, path, nil))); diff != "" {
		t.Errorf("on disk (-want +got):\n%s", diff)
	}
}

// TestNewerVersionIsNotLost checks that the start fails when a file of a newer format cannot be renamed.
func TestNewerVersionIsNotLost(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger")
	content := `{"format":"berth-ledger","version":7,"bootID":"boot1"}` + "\nx\nx\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	// A folder that is not empty cannot be replaced by a rename.
	if err := os.MkdirAll(path+".bak/x", 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Deps{Path: path, BootID: "boot1", Log: quiet()})
	if err == nil || !strings.Contains(err.Error(), "format version 7 is newer than 2") {
		t.Errorf("Open returned %v", err)
	}
	if now, _ := os.ReadFile(path); string(now) != content {
		t.Errorf("the file was changed to %q", now)
	}
	if err := os.RemoveAll(path + ".bak"); err != nil {
		t.Fatal(err)
	}
	l := openTest(t, path, nil)
	if bak, _ := os.ReadFile(path + ".bak"); string(bak) != content {
		t.Errorf("kept %q", bak)
	}
	if faults := l.Faults(); len(faults) != 1 || faults[0].Code != "LEDGER_VERSION" {
		t.Errorf("faults: %v", faults)
	}
}

// TestFileIsTheSameForTheSameHoldings checks that the order of events does not affect the file.
func TestFileIsTheSameForTheSameHoldings(t *testing.T) {
	var files [][]byte
	for _, order := range [][]string{{"G0", "G1", "G2"}, {"G2", "G0", "G1"}} {
		path := filepath.Join(t.TempDir(), "ledger")
		l := openTest(t, path, nil)
		for _, k := range order {
			if err := l.Acquire(claim("A"), []gpu.DeviceKey{key(k)}); err != nil {
				t.Fatal(err)
			}
		}
		blob, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, blob)
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Errorf("files differ:\n%s\n%s", files[0], files[1])
	}
}

// TestLockFileEmptied truncates the lock file while an agent runs: later agents can still take over from each other.
func TestLockFileEmptied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	first := openTest(t, path, nil)
	if err := os.Truncate(path+".lock", 0); err != nil {
		t.Fatal(err)
	}
	second := openTest(t, path, nil)
	if err := second.Acquire(claim("A"), []gpu.DeviceKey{key("G0")}); err != nil {
		t.Fatal(err)
	}
	if err := first.Acquire(claim("B"), []gpu.DeviceKey{key("G0")}); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the first agent got %v", err)
	}
}

// TestFileOfVersion1 reads a file as agents wrote it before the types of holders were shared, and writes the same
// bytes.
func TestFileOfVersion1(t *testing.T) {
	blob, err := os.ReadFile("testdata/ledger.v1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseFile(blob, "boot1")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	want := []Holding{
		{
			Holding: gpu.Holding{Key: key("GPU-0"), Since: at, Holder: gpu.Holder{
				Kind: gpu.HolderPod, PodUID: "11111111-2222-3333-4444-555555555555", Namespace: "default", Name: "train-0",
				Container: "cuda", Resource: "nvidia.com/gpu",
			}},
			Containers: []string{"cuda", "init"}, Grants: []string{"0123456789abcdef0123456789abcdef"}, Live: []string{"c1", "c2"},
		},
		{
			Holding: gpu.Holding{Key: key("GPU-1#2"), Since: at.Add(time.Second),
				Holder: gpu.Holder{Kind: gpu.HolderPod, Resource: "nvidia.com/gpu.shared"}},
			Pending: true, Grants: []string{"fedcba9876543210fedcba9876543210"},
		},
		{Holding: gpu.Holding{Key: key("GPU-2/MIG-1"), Since: at, Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "claim-uid"}}},
		{
			Holding: gpu.Holding{Key: key("GPU-2/MIG-2#1"), Since: at, Holder: gpu.Holder{
				Kind: gpu.HolderOrphan, PodUID: "u4", Namespace: "ml", Name: "lost", Container: "main", Resource: "nvidia.com/mig-1g.10gb",
			}},
			Uncounted: true, Containers: []string{"main"}, Live: []string{"c4"},
		},
		{Holding: gpu.Holding{Key: key("GPU-3"), Since: at, Holder: gpu.Holder{Kind: gpu.HolderMaintenance, ID: "MIG"}}},
	}
	if !slices.EqualFunc(got, want, equal) {
		t.Errorf("holdings are %v, want %v", got, want)
	}
	records := map[gpu.DeviceKey]*record{}
	var order []gpu.DeviceKey
	for _, h := range got {
		order = append(order, h.Key)
		records[h.Key] = &record{Holding: h}
	}
	again, err := appendFile(nil, "boot1", order, records)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, blob) {
		t.Errorf("the file is written as\n%s\nand was\n%s", again, blob)
	}
}

// TestClaimKeepsItsName checks that a claim has its name after a restart, in Blocked and in the refusal.
func TestClaimKeepsItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	holder := gpu.Holder{Kind: gpu.HolderClaim, ID: "claim-uid", Namespace: "ml", Name: "train"}
	first := openTest(t, path, nil)
	if err := first.Acquire(holder, []gpu.DeviceKey{key("G0")}); err != nil {
		t.Fatal(err)
	}
	second := openTest(t, path, nil)
	if got := second.Holdings(); len(got) != 1 || got[0].Holder != holder {
		t.Errorf("holdings are %v, want one of %v", got, holder)
	}
	err := second.Acquire(gpu.Holder{Kind: gpu.HolderPod}, []gpu.DeviceKey{key("G0#1")})
	if err == nil || !strings.Contains(err.Error(), "by ResourceClaim ml/train;") {
		t.Errorf("the refusal is %v", err)
	}
}

// FuzzParseFile checks that any content results in sorted holdings or one of the known errors, and that parsed content
// is written in the same form.
func FuzzParseFile(f *testing.F) {
	records := map[gpu.DeviceKey]*record{}
	order := []gpu.DeviceKey{key("G0"), key("G1/M1#2")}
	for _, k := range order {
		records[k] = &record{Holding: Holding{Holding: gpu.Holding{Key: k, Holder: pod, Since: start}, Live: []string{"c1"}}}
	}
	whole, err := appendFile(nil, "boot1", order, records)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{})
	f.Add([]byte("\n\n\n"))
	f.Add([]byte(`{"format":"berth-ledger","version":2,"bootID":"boot1"}` + "\n\n\n"))
	f.Fuzz(func(t *testing.T, blob []byte) {
		holdings, err := parseFile(blob, "boot1")
		var corrupt *corruptError
		var newer *versionError
		if err != nil {
			if !errors.As(err, &corrupt) && !errors.As(err, &newer) && !errors.Is(err, errOtherBoot) {
				t.Fatalf("unknown error %v", err)
			}
			return
		}
		records := map[gpu.DeviceKey]*record{}
		var order []gpu.DeviceKey
		for _, h := range holdings {
			order = append(order, h.Key)
			records[h.Key] = &record{Holding: h}
		}
		if !slices.IsSortedFunc(order, gpu.CompareKeys) || len(records) != len(order) {
			t.Fatalf("keys %v", order)
		}
		again, err := appendFile(nil, "boot1", order, records)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := parseFile(again, "boot1")
		if err != nil || len(twice) != len(holdings) {
			t.Fatalf("read again: %v", err)
		}
		for i := range twice {
			if !equal(twice[i], holdings[i]) {
				t.Fatalf("read again: %v, want %v", twice[i], holdings[i])
			}
		}
	})
}

// TestBlockedByAllocatesNothing also checks that BlockedBy never waits for the lock.
func TestBlockedByAllocatesNothing(t *testing.T) {
	l := full(t, 800)
	l.mu.Lock()
	defer l.mu.Unlock()
	k, free := gpu.DeviceKey{GPU: "G3", Share: 5}, gpu.DeviceKey{GPU: "G9"}
	if n := testing.AllocsPerRun(100, func() { l.BlockedBy("nvidia.com/gpu", k); l.BlockedBy("nvidia.com/gpu", free) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAtTheSameTime makes all calls of the agent's parts concurrently, for the race detector.
func TestAtTheSameTime(t *testing.T) {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) {
		d.Look = func() ([]Container, error) { return nil, nil }
		d.LookIn = func([]string) ([]Container, error) { return nil, nil }
		d.Assigned = func() ([]Assignment, error) { return nil, nil }
		d.Stamp = func() string { return "as before" }
	})
	sub := l.Subscribe()
	defer sub.Close()
	<-sub.C() // a new subscription is signalled
	parts := []func(k gpu.DeviceKey){
		func(k gpu.DeviceKey) { _ = l.Acquire(pod, []gpu.DeviceKey{k}) },
		func(k gpu.DeviceKey) {
			if err := l.Acquire(claim(string(k.GPU)), []gpu.DeviceKey{k}); err == nil {
				_ = l.Release(claim(string(k.GPU)), nil)
			}
		},
		func(k gpu.DeviceKey) {
			l.BlockedBy("nvidia.com/gpu", k)
			l.Blocked()
			l.Offered("nvidia.com/gpu", []gpu.DeviceKey{k})
		},
		func(k gpu.DeviceKey) {
			l.Reconcile(NodeView{Assignments: []Assignment{{PodUID: "P", Container: "c", Keys: []gpu.DeviceKey{k}}}})
			l.Distrust()
		},
		func(gpu.DeviceKey) { l.Holdings(); l.Faults(); l.Writes() },
	}
	var wait sync.WaitGroup
	for _, part := range parts {
		wait.Go(func() {
			for i := range 50 {
				part(gpu.DeviceKey{GPU: gpu.UUID(fmt.Sprintf("G%d", i%4))})
			}
		})
	}
	wait.Wait()
	select {
	case <-sub.C():
	default:
		t.Error("no subscriber was signalled")
	}
}

// full returns a ledger with n replicas held, the odd ones blocked.
func full(t testing.TB, n int) *Ledger {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), nil)
	var view NodeView
	for i := range n {
		k := gpu.DeviceKey{GPU: gpu.UUID(fmt.Sprintf("G%d", i%8)), Share: i/8 + 1}
		c := Container{ID: fmt.Sprintf("c%d", i), PodUID: fmt.Sprintf("P%d", i), Name: "cuda", Keys: []gpu.DeviceKey{k}}
		view.Containers = append(view.Containers, c)
		if i%2 == 0 {
			view.Assignments = append(view.Assignments, Assignment{PodUID: c.PodUID, Container: "cuda",
				Resource: "nvidia.com/gpu", Keys: c.Keys})
		}
	}
	l.Reconcile(view)
	return l
}

func BenchmarkBlockedBy(b *testing.B) {
	for _, n := range []int{8, 800} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			l := full(b, n)
			k := gpu.DeviceKey{GPU: "G5", Share: 1}
			b.ReportAllocs()
			for b.Loop() {
				l.BlockedBy("nvidia.com/gpu", k)
			}
		})
	}
}

// BenchmarkOffered measures the first call of GetPreferredAllocation, when the offered devices are not held.
func BenchmarkOffered(b *testing.B) {
	l := full(b, 8)
	var keys []gpu.DeviceKey
	for i := range 16 {
		keys = append(keys, gpu.DeviceKey{GPU: gpu.UUID(fmt.Sprintf("H%d", i))})
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Offered("nvidia.com/gpu", keys)
	}
}

// BenchmarkClaim measures an Acquire and a Release that are written: run it with TMPDIR on a disk and on a tmpfs.
func BenchmarkClaim(b *testing.B) {
	for _, n := range []int{8, 800} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			l := full(b, n)
			keys := []gpu.DeviceKey{{GPU: "H0"}}
			b.ReportAllocs()
			for b.Loop() {
				if err := errors.Join(l.Acquire(claim("A"), keys), l.Release(claim("A"), nil)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAcquire measures all calls of Allocate to the ledger.
func BenchmarkAcquire(b *testing.B) {
	for _, n := range []int{8, 16, 800} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			l := full(b, n)
			keys := []gpu.DeviceKey{{GPU: "H0"}, {GPU: "H1"}}
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Acquire(pod, keys); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReconcile measures a Reconcile of a full node without changes.
func BenchmarkReconcile(b *testing.B) {
	for _, n := range []int{8, 800} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			l := full(b, n)
			var view NodeView
			for _, h := range l.Holdings() {
				c := Container{ID: h.Live[0], PodUID: h.Holder.PodUID, Name: "cuda", Keys: []gpu.DeviceKey{h.Key}}
				view.Containers = append(view.Containers, c)
				if h.Holder.Kind == gpu.HolderPod {
					view.Assignments = append(view.Assignments,
						Assignment{PodUID: c.PodUID, Container: "cuda", Resource: "nvidia.com/gpu", Keys: c.Keys})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if c := l.Reconcile(view); len(c.List) > 0 {
					b.Fatal(c)
				}
			}
		})
	}
}

// BenchmarkAcquireFresh measures an Allocate of a device that blocks other sizes from now on: a whole GPU, and the
// first replica of one.
func BenchmarkAcquireFresh(b *testing.B) {
	for name, keys := range map[string][]gpu.DeviceKey{"whole": {{GPU: "H0"}}, "share": {{GPU: "H0", Share: 1}}} {
		b.Run(name, func(b *testing.B) {
			l := full(b, 800)
			free := l.blocks.Load()
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Acquire(pod, keys); err != nil {
					b.Fatal(err)
				}
				l.blocks.Store(free) // as if the GPU had come back
			}
		})
	}
}

// TestStoppedPeerDelaysNoAllocate stops an agent while it has the lock: a pod gets its devices immediately; a claim
// fails with the reason, within a bound.
func TestStoppedPeerDelaysNoAllocate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := openTest(t, path, nil)
	l.Reconcile(NodeView{})
	peer, err := openStore(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.close()
	release, held := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		done <- peer.locked(func() error {
			close(held)
			<-release
			return nil
		})
	}()
	<-held
	claimed := make(chan error)
	go func() { claimed <- l.Acquire(claim("A"), []gpu.DeviceKey{key("G1")}) }()
	for range 100 { // The claim waits for the lock at the same time.
		if err := l.Acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: "gpu"}, []gpu.DeviceKey{key("G0")}); err != nil {
			t.Fatal(err)
		}
		l.Holdings()
	}
	select {
	case err := <-claimed:
		t.Fatalf("the claim ended before the pods were served: %v", err)
	default:
	}
	if err := <-claimed; !errors.Is(err, errLocked) {
		t.Errorf("the claim: %v, want that another process has the lock", err)
	}
	if faults := l.Faults(); len(faults) != 1 || faults[0].Code != "LEDGER_UNWRITABLE" {
		t.Errorf("faults are %v, want LEDGER_UNWRITABLE", faults)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if l.Reconcile(NodeView{}); len(l.Faults()) != 0 {
		t.Errorf("faults are %v after the lock was given up", l.Faults())
	}
}

// TestTakeOverCannotRead checks that, if the file cannot be read during an upgrade, no state is lost, and the agent
// that could not read it does not write it.
func TestTakeOverCannotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	old := openTest(t, path, nil)
	if err := old.Acquire(claim("A"), []gpu.DeviceKey{key("G0")}); err != nil {
		t.Fatal(err)
	}
	next := openTest(t, path, func(d *Deps) { d.Follow = true })
	folder := next.store.root
	closed, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	next.store.root = closed // No file of it can be read.
	if err := next.TakeOver(); err == nil {
		t.Error("the takeover succeeded without the file")
	}
	if got := names(next); !slices.Equal(got, []string{"G0 Claim A"}) || next.Writes() {
		t.Errorf("after a failed takeover it has %v and writes: %v; want G0, and not", got, next.Writes())
	}
	next.store.root = folder
	if err := next.Acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: "gpu"}, []gpu.DeviceKey{key("G1")}); err != nil {
		t.Fatal(err)
	}
	if err := next.TakeOver(); err != nil {
		t.Fatal(err)
	}
	if got := names(next); !slices.Equal(got, []string{"G0 Claim A", "G1 Pod pending"}) || !next.Writes() {
		t.Errorf("after the takeover it has %v and writes: %v; want the claim, the pending grant, and yes", got, next.Writes())
	}
}

// TestClockSetBack checks that a grant with a start hours in the future is still dropped in time.
func TestClockSetBack(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) { d.Clock = clock })
	if err := l.Acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: "gpu"}, []gpu.DeviceKey{key("G0")}); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(start.Add(-5 * time.Hour))
	l.Reconcile(NodeView{})
	clock.SetTime(start.Add(-5*time.Hour + DefaultPendingLimit))
	l.Reconcile(NodeView{})
	if got := names(l); len(got) > 0 {
		t.Errorf("%v is held %s after the clock was set back", got, DefaultPendingLimit)
	}
}

// TestNotAFile: what is no regular file, in place of any of the ledger's files, neither blocks nor ends the agent. It is kept, and reported
// where the holdings should be.
func TestNotAFile(t *testing.T) {
	for kind, put := range map[string]func(string) error{
		"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.MkdirAll(filepath.Join(path, "with", "content"), 0o700) },
		"a link":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"a loop":   func(path string) error { return os.Symlink(path, path) },
	} {
		for _, suffix := range []string{"", ".lock", ".tmp"} {
			t.Run(kind+suffix, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "ledger")
				if err := put(path + suffix); err != nil {
					t.Fatal(err)
				}
				l := openTest(t, path, nil)
				var codes []string
				for _, fault := range l.Faults() {
					codes = append(codes, fault.Code)
				}
				if want := map[string][]string{"": {"LEDGER_CORRUPT"}}[suffix]; !slices.Equal(codes, want) {
					t.Errorf("faults %v, want %v", l.Faults(), want)
				}
				if err := l.Acquire(claim("A"), []gpu.DeviceKey{key("G0")}); err != nil {
					t.Fatal(err)
				}
				check(t, l, path, "G0 Claim A")
				if info, err := os.Lstat(path + suffix + ".bak"); err != nil || info.Mode().IsRegular() {
					t.Errorf("kept %v, %v", info, err)
				}
			})
		}
	}
}
