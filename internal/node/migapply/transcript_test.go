package migapply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestTranscripts runs the transcripts in testdata/transcripts. The commands are those of (*world).command.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "node" {
				gpus := 1
				d.MaybeScanArgs(t, "gpus", &gpus)
				w = newWorld(t, t.TempDir(), gpus)
				return ""
			}
			w.t = t
			return w.command(t, d)
		})
	})
}

// command runs a command:
//
//	be, want           lines of a GPU and its present, or wanted, shape (and the source)
//	replicas GPU N     its devices are advertised as N replicas each
//	run POD KEY        a pod gets a device; end, forget POD; claim, unclaim ID; admit KEY
//	gpu GPU gone|back|incapable|out|pending MODE|empty START
//	blind              sets why the holders are not known
//	reconcile          prints the statuses, the GPUs that are withheld, and the calls
//	fail [always]      lines of the calls that fail next (as prefixes); work
//	kill STEP [n=N]    the agent is killed at the N-th such step from now
//	advance DURATION
//	picture, journal, faults, files; spoil
func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	args := func(i int) string { return d.CmdArgs[i].Key }
	switch d.Cmd {
	case "be":
		for line := range strings.Lines(d.Input) {
			device, what, _ := strings.Cut(strings.TrimSpace(line), " ")
			w.be(gpu.UUID(device), what)
		}
	case "want":
		for line := range strings.Lines(d.Input) {
			line, source, _ := strings.Cut(strings.TrimSpace(line), " by ")
			device, what, _ := strings.Cut(line, " ")
			w.want(gpu.UUID(device), what, source)
		}
	case "replicas":
		w.replicas[gpu.UUID(args(0))], _ = strconv.Atoi(args(1))
	case "run":
		if err := w.run(args(0), keyOf(args(1))); err != nil {
			return err.Error() + "\n"
		}
	case "claim":
		if err := w.book.Acquire(gpu.Holder{Kind: gpu.HolderClaim, ID: args(0)}, []gpu.DeviceKey{keyOf(args(1))}); err != nil {
			return err.Error() + "\n"
		}
	case "unclaim":
		if err := w.book.Release(gpu.Holder{Kind: gpu.HolderClaim, ID: args(0)}, nil); err != nil {
			return err.Error() + "\n"
		}
	case "admit": // the kubelet's checkpoint does not show it yet
		if err := w.book.Acquire(gpu.Holder{Kind: gpu.HolderPod}, []gpu.DeviceKey{keyOf(args(0))}); err != nil {
			return err.Error() + "\n"
		}
	case "end":
		w.end(args(0))
	case "forget":
		w.pods[args(0)].orphan = true
		w.compare()
	case "gpu":
		c := w.gpuOf(gpu.UUID(args(0)))
		switch args(1) {
		case "gone":
			c.gone = true
		case "back":
			c.gone = false
		case "incapable":
			c.incapable = true
		case "pending":
			c.pending = args(2) == "on"
		case "empty":
			at, _ := strconv.Atoi(args(2))
			i := slices.IndexFunc(c.instances, func(in fakeInstance) bool { return in.Start == at })
			c.instances[i].device = false
		case "out":
			w.gpus = slices.DeleteFunc(w.gpus, func(o *fakeGPU) bool { return o == c })
		}
		w.scan()
	case "blind":
		w.blind = strings.TrimSpace(d.Input)
	case "fail":
		w.breakNext(strings.Split(strings.TrimSpace(d.Input), "\n"), d.HasArg("always"))
	case "work":
		w.breaks = nil
	case "kill":
		n := 1
		d.MaybeScanArgs(t, "n", &n)
		return w.killNext(t, strings.ReplaceAll(args(0), "-", " "), n)
	case "advance":
		by, err := time.ParseDuration(args(0))
		if err != nil {
			t.Fatal(err)
		}
		w.clock.Step(by)
	case "reconcile":
		return w.printReconcile(func() []Status { return w.reconcile() })
	case "picture":
		return w.picture()
	case "journal":
		blob, err := os.ReadFile(filepath.Join(w.dir, JournalFile))
		if errors.Is(err, os.ErrNotExist) {
			return "none\n"
		}
		var shown bytes.Buffer
		if err := json.Indent(&shown, blob, "", "  "); err != nil {
			t.Fatal(err)
		}
		return shown.String()
	case "spoil":
		if err := os.WriteFile(filepath.Join(w.dir, JournalFile), []byte(d.Input), 0o600); err != nil {
			t.Fatal(err)
		}
	case "files":
		entries, err := os.ReadDir(w.dir)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, e := range entries {
			b.WriteString(e.Name() + "\n")
		}
		return b.String()
	case "faults":
		var b strings.Builder
		for _, f := range w.partition.Faults() {
			fmt.Fprintf(&b, "%s: %s\n", f.Code, strings.ReplaceAll(f.Message, w.dir, "DIR"))
		}
		return b.String()
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	return ""
}

// printReconcile prints the results and the calls of a Reconcile.
func (w *world) printReconcile(reconcile func() []Status) string {
	before, lives, notes := len(w.trace), w.lives, w.notes
	statuses := reconcile()
	var b strings.Builder
	for _, call := range w.trace[before:] {
		if !strings.HasPrefix(call, "half: ") && !strings.HasPrefix(call, "journal torn") {
			fmt.Fprintf(&b, "> %s\n", call)
		}
	}
	if w.lives > lives {
		b.WriteString("(killed)\n")
		return b.String()
	}
	for _, s := range statuses {
		fmt.Fprintf(&b, "%s %s: %s\n", s.UUID, s.State, strings.ReplaceAll(s.Message, w.dir, "DIR"))
	}
	pending := Pending(statuses)
	for _, id := range slices.Sorted(maps.Keys(pending)) {
		fmt.Fprintf(&b, "%s leaves the offers\n", id)
	}
	if w.notes > notes {
		fmt.Fprintf(&b, "(signalled %d times)\n", w.notes-notes)
	}
	return b.String()
}

func (w *world) breakNext(calls []string, always bool) {
	w.breaks = func(call string) error {
		i := slices.IndexFunc(calls, func(next string) bool { return strings.HasPrefix(call, next) })
		if i < 0 {
			return nil
		}
		if !always {
			calls = slices.Delete(slices.Clone(calls), i, i+1)
		}
		return errors.New("Unknown Error")
	}
}

// killNext reconciles and kills the agent at the n-th such step.
func (w *world) killNext(t *testing.T, step string, n int) string {
	// The points are counted from the trace of an agent that is not killed.
	seen := 0
	fault := w.partition.deps.Fault
	w.partition.deps.Fault = func(s Step) error {
		if string(s) == step {
			if seen++; seen == n {
				w.killAt = w.points + 1
			}
		}
		return fault(s)
	}
	out := w.printReconcile(func() []Status { return w.reconcile() })
	if seen < n {
		t.Fatalf("%d steps %q, want %d", seen, step, n)
	}
	return out
}

// keyOf parses GPU-0, GPU-0/MIG-0-44, GPU-0#2.
func keyOf(text string) gpu.DeviceKey {
	text, share, _ := strings.Cut(text, "#")
	id, device, _ := strings.Cut(text, "/")
	n, _ := strconv.Atoi(share)
	return gpu.DeviceKey{GPU: gpu.UUID(id), MIG: gpu.UUID(device), Share: n}
}
