package workload

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// forward accepts connections on the listening socket that was inherited as descriptor fd, and forwards them to
// address. The two can be in different network namespaces: a socket stays in the namespace in which it was created.
func forward(fd, address string) error {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return errUsage
	}
	listener, err := net.FileListener(os.NewFile(uintptr(n), "listener"))
	if err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("forward: %w", err)
		}
		go pass(conn, address)
	}
}

// pass connects two connections until both directions have ended.
func pass(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		half(to, from)
	}()
	half(from, to)
	<-done
}

// half copies one direction and closes it at its end, so that the other direction can finish.
func half(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}
