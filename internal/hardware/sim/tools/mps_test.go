package tools

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// mpsNode is a simulated machine with the directories of one daemon.
type mpsNode struct {
	t       *testing.T
	machine *sim.Machine
	uuids   []string
	pipe    string
	exited  chan int
	printed strings.Builder
}

func newMPSNode(t *testing.T) *mpsNode {
	t.Helper()
	machine, err := sim.CreateWith(filepath.Join(t.TempDir(), "sim"), "h100x8", sim.Options{Seed: "mps", NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	show, err := machine.Show()
	if err != nil {
		t.Fatal(err)
	}
	// A socket path has a short maximum length, and t.TempDir exceeds it.
	pipe, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(pipe) })
	n := &mpsNode{t: t, machine: machine, pipe: pipe}
	for _, gpu := range show.GPUs {
		n.uuids = append(n.uuids, gpu.UUID)
	}
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", pipe)
	t.Setenv("CUDA_MPS_LOG_DIRECTORY", t.TempDir())
	t.Setenv("CUDA_VISIBLE_DEVICES", n.uuids[3])
	return n
}

// control runs the front end.
func (n *mpsNode) control(lines ...string) (string, int) {
	var out strings.Builder
	code := MPSControl(n.machine.Root(), nil, strings.NewReader(strings.Join(lines, "\n")), &out, &out)
	return out.String(), code
}

// start runs the daemon and waits until it answers.
func (n *mpsNode) start(args ...string) {
	n.t.Helper()
	n.exited = make(chan int, 1)
	go func() {
		n.exited <- MPSControl(n.machine.Root(), append([]string{"-f"}, args...), strings.NewReader(""), &n.printed, &n.printed)
	}()
	limit := time.Now().Add(20 * time.Second)
	for {
		if _, code := n.control("get_server_list"); code == 0 {
			break
		}
		if time.Now().After(limit) {
			n.t.Fatal("the daemon does not answer")
		}
	}
	n.t.Cleanup(n.quit)
}

func (n *mpsNode) quit() {
	if n.exited == nil {
		return
	}
	n.control("quit -t 0")
	if code := <-n.exited; code != 0 {
		n.t.Errorf("the daemon ends with %d: %s", code, n.printed.String())
	}
	n.exited = nil
}

// client connects as a program of that user.
func (n *mpsNode) client(uid, pid int) (net.Conn, *bufio.Scanner) {
	n.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(n.pipe, mpsSocket))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	fmt.Fprintln(conn, "client", uid, pid)
	return conn, bufio.NewScanner(conn)
}

// readUntil returns the lines up to the one that contains the word, or to the end.
func readUntil(lines *bufio.Scanner, word string) string {
	var out []string
	for lines.Scan() {
		out = append(out, lines.Text())
		if strings.HasPrefix(lines.Text(), word) {
			break
		}
	}
	return strings.Join(out, "|")
}

func TestMPSCommands(t *testing.T) {
	n := newMPSNode(t)
	if out, code := n.control("get_server_list"); code == 0 || !strings.Contains(out, "Cannot find MPS control daemon process") {
		t.Errorf("without a daemon: %d %q", code, out)
	}
	n.start()
	for _, step := range []struct{ command, want string }{
		{"get_default_active_thread_percentage", "100.0\n"},
		{"set_default_active_thread_percentage 25", "25.0\n"},
		{"get_default_active_thread_percentage", "25.0\n"},
		{"set_default_active_thread_percentage 0", "invalid percentage: 0\n"},
		{"get_default_device_pinned_mem_limit 0", "\n"},
		{"set_default_device_pinned_mem_limit 0 2048M", ""},
		{"get_default_device_pinned_mem_limit 0", "2G\n"},
		{"set_default_device_pinned_mem_limit 0 2048", "invalid size: 2048\n"},
		{"set_default_device_pinned_mem_limit 1 1G", "invalid device: 1\n"}, // it sees one GPU
		{"get_server_list", ""},
		{"get_client_list 1", "invalid command or server: get_client_list 1\n"},
		{"ps", "PID      SERVER   UID      DEVICE\n"},
		{"dance", "invalid command or server: dance\n"},
		{"quit -t x", "invalid timeout: x\n"},
	} {
		if out, code := n.control(step.command); code != 0 || out != step.want {
			t.Errorf("%s: %d %q, want %q", step.command, code, out, step.want)
		}
	}
	// The first client starts the server, with the defaults at that time.
	_, lines := n.client(1000, 7)
	if got, want := readUntil(lines, "ready"), "device 0 "+n.uuids[3]+"|pinned_mem_limit 0 "+
		"2048M|active_thread_percentage 25.0|ready"; got != want {
		t.Errorf("a client gets %q, want %q", got, want)
	}
	for _, step := range []struct{ command, want string }{
		{"get_server_list", "101\n"},
		{"get_client_list 101", "7\n"},
		{"ps", "PID      SERVER   UID      DEVICE\n7        101      1000     " + n.uuids[3] + "\n"},
		{"set_default_active_thread_percentage 50", "50.0\n"},
		{"get_active_thread_percentage 101", "25.0\n"},
		{"set_active_thread_percentage 101 60", "60.0\n"},
		{"set_device_pinned_mem_limit 101 0 3G", ""},
		{"get_device_pinned_mem_limit 101 0", "3G\n"},
		{"dance 101", "invalid command: dance 101\n"},
	} {
		if out, code := n.control(step.command); code != 0 || out != step.want {
			t.Errorf("%s: %d %q, want %q", step.command, code, out, step.want)
		}
	}
	_, lines = n.client(1000, 8)
	if got := readUntil(lines, "ready"); !strings.Contains(got, "pinned_mem_limit 0 3G|active_thread_percentage 60.0") {
		t.Errorf("the next client gets %q", got)
	}
}

