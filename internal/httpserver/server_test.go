package httpserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener of connections within the process.
type pipes struct {
	conns chan net.Conn
	end   chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), end: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.end) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// from is a connection of an address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.address), 1))
}

// dial returns the client's side of a new connection.
func (p *pipes) dial(address string) net.Conn {
	client, server := net.Pipe()
	p.conns <- from{server, address}
	return client
}

// served serves within a bubble of synctest until the test ends.
func served(t *testing.T, o Options) *pipes {
	t.Helper()
	listener, server := newPipes(), New(o)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return listener
}

func greet(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }

// open tells whether the server keeps a connection open that has sent nothing or was answered.
func open(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	_ = c.SetReadDeadline(time.Time{})
	return isTimeout(err)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// ask sends a request and reads the answer.
func ask(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "hello" {
		t.Fatalf("the answer is %q, %v", body, err)
	}
}

// TestTimes checks how long a client can keep a connection.
func TestTimes(t *testing.T) {
	tests := map[string]struct {
		options Options
		send    func(net.Conn)
		unread  bool          // whether the client reads no answer
		want    time.Duration // until the server has closed the connection
	}{
		"nothing sent": {send: func(net.Conn) {}, want: headerTime},
		"headers in small pieces": {send: func(c net.Conn) {
			for piece := "GET / HTTP/1.1\r\n"; ; piece = "a: b\r\n" {
				if _, err := io.WriteString(c, piece); err != nil {
					return
				}
				time.Sleep(300 * time.Millisecond)
			}
		}, want: headerTime},
		"no TLS handshake": {options: Options{TLS: &tls.Config{}}, send: func(net.Conn) {}, want: headerTime},
		"a body that never ends": {send: func(c net.Conn) {
			io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
		}, want: requestTime},
		"an answered request": {send: func(c net.Conn) {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		}, want: idleTime},
		"an answer that is not read": {send: func(c net.Conn) {
			io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
		}, unread: true, want: requestTime},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tc.options.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					greet(w, r)
					if r.URL.Path == "/large" {
						w.Write(make([]byte, 1<<20))
					}
				})
				ended := make(chan time.Time, 1)
				began := time.Now()
				client, server := net.Pipe()
				listener := served(t, tc.options)
				listener.conns <- closing{server, ended}
				var both sync.WaitGroup
				both.Go(func() { tc.send(client) })
				if !tc.unread {
					both.Go(func() { io.Copy(io.Discard, client) })
				}
				// A refused request is closed 500 ms later (net/http's rstAvoidanceDelay).
				if after := (<-ended).Sub(began); after < tc.want || after > tc.want+time.Second {
					t.Errorf("the connection was closed after %v, want %v", after, tc.want)
				}
				client.Close()
				both.Wait()
			})
		})
	}
}

// closing tells when a connection is closed.
type closing struct {
	net.Conn
	ended chan time.Time
}

func (c closing) Close() error {
	select {
	case c.ended <- time.Now():
	default:
	}
	return c.Conn.Close()
}

// TestHeaderBytes checks the limit of headers to the byte.
func TestHeaderBytes(t *testing.T) {
	for size, want := range map[int]int{HeaderBytes: http.StatusOK, HeaderBytes + 1: http.StatusRequestHeaderFieldsTooLarge, 20 * HeaderBytes: http.StatusRequestHeaderFieldsTooLarge} {
		synctest.Test(t, func(t *testing.T) {
			c := served(t, Options{Handler: http.HandlerFunc(greet)}).dial("192.0.2.1")
			defer c.Close()
			request := "GET / HTTP/1.1\r\nHost: x\r\na: "
			go io.WriteString(c, request+strings.Repeat("b", size-len(request)-4)+"\r\n\r\n")
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != want {
				t.Errorf("a request of %d bytes is answered %d, want %d", size, answer.StatusCode, want)
			}
			time.Sleep(time.Second) // The server closes the connection of a refused request after 500 ms.
		})
	}
}

// TestPlaces checks which connection is closed for another one.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := make(chan struct{})
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-wait
			}
			greet(w, r)
		})
		p := served(t, Options{Handler: handler, Connections: 6, PerAddress: 3})
		later := func(address string) net.Conn {
			time.Sleep(time.Millisecond)
			c := p.dial(address)
			synctest.Wait()
			return c
		}
		check := func(when string, c net.Conn, want bool) {
			t.Helper()
			if got := open(c); got != want {
				t.Fatalf("%s: the connection is open: %v, want %v", when, got, want)
			}
		}
		// Three of one address, in both of its forms; the first is in the middle of a request, the second is used.
		slow, used, silent := later("192.0.2.1"), later("::ffff:192.0.2.1"), later("192.0.2.1")
		io.WriteString(slow, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		time.Sleep(time.Millisecond)
		ask(t, used)
		fourth := later("192.0.2.1")
		check("the silent one of the address", silent, false)
		check("the one that was used", used, true)
		// Three more addresses fill the server; the silent one of all goes for the next.
		second, third, last := later("192.0.2.2"), later("192.0.2.3"), later("2001:db8::1")
		time.Sleep(time.Millisecond)
		ask(t, used)
		ask(t, fourth)
		time.Sleep(silentTime)
		one := later("192.0.2.9")
		check("the silent one of all", second, false)
		check("another address", third, true)
		// While all are in the middle of requests, the one that has been silent for longest goes.
		for _, c := range []net.Conn{used, fourth, third, last, one} {
			time.Sleep(time.Millisecond)
			io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
			synctest.Wait()
		}
		time.Sleep(silentTime)
		next := later("192.0.2.10")
		check("the first of those in the middle of a request", slow, false)
		ask(t, next)
		close(wait)
		for _, c := range []net.Conn{slow, used, silent, fourth, second, third, last, one, next} {
			c.Close()
		}
	})
}

