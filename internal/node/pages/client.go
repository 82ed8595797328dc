package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

const (
	// getTimeout and maxAnswer bound one request to an agent, which responds from memory.
	getTimeout = 5 * time.Second
	maxAnswer  = 32 << 20
	maxRefusal = 4096
)

// Client sends requests to an agent over its socket.
type Client struct {
	// Socket is the path of the socket.
	Socket string
}

// Get reads a page, such as /readyz.
func (c Client) Get(ctx context.Context, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	response, err := c.Do(ctx, http.MethodGet, page, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", page, c.Socket, err)
	}
	return text, nil
}

// Do sends a request. A status other than 2xx is returned as an error with the agent's message; otherwise the caller
// closes the body.
func (c Client) Do(ctx context.Context, method, page string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://agent"+page, body)
	if err != nil {
		return nil, err
	}
	response, err := c.http().Do(request)
	if err != nil {
		return nil, c.explain(err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal)) // After an error, use the part that was read.
	return nil, &RefusedError{fmt.Sprintf("%s, %s: the agent answers %s: %s", c.Socket, page, response.Status,
		strings.TrimSpace(string(text)))}
}

// RefusedError is a response of the agent other than 2xx, with its message.
type RefusedError struct{ text string }

func (e *RefusedError) Error() string { return e.text }

func (c Client) http() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.Socket)
		},
	}}
}

// explain converts an error of the connection to one with the cause and the fix.
func (c Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist: no berth-agent runs on this node", c.Socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: connection refused: the berth-agent that made it has ended", c.Socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied: run this as root", c.Socket)
	}
	return fmt.Errorf("%s: %w", c.Socket, err)
}
