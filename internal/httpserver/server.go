package httpserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
)

const (
	// HeaderBytes is how long the line and the headers of a request may be together, in bytes, where Options say nothing else.
	HeaderBytes = 8 << 10
	// headerSlack is what net/http adds to Server.MaxHeaderBytes (Server.initialReadLimitSize).
	headerSlack = 4 << 10
	// headerTime bounds the reading of headers, and a TLS handshake.
	headerTime = 2 * time.Second
	// requestTime bounds the reading of a request and the writing of the answer, where Options say nothing else.
	requestTime = 10 * time.Second
	// idleTime is how long a connection stays without a request. Scrapers come every 15 to 60 s.
	idleTime = 2 * time.Minute
	// Connections and PerAddress are how many connections a server has where Options say nothing else.
	Connections = 32
	PerAddress  = 4
)

// Options are how a server differs from the usual one.
type Options struct {
	Handler http.Handler
	// TLS is nil for plain text.
	TLS *tls.Config
	// HeaderBytes bounds a request's line and headers, in bytes, at least 4097; 0 means HeaderBytes.
	HeaderBytes int
	// RequestTime bounds the reading of a request and, from there, the writing of the answer; 0 means 10 s.
	RequestTime time.Duration
	// Connections is how many connections there are; 0 means Connections. PerAddress is how many one IP address has; 0 means PerAddress.
	// The clients of a Unix socket have no address.
	Connections int
	PerAddress  int
	// ConnContext is that of http.Server.
	ConnContext func(context.Context, net.Conn) context.Context
	// Log gets what net/http reports, such as a panic of a handler, at the level Debug; nil for none. What is wrong with a request is the
	// client's doing, and it can do it often.
	Log *slog.Logger
}

// Server is a server of one listener.
type Server struct {
	http *http.Server
	open *connections
	tls  *tls.Config
}

// New returns a server that does not serve yet.
func New(o Options) *Server {
	limit := cmp.Or(o.RequestTime, requestTime)
	open := &connections{
		most: cmp.Or(o.Connections, Connections), perAddress: cmp.Or(o.PerAddress, PerAddress), all: map[*conn]bool{}, came: map[netip.Addr]arrivals{},
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{open: open, http: &http.Server{
		Handler: o.Handler, ConnContext: o.ConnContext, ConnState: open.state, Protocols: protocols,
		MaxHeaderBytes:    cmp.Or(o.HeaderBytes, HeaderBytes) - headerSlack,
		ReadHeaderTimeout: headerTime, ReadTimeout: limit, WriteTimeout: limit, IdleTimeout: idleTime,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	if o.TLS != nil {
		s.tls = o.TLS.Clone()
		s.tls.NextProtos = []string{"http/1.1"}
	}
	return s
}

// Serve serves the connections of a listener, which it closes, until Close or Shutdown; then it returns http.ErrServerClosed.
func (s *Server) Serve(listener net.Listener) error {
	var bounded net.Listener = &boundedListener{listener, s.open}
	if s.tls != nil {
		bounded = tls.NewListener(bounded, s.tls)
	}
	return s.http.Serve(bounded)
}

// Close closes the listener and all connections.
func (s *Server) Close() error { return s.http.Close() }

// Shutdown closes the listener and waits until the requests under way are answered, or ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Address returns the IP address of a client, the same whether the server listens on IPv4 or on both; the zero address for another network.
func Address(r *http.Request) netip.Addr { return parseAddress(r.RemoteAddr) }

func parseAddress(hostPort string) netip.Addr {
	found, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Addr{}
	}
	return found.Addr().Unmap().WithZone("")
}