// TestAddress checks that one client has one address.
func TestAddress(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[2001:db8::1]:80": "2001:db8::1", "[fe80::1%eth0]:80": "fe80::1", "@": "invalid IP", "": "invalid IP",
	} {
		if got := Address(&http.Request{RemoteAddr: remote}); got.String() != want {
			t.Errorf("Address(%s) = %s, want %s", remote, got, want)
		}
	}
}

// TestFlood scrapes while others send headers without an end, hold silent connections, and read nothing of long answers.
func TestFlood(t *testing.T) {
	page := bytes.Repeat([]byte("berth_gpu_temperature_celsius{gpu=\"0\"} 40\n"), 10_000)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := New(Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(page) })})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	before := heap()
	ctx, stop := context.WithCancel(t.Context())
	var attackers, begun sync.WaitGroup
	attack := func(source int, again bool, send func(net.Conn)) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(source))}}
		begun.Add(1)
		attackers.Go(func() {
			first := sync.OnceFunc(begun.Done)
			defer first()
			for more := true; more && ctx.Err() == nil; more = again {
				c, err := dialer.DialContext(ctx, "tcp", listener.Addr().String())
				if err != nil {
					continue
				}
				first()
				end := context.AfterFunc(ctx, func() { c.Close() })
				send(c)
				end()
				c.Close()
			}
		})
	}
	lines := []byte(strings.Repeat("a: "+strings.Repeat("b", 1000)+"\r\n", 1000))
	wait := func(c net.Conn) { io.ReadFull(c, make([]byte, 1)) }
	headers := func(c net.Conn) {
		io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
		c.Write(lines)
		wait(c)
	}
	unread := func(c net.Conn) {
		io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
		<-ctx.Done()
	}
	for i := range 400 {
		attack(1+i%16, i < 4, headers)
		attack(100+i%16, i < 4, wait)
		attack(200+i%16, false, unread)
	}
	begun.Wait()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}
	var most uint64
	var times []time.Duration
	for i := range 10 {
		began := time.Now()
		if err := scrape(client, "http://"+listener.Addr().String(), len(page)); err != nil {
			t.Errorf("scrape %d: %v", i, err)
		}
		times = append(times, time.Since(began))
		most = max(most, heap())
	}
	stop()
	attackers.Wait()
	server.open.mu.Lock()
	left := len(server.open.all)
	server.open.mu.Unlock()
	if left > Connections {
		t.Errorf("%d connections are open, want at most %d", left, Connections)
	}
	if err := errors.Join(server.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	slices.Sort(times)
	t.Logf("the heap grew by %d KiB; scrapes took %v to %v", (int64(most)-int64(before))>>10, times[0], times[len(times)-1])
	// Single ones can take longer on a machine that does other things; they have to succeed.
	if times[len(times)/2] > time.Second {
		t.Errorf("scrapes took %v", times)
	}
	if most > before+64<<20 {
		t.Errorf("the heap grew from %d to %d MiB", before>>20, most>>20)
	}
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse + stats.StackInuse
}

func scrape(client *http.Client, address string, want int) error {
	answer, err := client.Get(address)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && len(body) != want {
		err = fmt.Errorf("a page of %d bytes, want %d", len(body), want)
	}
	return err
}

// TestTLS checks that a server with TLS counts its connections too, and speaks HTTP/1.1.
func TestTLS(t *testing.T) {
	with := httptest.NewUnstartedServer(nil)
	with.StartTLS() // For its certificate.
	certificate := with.TLS.Certificates[0]
	client := with.Client()
	with.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := New(Options{TLS: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}, PerAddress: 1, Handler: http.HandlerFunc(greet)})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	first, err := client.Get("https://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	first.Body.Close()
	if first.ProtoMajor != 1 {
		t.Errorf("the protocol is %s", first.Proto)
	}
	idle, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	second, err := client.Get("https://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	second.Body.Close()
	if _, err := idle.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the silent connection ends with %v", err)
	}
	if err := errors.Join(server.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
