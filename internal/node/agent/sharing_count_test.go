package agent

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// countSets forwards the agent's calls to the MPS supervisor at another socket and counts the sets of daemons.
func (b *bench) countSets(supervisor string) *atomic.Int32 {
	b.t.Helper()
	var sets atomic.Int32
	root := filepath.Join(b.dir, "mps")
	if err := os.MkdirAll(root, 0o711); err != nil {
		b.t.Fatal(err)
	}
	listener, err := net.Listen("unix", mps.SocketPath(root))
	if err != nil {
		b.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "mps"
			if r.In.Method == http.MethodPut {
				sets.Add(1)
			}
		},
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", supervisor)
		}},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		},
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: proxy}}
	server.Start()
	b.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return &sets
}

// TestSharingWorkPerEvent counts the passes over the time slices and the sets of MPS daemons for one event. The
// supervisor's report after a set must not lead to another one.
func TestSharingWorkPerEvent(t *testing.T) {
	b := newIdleBench(t, "t4x4")
	var passes atomic.Int32
	b.fault = func(step string) error {
		if step == string(timeslice.Begun) {
			passes.Add(1)
		}
		return nil
	}
	socket := filepath.Join(b.dir, "s.sock")
	b.superviseAt(socket)
	sets := b.countSets(socket)
	rules := func(sliced, mps string) string {
		return `
standalone: true
gpus:
- {select: {index: [1]}, sharing: {mode: timeSlicing, replicas: ` + sliced + `, timeSlice: short, resourceName: nvidia.com/gpu.sliced}}
- {select: {index: [2]}, sharing: {mode: mps, replicas: ` + mps + `, resourceName: nvidia.com/gpu.mps}}
`
	}
	b.configure(rules("2", "3"))
	b.agent = b.start()
	b.awaitOf("nvidia.com/gpu.mps", healthy(3))
	b.awaitOf("nvidia.com/gpu.sliced", healthy(2))
	b.awaitSlice(1, "Short")
	allocate := func(resource, id string) func() {
		return func() {
			if _, err := b.kubelet.Allocate(t.Context(), resource, []string{id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		event  string
		do     func()
		passes int32
		sets   int32
	}{
		{"nothing", func() {}, 0, 0},
		{"an allocation of a whole GPU", allocate(resource, string(b.uuid(0))), 0, 0},
		{"an allocation of a time-sliced replica", allocate("nvidia.com/gpu.sliced", string(b.uuid(1))+"::0"), 0, 0},
		{"an allocation of an MPS replica", allocate("nvidia.com/gpu.mps", string(b.uuid(2))+"::0"), 0, 0},
		{"an edit of the MPS rule", func() {
			b.configure(rules("2", "5"))
			b.awaitOf("nvidia.com/gpu.mps", healthy(5))
		}, 1, 1},
		{"an edit of the time slicing rule", func() {
			b.configure(rules("4", "5"))
			b.awaitOf("nvidia.com/gpu.sliced", healthy(4))
		}, 1, 0},
	}
	for _, tc := range tests {
		time.Sleep(300 * time.Millisecond) // The effect of the event before is over.
		passes.Store(0)
		sets.Store(0)
		tc.do()
		awaitTrue(t, "the work for "+tc.event, func() bool { return passes.Load() >= tc.passes && sets.Load() >= tc.sets })
		time.Sleep(500 * time.Millisecond) // One pass or set too many would be done now.
		if passes.Load() != tc.passes || sets.Load() != tc.sets {
			t.Errorf("%s: %d passes and %d sets, want %d and %d", tc.event, passes.Load(), sets.Load(), tc.passes, tc.sets)
		}
	}
}