func TestMPSUsers(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		n := newMPSNode(t)
		n.start()
		first, lines := n.client(1000, 1)
		readUntil(lines, "ready")
		_, lines = n.client(2000, 2)
		if got := readUntil(lines, "waiting"); got != "waiting: clients of user 1000 run" {
			t.Errorf("the second user gets %q", got)
		}
		first.Close()
		if got := readUntil(lines, "ready"); !strings.HasSuffix(got, "ready") {
			t.Errorf("after the first has gone: %q", got)
		}
	})
	t.Run("many", func(t *testing.T) {
		n := newMPSNode(t)
		n.start("-multiuser-server")
		for uid := range mpsClientLimit {
			_, lines := n.client(uid, uid+1)
			if got := readUntil(lines, "ready"); !strings.HasSuffix(got, "ready") {
				t.Fatalf("client %d gets %q", uid, got)
			}
		}
		_, lines := n.client(0, 1)
		if got := readUntil(lines, "refused"); got != "refused: the server has 48 clients" {
			t.Errorf("client 49 gets %q", got)
		}
	})
}

// TestMPSQuit checks that quit waits for clients, with -t for a limited time, and refuses new ones.
func TestMPSQuit(t *testing.T) {
	n := newMPSNode(t)
	n.start()
	first, lines := n.client(1, 1)
	readUntil(lines, "ready")
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.control("quit")
	}()
	for {
		late, lines := n.client(1, 2)
		refused := readUntil(lines, "ready") == ""
		late.Close()
		if refused {
			break // the daemon is quitting
		}
	}
	select {
	case <-done:
		t.Error("quit did not wait for the client")
	default:
	}
	first.Close()
	<-done
	if code := <-n.exited; code != 0 {
		t.Errorf("the daemon ends with %d", code)
	}
	n.exited = nil
	for _, name := range []string{mpsSocket, mpsPIDFile} {
		if _, err := os.Lstat(filepath.Join(n.pipe, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

func TestMPSDaemonRefuses(t *testing.T) {
	tests := map[string]struct {
		args []string
		edit func(n *mpsNode)
		want string
	}{
		"background":          {[]string{"-d"}, nil, "use -f"},
		"an unknown option":   {[]string{"-x"}, nil, "usage"},
		"an unknown GPU":      {[]string{"-f"}, func(n *mpsNode) { n.t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-x") }, `no GPU "GPU-x"`},
		"an unknown index":    {[]string{"-f"}, func(n *mpsNode) { n.t.Setenv("CUDA_VISIBLE_DEVICES", "8") }, `no GPU "8"`},
		"a GPU with MIG":      {[]string{"-f"}, func(n *mpsNode) { n.mig(3) }, "partitioned (MIG)"},
		"all, one with MIG":   {[]string{"-f"}, func(n *mpsNode) { n.mig(5); n.t.Setenv("CUDA_VISIBLE_DEVICES", "") }, "partitioned (MIG)"},
		"no driver":           {[]string{"-f"}, func(n *mpsNode) { n.inject(sim.Fault{DriverGone: true}) }, "no NVIDIA driver"},
		"a second one":        {[]string{"-f"}, func(n *mpsNode) { n.start() }, "already running"},
		"no such machine dir": {[]string{"-f"}, func(n *mpsNode) { n.machine = &sim.Machine{} }, "simulated machine"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newMPSNode(t)
			if tc.edit != nil {
				tc.edit(n)
			}
			dir := n.machine.Root()
			if dir == "" {
				dir = t.TempDir()
			}
			var out strings.Builder
			if code := MPSControl(dir, tc.args, strings.NewReader(""), io.Discard, &out); code != 1 ||
				!strings.Contains(out.String(), tc.want) {
				t.Errorf("%d %q, want %q", code, out.String(), tc.want)
			}
		})
	}
}

func (n *mpsNode) mig(index int) {
	n.t.Helper()
	library := n.machine.NVML()
	library.Init()
	device, ret := library.DeviceGetHandleByUUID(n.uuids[index])
	if ret == nvml.SUCCESS {
		ret, _ = device.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	}
	if ret != nvml.SUCCESS {
		n.t.Fatal(ret)
	}
}

func (n *mpsNode) inject(fault sim.Fault) {
	n.t.Helper()
	if err := n.machine.Inject(fault); err != nil {
		n.t.Fatal(err)
	}
}

func TestMPSClient(t *testing.T) {
	n := newMPSNode(t)
	var out, complaint strings.Builder
	if code := MPSClient([]string{"-once"}, &out, &complaint); code != 1 || !strings.Contains(complaint.String(), "no MPS control daemon") {
		t.Errorf("without a daemon: %d %q", code, complaint.String())
	}
	n.start()
	if code := MPSClient([]string{"-once", "-uid", "5"}, &out, &complaint); code != 0 ||
		!strings.HasPrefix(out.String(), "device 0 "+n.uuids[3]+"\n") ||
		!strings.HasSuffix(out.String(), "\nready\n") {
		t.Errorf("%d %q", code, out.String())
	}
	// A client that stays ends with the daemon.
	reader, writer := io.Pipe()
	ended := make(chan int, 1)
	complaint.Reset()
	go func() {
		ended <- MPSClient(nil, writer, &complaint)
		writer.Close()
	}()
	readUntil(bufio.NewScanner(reader), "ready")
	n.quit()
	if code := <-ended; code != 1 || !strings.Contains(complaint.String(), "has gone") {
		t.Errorf("after the daemon: %d %q", code, complaint.String())
	}
}
