package tools

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// mpsClientLimit is how many clients a server accepts (compute capability 7.0 and later).
const mpsClientLimit = 48

// mpsLimits are the limits of a client process: a percentage and, by device, a size such as 2048M.
type mpsLimits struct {
	threads float64
	memory  map[int]string
}

func (l mpsLimits) clone() mpsLimits {
	memory := map[int]string{}
	maps.Copy(memory, l.memory)
	return mpsLimits{l.threads, memory}
}

// mpsServer represents the process that the real daemon starts for the first client.
type mpsServer struct {
	pid     int
	uid     int
	limits  mpsLimits
	clients []*mpsClient
}

type mpsClient struct {
	pid  int
	uid  int
	conn net.Conn
}

// mpsDaemon runs one server at a time.
type mpsDaemon struct {
	devices   []string
	multiUser bool
	// answers is one of sim.MPSAnswers.
	answers  func() string
	control  io.Writer
	server   io.Writer
	listener net.Listener

	mu       sync.Mutex
	defaults mpsLimits
	current  *mpsServer
	nextPID  int
	quitting bool
	// changed is signalled when a client has disconnected.
	changed *sync.Cond
	// done is closed when the daemon has ended.
	done chan struct{}
}

func newMPSDaemon(devices []string, multiUser bool, answers func() string, control, server io.Writer, listener net.Listener) *mpsDaemon {
	d := &mpsDaemon{
		devices: devices, multiUser: multiUser, answers: answers, control: control, server: server, listener: listener,
		defaults: mpsLimits{threads: 100, memory: map[int]string{}}, nextPID: 100, done: make(chan struct{}),
	}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// logf writes one line in the format of the real logs.
func (d *mpsDaemon) logf(to io.Writer, format string, args ...any) {
	fmt.Fprintf(to, "[%s Control] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), fmt.Sprintf(format, args...))
}

// serve accepts connections until quit. A connection starts with a line: "command ..." or "client UID PID".
func (d *mpsDaemon) serve() {
	var open sync.WaitGroup
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			break
		}
		open.Go(func() {
			defer conn.Close()
			reader := bufio.NewReaderSize(conn, mpsMaxLine)
			line, err := reader.ReadSlice('\n')
			if err != nil {
				return
			}
			words := strings.Fields(string(line))
			switch {
			case len(words) > 1 && words[0] == "command":
				fmt.Fprint(conn, d.command(words[1:]))
			case len(words) == 3 && words[0] == "client":
				uid, err1 := strconv.Atoi(words[1])
				pid, err2 := strconv.Atoi(words[2])
				if err1 == nil && err2 == nil {
					d.host(&mpsClient{pid: pid, uid: uid, conn: conn}, reader)
				}
			}
		})
	}
	<-d.done
	open.Wait()
}

// command executes one command and returns what the front end prints.
func (d *mpsDaemon) command(words []string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logf(d.control, "command: %s", strings.Join(words, " "))
	arg := func(n int) string {
		if n < len(words) {
			return words[n]
		}
		return ""
	}
	switch words[0] {
	case "get_default_active_thread_percentage":
		return d.threads(&d.defaults)
	case "set_default_active_thread_percentage":
		return setThreads(&d.defaults, arg(1))
	case "get_default_device_pinned_mem_limit":
		return d.memory(&d.defaults, arg(1), "", false)
	case "set_default_device_pinned_mem_limit":
		return d.memory(&d.defaults, arg(1), arg(2), true)
	case "get_server_list":
		if d.current == nil {
			return ""
		}
		return fmt.Sprintln(d.current.pid)
	case "ps":
		return d.ps()
	case "quit":
		return d.quit(words[1:])
	}
	// The other commands concern one server.
	if d.current == nil || arg(1) != strconv.Itoa(d.current.pid) {
		return "invalid command or server: " + strings.Join(words, " ") + "\n"
	}
	switch words[0] {
	case "get_client_list":
		var out strings.Builder
		for _, c := range d.current.clients {
			fmt.Fprintln(&out, c.pid)
		}
		return out.String()
	case "get_active_thread_percentage":
		return d.threads(&d.current.limits)
	case "set_active_thread_percentage":
		return setThreads(&d.current.limits, arg(2))
	case "get_device_pinned_mem_limit":
		return d.memory(&d.current.limits, arg(2), "", false)
	case "set_device_pinned_mem_limit":
		return d.memory(&d.current.limits, arg(2), arg(3), true)
	}
	return "invalid command: " + strings.Join(words, " ") + "\n"
}

func setThreads(limits *mpsLimits, text string) string {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !(value > 0 && value <= 100) {
		return "invalid percentage: " + text + "\n"
	}
	limits.threads = value
	return fmt.Sprintf("%.1f\n", value)
}

