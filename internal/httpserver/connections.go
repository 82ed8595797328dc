package httpserver

import (
	"crypto/tls"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// receiveBuffer and sendBuffer are the sizes of the kernel's buffers of a TCP connection, in bytes, which are the pod's memory. Without
	// them each grows to some MiB (tcp(7): tcp_rmem, tcp_wmem).
	receiveBuffer = 32 << 10
	sendBuffer    = 256 << 10
	// unacknowledged is how long the kernel waits for a client that takes nothing of what was sent, also after the connection was closed.
	unacknowledged = 15 * time.Second
)

// connections are the open connections of a server.
type connections struct {
	most       int
	perAddress int

	mu  sync.Mutex
	all map[*conn]bool
	// came says how often addresses came lately.
	came map[netip.Addr]arrivals
}

// arrivals are the connections of an address until a time, each counted half after arrivalsHalf.
type arrivals struct {
	count float64
	until time.Time
}

const (
	// silentTime is how long a connection has moved no byte that can be closed for any other one.
	silentTime   = 250 * time.Millisecond
	arrivalsHalf = 10 * time.Second
	// mostCame is of how many addresses arrivals are kept.
	mostCame = 4096
)

// conn is an open connection.
type conn struct {
	net.Conn
	of      *connections
	address netip.Addr
	// moved is when a byte was read or written last.
	moved atomic.Pointer[time.Time]
	// answering is true from the end of a request's headers to the end of its answer.
	answering atomic.Bool
}

// boundedListener is a listener whose connections are counted.
type boundedListener struct {
	net.Listener
	open *connections
}

// Accept returns the next connection that has a place.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, of: l.open}
		if remote := accepted.RemoteAddr(); remote != nil {
			c.address = parseAddress(remote.String())
		}
		c.touch()
		bound(accepted)
		if l.open.add(c) {
			return c, nil
		}
		c.abort()
	}
}

// bound limits what the kernel keeps for a TCP connection. A limit that cannot be set leaves the kernel's own.
func bound(c net.Conn) {
	tcp, is := c.(*net.TCPConn)
	if !is {
		return
	}
	_ = tcp.SetReadBuffer(receiveBuffer)
	_ = tcp.SetWriteBuffer(sendBuffer)
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
		})
	}
}

// add adds a connection and closes the one whose place it takes, or returns false: where connections come faster than requests can be read
// on them, places are for addresses that come less often.
func (o *connections) add(c *conn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.arrive(c.address, now)
	closed, ofAddress := o.first(func(other *conn) bool { return c.address.IsValid() && other.address == c.address })
	if ofAddress < o.perAddress {
		closed = nil
		if len(o.all) >= o.most {
			closed, _ = o.first(func(*conn) bool { return true })
			if now.Sub(*closed.moved.Load()) < silentTime {
				closed = o.mostCome(c, now)
			}
		}
	}
	if closed == c {
		return false
	}
	if closed != nil {
		delete(o.all, closed)
		closed.abort()
	}
	o.all[c] = true
	return true
}

// arrive counts a connection of an address.
func (o *connections) arrive(address netip.Addr, now time.Time) {
	if len(o.came) >= mostCame {
		clear(o.came)
	}
	o.came[address] = arrivals{1 + o.came[address].at(now), now}
}

// often returns how often an address came lately.
func (o *connections) often(address netip.Addr, now time.Time) int {
	return int(math.Round(o.came[address].at(now)))
}

func (a arrivals) at(now time.Time) float64 {
	return a.count * math.Exp2(-now.Sub(a.until).Seconds()/arrivalsHalf.Seconds())
}

// mostCome returns the connection, a new one among them, whose address came most often; of those alike, the one that is closed first. A new
// one is returned only if its address came often.
func (o *connections) mostCome(c *conn, now time.Time) *conn {
	most := 0
	for other := range o.all {
		most = max(most, o.often(other.address, now))
	}
	if own := o.often(c.address, now); own > most && own > 2*o.perAddress {
		return c
	}
	found, _ := o.first(func(other *conn) bool { return o.often(other.address, now) >= most })
	return found
}

// first returns which of the connections of a kind is closed first, and how many there are: one that is not in the middle of a request
// before one that is, and of those alike the one that has been silent for longest.
func (o *connections) first(of func(*conn) bool) (first *conn, count int) {
	var phase int
	for c := range o.all {
		if !of(c) {
			continue
		}
		count++
		if p := c.phase(); first == nil || p < phase || p == phase && c.moved.Load().Before(*first.moved.Load()) {
			first, phase = c, p
		}
	}
	return first, count
}

// phase is how far a request is: 0 where there is none or a part, 1 where bytes wait to be read, 2 in the middle of one.
func (c *conn) phase() int {
	if c.answering.Load() {
		return 2
	}
	waiting := 0
	if raw, is := c.Conn.(syscall.Conn); is {
		if control, err := raw.SyscallConn(); err == nil {
			_ = control.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		}
	}
	return min(waiting, 1)
}

// state notes whether a connection is in the middle of a request.
func (o *connections) state(of net.Conn, state http.ConnState) {
	if secure, is := of.(*tls.Conn); is {
		of = secure.NetConn()
	}
	if c, is := of.(*conn); is {
		c.answering.Store(state == http.StateActive)
	}
}

func (c *conn) touch() { c.moved.Store(new(time.Now())) }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.touch()
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.touch()
	}
	return n, err
}

// Close closes the connection. net/http calls it for each.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite tells the client that nothing follows. net/http uses it, so that a client can read why its request was refused.
func (c *conn) CloseWrite() error {
	if half, is := c.Conn.(interface{ CloseWrite() error }); is {
		return half.CloseWrite()
	}
	return nil
}

// NetConn returns the connection itself, for what it says of its client.
func (c *conn) NetConn() net.Conn { return c.Conn }

// abort closes the connection without sending what is not sent yet, which the kernel would keep for a client that takes nothing.
func (c *conn) abort() {
	if tcp, is := c.Conn.(*net.TCPConn); is {
		_ = tcp.SetLinger(0)
	}
	_ = c.Conn.Close()
}
