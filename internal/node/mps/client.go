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

// ErrUnavailable says that no supervisor answers.
var ErrUnavailable = errors.New("the MPS supervisor does not answer")

const (
	clientRetry    = 100 * time.Millisecond
	clientRetryMax = time.Second
	// grace is how long Watch waits for a supervisor to come back before it says that the daemons failed.
	grace = 2 * time.Second
)

// Client is the agent's side of the supervisor's socket. It needs no making and no closing.
type Client struct {
	Socket string
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Set makes a set of daemons the wanted one; those that are not in it are stopped. When it returns, the
// supervisor has it on disk, and reports have the returned generation until another set is accepted.
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

// Status returns the daemons in the order of UUIDs.
func (c *Client) Status(ctx context.Context) ([]Status, error) {
	var reply Report
	if err := c.call(ctx, http.MethodGet, statusURL, nil, &reply); err != nil {
		return nil, fmt.Errorf("read status of MPS daemons: %w", err)
	}
	return reply.GPUs, nil
}

// Watch calls see with the daemons as they are, and again whenever that changes, until ctx ends. It
// connects again when the supervisor goes; if that does not come back soon, see gets the same daemons
// as Failed with the reason, since they may have ended with it, and NoGeneration.
func (c *Client) Watch(ctx context.Context, see func(Report)) {
	clk := c.Clock
	if clk == nil {
		clk = clock.RealClock{}
	}
	var last []Status
	var lost time.Time
	pause, told := clientRetry, false
	for {
		err := c.stream(ctx, func(now Report) {
			last, lost, pause, told = now.GPUs, time.Time{}, clientRetry, false
			see(Report{Generation: now.Generation, GPUs: slices.Clone(now.GPUs)})
		})
		if ctx.Err() != nil {
			return
		}
		if lost.IsZero() {
			lost = clk.Now()
		}
		if clk.Since(lost) >= grace && !told {
			see(Report{Generation: NoGeneration, GPUs: failed(last, err, clk.Now())})
			told = true
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

// failed is what is known of daemons whose supervisor is gone.
func failed(last []Status, err error, now time.Time) []Status {
	out := make([]Status, 0, len(last))
	for _, st := range last {
		out = append(out, Status{GPU: st.GPU, State: Failed, Reason: err.Error(), Since: now, Restarts: st.Restarts})
	}
	return out
}

// stream reads reports until the connection ends, which is the error.
func (c *Client) stream(ctx context.Context, see func(Report)) error {
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
		see(now)
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

// call is one request with an answer.
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
		return fmt.Errorf("read answer of MPS supervisor: %w", err)
	}
	return nil
}

// do makes a request; a response is one of success.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	// Of an http URL only the path counts here.
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
	return nil, fmt.Errorf("the MPS supervisor refuses (%s): %s", response.Status, why.Error)
}