// memory sets or returns the memory limit of one of the daemon's own devices.
func (d *mpsDaemon) memory(limits *mpsLimits, device, size string, set bool) string {
	number, err := strconv.Atoi(device)
	if err != nil || number < 0 || number >= len(d.devices) {
		return "invalid device: " + device + "\n"
	}
	if !set {
		return d.answer(limits.memory[number]) + "\n"
	}
	digits := strings.TrimRight(size, "MG")
	if value, err := strconv.ParseUint(digits, 10, 32); err != nil || value == 0 || len(size) != len(digits)+1 {
		return "invalid size: " + size + "\n"
	}
	limits.memory[number] = size
	return ""
}

// threads returns the active thread percentage.
func (d *mpsDaemon) threads(limits *mpsLimits) string {
	value := limits.threads
	if d.answers() == sim.MPSAnswersOtherPart {
		value /= 2
	}
	return fmt.Sprintf("%.1f\n", value)
}

// answer returns how the daemon reports a size that was set; "" for none.
func (d *mpsDaemon) answer(size string) string {
	mib, err := strconv.ParseUint(strings.TrimRight(size, "MG"), 10, 32)
	if err != nil {
		return ""
	}
	const gib = 1 << 10
	if strings.HasSuffix(size, "G") {
		mib *= gib
	}
	switch d.answers() {
	case sim.MPSAnswersGiBUp:
		return fmt.Sprintf("%dG", (mib+gib-1)/gib)
	case sim.MPSAnswersExact:
		return size
	case sim.MPSAnswersSmaller:
		return fmt.Sprintf("%dM", mib/2)
	case sim.MPSAnswersLarger:
		return fmt.Sprintf("%dM", 2*mib)
	case sim.MPSAnswersNothing:
		return ""
	case sim.MPSAnswersWords:
		return "limit applies to new clients"
	}
	return fmt.Sprintf("%dG", mib/gib)
}

func (d *mpsDaemon) ps() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%-8s %-8s %-8s %s\n", "PID", "SERVER", "UID", "DEVICE")
	if d.current != nil {
		for _, c := range d.current.clients {
			fmt.Fprintf(&out, "%-8d %-8d %-8d %s\n", c.pid, d.current.pid, c.uid, strings.Join(d.devices, ","))
		}
	}
	return out.String()
}

// quit accepts no more clients, waits for the connected ones (with -t at most that many seconds) and ends the daemon.
// The caller holds the lock.
func (d *mpsDaemon) quit(args []string) string {
	if d.quitting {
		return ""
	}
	d.quitting = true
	if len(args) == 2 && args[0] == "-t" {
		seconds, err := strconv.Atoi(args[1])
		if err != nil || seconds < 0 {
			d.quitting = false
			return "invalid timeout: " + args[1] + "\n"
		}
		defer time.AfterFunc(time.Duration(seconds)*time.Second, d.drop).Stop()
	}
	d.changed.Broadcast()
	for d.current != nil && len(d.current.clients) > 0 {
		d.changed.Wait()
	}
	d.listener.Close()
	close(d.done)
	return ""
}

// drop ends the server and disconnects all its clients.
func (d *mpsDaemon) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current != nil {
		for _, c := range d.current.clients {
			c.conn.Close()
		}
	}
}

// host serves a client until the client disconnects or the daemon ends.
func (d *mpsDaemon) host(c *mpsClient, from io.Reader) {
	if !d.admit(c) {
		return
	}
	_, _ = io.Copy(io.Discard, from) // returns when the client disconnects
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.clients = slices.DeleteFunc(d.current.clients, func(other *mpsClient) bool { return other == c })
	d.logf(d.server, "client %d disconnected", c.pid)
	d.changed.Broadcast()
}

// admit connects a client to the server. Without the multi-user server, a client of a second user waits until the
// clients of the first user have disconnected.
func (d *mpsDaemon) admit(c *mpsClient) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	told := false
	for !d.quitting && !d.multiUser && d.current != nil && d.current.uid != c.uid && len(d.current.clients) > 0 {
		if !told {
			fmt.Fprintf(c.conn, "waiting: clients of user %d run\n", d.current.uid)
			told = true
		}
		d.changed.Wait()
	}
	if d.quitting {
		return false
	}
	if d.current == nil || !d.multiUser && d.current.uid != c.uid {
		d.nextPID++
		d.current = &mpsServer{pid: d.nextPID, uid: c.uid, limits: d.defaults.clone()}
		d.logf(d.server, "server %d for user %d, active thread percentage %.1f", d.current.pid, c.uid, d.current.limits.threads)
	}
	if len(d.current.clients) >= mpsClientLimit {
		fmt.Fprintf(c.conn, "refused: the server has %d clients\n", mpsClientLimit)
		return false
	}
	d.current.clients = append(d.current.clients, c)
	d.logf(d.server, "client %d of user %d connected", c.pid, c.uid)
	for number, device := range d.devices {
		fmt.Fprintf(c.conn, "device %d %s\n", number, device)
		if size := d.current.limits.memory[number]; size != "" {
			fmt.Fprintf(c.conn, "pinned_mem_limit %d %s\n", number, size)
		}
	}
	fmt.Fprintf(c.conn, "active_thread_percentage %.1f\nready\n", d.current.limits.threads)
	return true
}
