package process

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// FreePort returns a TCP port of the loopback interface that nothing listens on.
func FreePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("find a free port: not a TCP address")
	}
	return address.Port, nil
}
