package ledger

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestTranscripts runs the transcripts in testdata. The commands are those of (*stage).run; Deps.Look also sees the
// "live" lines of a reconcile.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := &stage{
			t: t, path: filepath.Join(t.TempDir(), "ledger"), clock: clocktesting.NewFakePassiveClock(start),
			ledgers: map[string]*Ledger{}, boot: "boot1",
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(d) })
		for _, l := range s.ledgers {
			l.Close()
		}
	})
}

type stage struct {
	t       *testing.T
	path    string
	boot    string
	clock   *clocktesting.FakePassiveClock
	ledgers map[string]*Ledger
	// The result of Deps.Look.
	containers []Container
	dead       []string
	// The checkpoint's content, as of the last reconcile or "checkpoint"; nil when it cannot be read.
	assigned []Assignment
	facts    map[string]PodFacts
	dropped  []string // POD KEY
}

func (s *stage) run(d *datadriven.TestData) string {
	agent, keys := "agent", []gpu.DeviceKey{}
	for _, arg := range d.CmdArgs {
		switch {
		case arg.Key == "as":
			agent = arg.Vals[0]
		case len(arg.Vals) == 0:
			keys = append(keys, key(arg.Key))
		}
	}
	switch d.Cmd {
	case "advance":
		by, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			s.t.Fatal(err)
		}
		s.clock.SetTime(s.clock.Now().Add(by))
		return ""
	case "dies":
		for _, arg := range d.CmdArgs {
			s.dead = append(s.dead, arg.Key)
		}
		return ""
	case "starts": // not read by a reconcile: ID POD CONTAINER [KEYS]
		s.containers = append(slices.Clone(s.containers), container(strings.Fields(d.Input)))
		return ""
	case "checkpoint": // read by the next Allocate or preference, not by a reconcile
		containers, dead := s.containers, s.dead
		s.view(NodeView{}, d.Input)
		s.containers, s.dead = containers, dead
		return ""
	case "know": // POD living|ended|unknown|unstarted [CONTAINER[:init]=DEVICES]...
		s.know(d.Input)
		return ""
	case "kubelet-dropped": // POD KEY, a line each: devices that PodResources Get does not list
		s.dropped = strings.Split(strings.TrimSpace(d.Input), "\n")
		return ""
	case "reboot":
		s.boot += "+"
		return ""
	case "spoil":
		return s.spoil(d.Input)
	case "ls":
		return s.list()
	case "open":
		return s.open(agent, d.HasArg("follow"))
	case "exit":
		s.ledgers[agent].Close()
		delete(s.ledgers, agent)
		return ""
	}
	return s.use(s.ledgers[agent], d, keys)
}

func (s *stage) use(l *Ledger, d *datadriven.TestData, keys []gpu.DeviceKey) string {
	id, resource := "", "nvidia.com/gpu"
	d.MaybeScanArgs(s.t, "id", &id)
	d.MaybeScanArgs(s.t, "of", &resource)
	sub := l.Subscribe()
	defer sub.Close()
	<-sub.C() // a new subscription is signalled
	switch d.Cmd {
	case "offered":
		last := ""
		for _, k := range l.Offered(resource, keys) {
			last += "last: " + k.String() + "\n"
		}
		return signalled(sub, "") + last
	case "allocate":
		return say(l.Acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: resource}, keys))
	case "claim":
		return say(l.Acquire(gpu.Holder{Kind: gpu.HolderClaim, ID: id}, keys))
	case "maintain":
		return say(l.Acquire(gpu.Holder{Kind: gpu.HolderMaintenance, ID: id}, keys))
	case "adopt":
		return say(adoptOne(l, gpu.Holder{Kind: gpu.HolderClaim, ID: id}, keys))
	case "release":
		kind := gpu.HolderClaim
		if d.HasArg("maintenance") {
			kind = gpu.HolderMaintenance
		}
		return say(l.Release(gpu.Holder{Kind: kind, ID: id}, nil))
	case "distrust":
		return signalled(sub, l.Distrust().String())
	case "reconcile":
		return signalled(sub, l.Reconcile(s.view(l.NewView(), d.Input)).String())
	case "takeover":
		return say(l.TakeOver())
	case "writes":
		return fmt.Sprintln(l.Writes())
	case "holdings":
		var b strings.Builder
		for _, h := range l.Holdings() {
			fmt.Fprintf(&b, "%s since +%s\n", h, h.Since.Sub(start))
		}
		return b.String()
	case "blocked":
		var b strings.Builder
		for _, k := range keys {
			block, ok := l.BlockedBy(resource, k)
			if !ok {
				fmt.Fprintf(&b, "%s: no\n", k)
				continue
			}
			fmt.Fprintf(&b, "%s: %s %s", k, block.Through, block.Kind)
			if block.Unseen {
				b.WriteString(" unseen")
			}
			b.WriteString("\n")
		}
		return b.String()
	case "faults":
		var b strings.Builder
		for _, f := range l.Faults() {
			fmt.Fprintf(&b, "%s: %s\n", f.Code, strings.ReplaceAll(f.Message, filepath.Dir(s.path), "DIR"))
		}
		return b.String()
	}
	s.t.Fatalf("unknown command %q", d.Cmd)
	return ""
}

// signalled checks that subscribers are signalled for changes, and only for changes.
func signalled(sub *signal.Subscription, changes string) string {
	select {
	case <-sub.C():
		return changes
	default:
		if changes != "" && !strings.HasPrefix(changes, "conflict") {
			return changes + "(no subscriber was signalled)\n"
		}
		return changes
	}
}

func say(err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	return "ok\n"
}

