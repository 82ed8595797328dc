package mps

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// ErrUnavailable means that no supervisor responds.
var ErrUnavailable = errors.New("the MPS supervisor does not answer")

const (
	// requestTime bounds a request.
	requestTime    = 10 * time.Second
	clientRetry    = 100 * time.Millisecond
	clientRetryMax = time.Second
	// grace is how long Watch waits for a supervisor to come back before it reports the daemons as Failed.
	grace = 2 * time.Second
)

// Client is the agent's side of the supervisor's socket. It needs no constructor and is not closed.
type Client struct {
	Socket string
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Set replaces the wanted set of daemons; daemons that are not in it are stopped. When it returns, the supervisor has
// stored the set, and reports carry the returned generation until another set is accepted.
func (c *Client) Set(ctx context.Context, wanted []Wanted) (generation int64, err error) {
	body, err := json.Marshal(request{Wanted: wanted})
	if err != nil {
		return NoGeneration, fmt.Errorf("set wanted MPS daemons: %w", err)
	}
	var reply accepted
	if err := c.call(ctx, http.MethodPut, wantedURL, body, &reply); err != nil {
		return NoGeneration, fmt.Errorf("set wanted MPS daemons: %w", err)
	}
	return reply.Generation, nil
}

// Status returns the daemons, sorted by UUID.
func (c *Client) Status(ctx context.Context) ([]Status, error) {
	var reply Report
	if err := c.call(ctx, http.MethodGet, statusURL, nil, &reply); err != nil {
		return nil, fmt.Errorf("read status of MPS daemons: %w", err)
	}
	return reply.GPUs, nil
}

// Watch calls onReport with the present status and after every change, until ctx ends. It reconnects when the
// connection ends. If the supervisor is not back within the grace period, onReport gets the same daemons as Failed,
// with the reason and NoGeneration, because they may have ended together with the supervisor.
func (c *Client) Watch(ctx context.Context, onReport func(Report)) {
	clk := c.Clock
	if clk == nil {
		clk = clock.RealClock{}
	}
	var last []Status
	var lost time.Time
	pause, reported := clientRetry, false
	for {
		err := c.stream(ctx, func(now Report) {
			last, lost, pause, reported = now.GPUs, time.Time{}, clientRetry, false
			onReport(Report{Generation: now.Generation, GPUs: slices.Clone(now.GPUs)})
		})
		if ctx.Err() != nil {
			return
		}
		if lost.IsZero() {
			lost = clk.Now()
		}
		if clk.Since(lost) >= grace && !reported {
			onReport(Report{Generation: NoGeneration, GPUs: failed(last, err, clk.Now())})
			reported = true
		}
		timer := clk.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		pause = min(2*pause, clientRetryMax)
	}
}

// failed returns the statuses of daemons whose supervisor cannot be reached.
func failed(last []Status, err error, now time.Time) []Status {
	out := make([]Status, 0, len(last))
	for _, st := range last {
		out = append(out, Status{GPU: st.GPU, State: Failed, Reason: err.Error(), Since: now, Restarts: st.Restarts})
	}
	return out
}

// stream passes reports to onReport until the connection ends, and returns why it ended.
func (c *Client) stream(ctx context.Context, onReport func(Report)) error {
	response, err := c.do(ctx, http.MethodGet, watchURL, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxFile)
	for lines.Scan() {
		var now Report
		if err := json.Unmarshal(lines.Bytes(), &now); err != nil {
			return fmt.Errorf("read report of MPS supervisor: %w", err)
		}
		onReport(now)
	}
	err = lines.Err()
	if err == nil {
		err = io.EOF
	}
	return c.unavailable(err)
}

func (c *Client) unavailable(err error) error {
	return fmt.Errorf("%w at %s: %w; MPS needs `berth-agent mps` to run on this node", ErrUnavailable, c.Socket, err)
}

// call sends a request and decodes the response.
func (c *Client) call(ctx context.Context, method, path string, body []byte, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	response, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxFile))
	if err != nil {
		return c.unavailable(err)
	}
	if err := json.Unmarshal(content, reply); err != nil {
		return fmt.Errorf("read response of MPS supervisor: %w", err)
	}
	return nil
}

// do sends a request. It returns an error when the supervisor refuses it.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	// Requests go to the Unix socket, so only the path of the URL is used.
	r, err := http.NewRequestWithContext(ctx, method, "http://mps"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.Socket)
		},
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, c.unavailable(err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxFile))
	if err != nil {
		return nil, c.unavailable(err)
	}
	var why refusal
	if json.Unmarshal(content, &why) != nil || why.Error == "" {
		why.Error = shorten(string(content))
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return nil, c.unavailable(errors.New(why.Error))
	}
	return nil, fmt.Errorf("the MPS supervisor refused the request (%s): %s", response.Status, why.Error)
}