func (s *stage) open(agent string, follow bool) string {
	l, err := Open(Deps{
		Path: s.path, BootID: s.boot, Clock: s.clock, Log: quiet(), Follow: follow,
		Look: s.look, LookIn: s.lookIn, Assigned: s.checkpoint, Pod: func(uid string) PodFacts { return s.facts[uid] }, Ask: s.ask,
	})
	if err != nil {
		return strings.ReplaceAll(err.Error(), filepath.Dir(s.path), "DIR") + "\n"
	}
	s.ledgers[agent] = l
	return "ok\n"
}

func (s *stage) checkpoint() ([]Assignment, error) {
	if s.assigned == nil {
		return nil, errors.New("corrupt")
	}
	return s.assigned, nil
}

func (s *stage) know(text string) {
	s.facts = map[string]PodFacts{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		facts := PodFacts{State: map[string]PodState{"living": PodLiving, "ended": PodEnded}[f[1]],
			Namespace: "default", Name: strings.ToLower(f[0]), Unstarted: f[1] == "unstarted"}
		for _, c := range f[2:] {
			name, devices, _ := strings.Cut(c, "=")
			name, init := strings.CutSuffix(name, ":init")
			n, _ := strconv.Atoi(devices)
			facts.Containers = append(facts.Containers, PodContainer{Name: name, Init: init, Devices: map[string]int{"nvidia.com/gpu": n}})
		}
		s.facts[f[0]] = facts
	}
}

func (s *stage) ask(questions []Question) []Question {
	return slices.DeleteFunc(slices.Clone(questions), func(q Question) bool {
		return !slices.Contains(s.dropped, q.PodUID+" "+q.Key.String())
	})
}

// look returns the containers of the last reconcile without those that have ended since.
func (s *stage) look() ([]Container, error) {
	var living []Container
	for _, c := range s.containers {
		if !slices.Contains(s.dead, c.ID) {
			living = append(living, c)
		}
	}
	return living, nil
}

func (s *stage) lookIn(pods []string) ([]Container, error) {
	living, _ := s.look()
	return slices.DeleteFunc(living, func(c Container) bool { return !slices.Contains(pods, c.PodUID) }), nil
}

func (s *stage) spoil(content string) string {
	blob := []byte(content + "\n")
	switch before, err := os.ReadFile(s.path); {
	case content == "half" && err == nil:
		blob = before[:len(before)/2]
	case content == "bit" && err == nil:
		blob = slices.Clone(before)
		blob[len(blob)/2] ^= 1
	}
	if err := os.WriteFile(s.path, blob, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return ""
}

func (s *stage) list() string {
	entries, err := os.ReadDir(filepath.Dir(s.path))
	if err != nil {
		s.t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		b.WriteString(e.Name() + "\n")
	}
	return b.String()
}

// key parses G0, G0/M1, G0#2.
func key(text string) gpu.DeviceKey {
	text, share, _ := strings.Cut(text, "#")
	device, mig, _ := strings.Cut(text, "/")
	n, _ := strconv.Atoi(share)
	return gpu.DeviceKey{GPU: gpu.UUID(device), MIG: gpu.UUID(mig), Share: n}
}

func keysIn(text string) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for part := range strings.SplitSeq(text, ",") {
		keys = append(keys, key(part))
	}
	return keys
}

func container(f []string) Container {
	c := Container{ID: f[0], PodUID: f[1], Name: strings.Trim(f[2], "-")}
	for _, field := range f[3:] {
		if open, ok := strings.CutPrefix(field, "open="); ok {
			c.Open = keysIn(open)
		} else {
			c.Keys = keysIn(field)
		}
	}
	return c
}

// view reads the lines of a reconcile:
//
//	listed POD CONTAINER KEYS [RESOURCE]    the checkpoint's entries
//	unreadable | blind            no checkpoint | no processes
//	live ID POD CONTAINER|- [KEYS] [open=KEYS]
//	pod POD NAMESPACE/NAME [ended] [devices=N]
func (s *stage) view(view NodeView, text string) NodeView {
	s.dead = nil
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "listed":
			f = append(f, "nvidia.com/gpu")
			view.Assignments = append(view.Assignments, Assignment{PodUID: f[1], Container: f[2], Resource: f[4], Keys: keysIn(f[3])})
		case f[0] == "unreadable":
			view.CheckpointErr = errors.New("corrupt")
		case f[0] == "blind":
			view.ContainersErr = errors.New("no /proc")
		case f[0] == "live":
			view.Containers = append(view.Containers, container(f[1:]))
		case f[0] == "pod":
			ns, name, _ := strings.Cut(f[2], "/")
			pod := NodePod{UID: f[1], Namespace: ns, Name: name, Ended: slices.Contains(f, "ended")}
			if _, n, ok := strings.Cut(f[len(f)-1], "devices="); ok {
				pod.Devices, _ = strconv.Atoi(n)
			}
			view.Pods = append(view.Pods, pod)
		default:
			s.t.Fatalf("bad line %q", line)
		}
	}
	if view.ContainersErr == nil {
		s.containers = view.Containers
	}
	if s.assigned = nil; view.CheckpointErr == nil {
		s.assigned = slices.Concat([]Assignment{}, view.Assignments)
	}
	return view
}

// adoptOne adopts the devices of one holder of which no pods are known.
func adoptOne(l *Ledger, holder gpu.Holder, keys []gpu.DeviceKey) error {
	var refused error
	if err := l.inMemory(func() { refused = l.adopt(holder, nil, devicesOf(keys)) }); err != nil && refused == nil {
		refused = err
	}
	if refused != nil {
		return fmt.Errorf("adopt devices: %w", refused)
	}
	return nil
}
