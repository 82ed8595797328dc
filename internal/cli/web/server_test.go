package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/web/board"
)

var start = time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)

// cluster returns nodes with 8 GPUs each, most of them held, and one of them not healthy.
func cluster(nodes int) *board.Input {
	in := &board.Input{Time: start}
	for i := range nodes {
		n := v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), CreationTimestamp: metav1.NewTime(start)}}
		n.Status.Summary = v1alpha1.GPUSummary{GPUs: 8, Held: 6, Free: 2, Model: "NVIDIA H100 80GB HBM3"}
		for k := range 8 {
			d := v1alpha1.GPUDevice{
				UUID: fmt.Sprintf("GPU-00000000-0000-0000-%04d-%012d", i, k), Index: k, Product: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30,
				NUMANode: k / 4, Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu"},
			}
			if k < 6 {
				d.Holders = []v1alpha1.Holder{{Kind: "Pod", Namespace: fmt.Sprintf("team-%d", k%3), Pod: fmt.Sprintf("train-%d-%d", i, k), PodUID: fmt.Sprintf("uid-%d-%d", i, k)}}
			}
			cells := strings.Fields(strings.Repeat("NV18 ", 8))
			cells[k] = "X"
			n.Status.Topology = append(n.Status.Topology, strings.Join(cells, " "))
			n.Status.Devices = append(n.Status.Devices, d)
		}
		in.GPUNodes = append(in.GPUNodes, n)
	}
	return in
}

// testServer is a server with what a test changes.
type testServer struct {
	*Server
	clock *testclock.FakeClock
	reads atomic.Int32
	mu    sync.Mutex
	in    *board.Input
	err   error
}

func newTestServer(t *testing.T, in *board.Input, change func(*Deps)) *testServer {
	t.Helper()
	s := &testServer{clock: testclock.NewFakeClock(start), in: in}
	deps := Deps{
		Read: func(ctx context.Context) (*board.Input, error) {
			s.reads.Add(1)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.in, s.err
		},
		Trace:  func(_ context.Context, what string) (string, error) { return "trace of " + what, nil },
		Source: "10.0.0.1:6443", Clock: s.clock,
	}
	if change != nil {
		change(&deps)
	}
	var err error
	if s.Server, err = New(deps); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *testServer) get(target string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8899"+target, nil))
	return answer
}

// checkTexts checks what a page has, and what it never has.
func checkTexts(t *testing.T, body string, want, never []string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(body, text) {
			t.Errorf("no %q in:\n%s", text, body)
		}
	}
	for _, text := range never {
		if strings.Contains(body, text) {
			t.Errorf("%q in:\n%s", text, body)
		}
	}
}

func TestRoutes(t *testing.T) {
	hostile := cluster(1)
	hostile.GPUNodes[0].Status.Problems = []v1alpha1.Cause{{Code: "X", Message: `<script>alert(1)</script>`, Recover: `"><img src=x onerror=alert(2)>`}}
	hostile.GPUNodes[0].Status.Devices[0].Holders[0].Namespace = `"onmouseover="alert(3)`
	hostile.GPUNodes[0].Status.Devices[0].Product = `</title><script>alert(4)</script>`
	tests := map[string]struct {
		in     *board.Input
		target string
		status int
		want   []string
		never  []string
	}{
		"the page": {
			target: "/", status: 200,
			want: []string{"<!DOCTYPE html>", "Where is it?", "What waits, and why?", "What is wrong?", `href="/gpu/GPU-00000000-0000-0000-0000-000000000003"`,
				"held by pod team-0/train-0-0", "read at 2026-11-27 09:00:00Z", "10.0.0.1:6443", `<script src="/script.js" defer>`},
		},
		"the part that the script fetches": {target: "/fragment", status: 200, want: []string{"Where is it?"}, never: []string{"<!DOCTYPE", "<script"}},
		"a filter":                         {target: "/?node=node-1", status: 200, want: []string{`value="node-1"`, "node-1"}, never: []string{">node-0<"}},
		"a filter without nodes":           {target: "/?node=x%22%3E%3Cscript%3E", status: 200, want: []string{"No node matches"}, never: []string{"<script>"}},
		"groups":                           {in: cluster(60), target: "/?namespace=team-1", status: 200, want: []string{`href="?model=NVIDIA&#43;H100&#43;80GB&#43;HBM3&amp;namespace=team-1"`, `href="?all=&amp;namespace=team-1"`}},
		"a model of many nodes":            {in: cluster(60), target: "/?model=NVIDIA+H100+80GB+HBM3", status: 200, want: []string{">node-59<"}, never: []string{"60 nodes"}},
		"nothing was measured":             {in: cluster(60), target: "/", status: 200, want: []string{`<td><abbr title="not measured">–</abbr></td>`}},
		"no nodes":                         {in: &board.Input{Time: start}, target: "/", status: 200, want: []string{"No node has reported GPUs"}},
		"texts of tenants":                 {in: hostile, target: "/", status: 200, want: []string{"&lt;script&gt;alert(1)"}, never: []string{"<script>", "<img", ` onmouseover="`, `"onmouseover=`}},
		"the object":                       {target: "/api/v1/board", status: 200, want: []string{`"kind": "Board"`, `"apiVersion": "berth.dev/`}},
		"a GPU":                            {target: "/gpu/GPU-1", status: 200, want: []string{"<pre>trace of GPU-1</pre>"}},
		"a pod":                            {target: "/pod/team/train-0", status: 200, want: []string{"trace of team/train-0"}},
		"a flag in place of a GPU":         {target: "/gpu/--kubeconfig=x", status: 404},
		"a flag in place of a namespace":   {target: "/pod/--kubeconfig=x/y", status: 404},
		"a long name":                      {target: "/gpu/" + strings.Repeat("x", 401), status: 404},
		"another file":                     {target: "/server.go", status: 404},
		"a path out of the files":          {target: "/..%2fserver.go", status: 404},
		"the style":                        {target: "/style.css", status: 200, want: []string{".gpu"}},
		"the icon":                         {target: "/icon.svg", status: 200, want: []string{"<svg"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := test.in
			if in == nil {
				in = cluster(2)
			}
			answer := newTestServer(t, in, nil).get(test.target)
			if answer.Code != test.status {
				t.Fatalf("got status %d: %s", answer.Code, answer.Body)
			}
			checkTexts(t, answer.Body.String(), test.want, test.never)
			if csp := answer.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'self';") {
				t.Errorf("got Content-Security-Policy %q", csp)
			}
			// With none, a browser sends a form of the page with the origin null, which the sign-in refuses.
			if policy := answer.Header().Get("Referrer-Policy"); policy != "same-origin" {
				t.Errorf("got Referrer-Policy %q", policy)
			}
		})
	}
}

func TestPostIsRefused(t *testing.T) {
	answer := httptest.NewRecorder()
	newTestServer(t, cluster(1), nil).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/", nil))
	if answer.Code != http.StatusMethodNotAllowed {
		t.Errorf("got status %d", answer.Code)
	}
}

func TestAccess(t *testing.T) {
	access, err := NewAccess(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8899})
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimPrefix(access.Address(), "http://127.0.0.1:8899/?token=")
	if len(token) < 26 {
		t.Fatalf("the token %q has fewer than 128 bits", token)
	}
	tests := map[string]struct {
		target   string
		host     string
		cookie   string
		status   int
		location string
	}{
		"the address":                    {target: "/?token=" + token, status: 303, location: "/"},
		"the address of a view":          {target: "/?model=A&token=" + token, status: 303, location: "/?model=A"},
		"the address of another site":    {target: "//evil.example/?token=" + token, status: 303, location: "/"},
		"another token":                  {target: "/?token=x", status: 401},
		"another token with the cookie":  {target: "/?token=x", cookie: token, status: 401},
		"an empty token":                 {target: "/?token=", status: 401},
		"no cookie":                      {target: "/", status: 401},
		"no cookie, the object":          {target: "/api/v1/board", status: 401},
		"no cookie, the style":           {target: "/style.css", status: 401},
		"the cookie":                     {target: "/", cookie: token, status: 200},
		"another cookie":                 {target: "/", cookie: token[1:], status: 401},
		"localhost":                      {target: "/", host: "localhost:8899", cookie: token, status: 200},
		"IPv6":                           {target: "/", host: "[::1]:8899", cookie: token, status: 200},
		"another name of this machine":   {target: "/", host: "evil.example:8899", cookie: token, status: 421},
		"a name that begins with it":     {target: "/", host: "127.0.0.1.evil.example:8899", cookie: token, status: 421},
		"another port":                   {target: "/", host: "127.0.0.1:80", cookie: token, status: 421},
		"another address, and the token": {target: "/?token=" + token, host: "10.0.0.5:8899", status: 421},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newTestServer(t, cluster(1), func(d *Deps) { d.Access = access })
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			if err := setTarget(r, test.target); err != nil {
				t.Fatal(err)
			}
			if r.Host = test.host; r.Host == "" {
				r.Host = "127.0.0.1:8899"
			}
			if test.cookie != "" {
				r.AddCookie(&http.Cookie{Name: "berth-web-8899", Value: test.cookie})
			}
			answer := httptest.NewRecorder()
			s.ServeHTTP(answer, r)
			if answer.Code != test.status {
				t.Fatalf("got status %d, want %d: %s", answer.Code, test.status, answer.Body)
			}
			if got := answer.Header().Get("Location"); test.location != "" && got != test.location {
				t.Errorf("got Location %q, want %q", got, test.location)
			}
			if cookie := answer.Header().Get("Set-Cookie"); (test.status == 303) != (cookie != "") ||
				test.status == 303 && (!strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict")) {
				t.Errorf("got Set-Cookie %q", cookie)
			}
		})
	}
}

// TestAddress checks that the address that is printed is the one that is listened on.
func TestAddress(t *testing.T) {
	tests := map[string]struct {
		listener net.TCPAddr
		want     string
		host     string
		status   int
	}{
		"IPv4":             {listener: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8899}, want: "http://127.0.0.1:8899/?token=", host: "127.0.0.1:8899", status: 303},
		"another loopback": {listener: net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 8899}, want: "http://127.0.0.2:8899/?token=", host: "127.0.0.2:8899", status: 303},
		"IPv6":             {listener: net.TCPAddr{IP: net.IPv6loopback, Port: 8899}, want: "http://[::1]:8899/?token=", host: "[::1]:8899", status: 303},
		"the port 80":      {listener: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, want: "http://127.0.0.1:80/?token=", host: "127.0.0.1", status: 303},
		"IPv6, port 80":    {listener: net.TCPAddr{IP: net.IPv6loopback, Port: 80}, want: "http://[::1]:80/?token=", host: "[::1]", status: 303},
		"no port":          {listener: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8899}, want: "http://127.0.0.1:8899/?token=", host: "127.0.0.1", status: 421},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			access, err := NewAccess(&test.listener)
			if err != nil {
				t.Fatal(err)
			}
			token, is := strings.CutPrefix(access.Address(), test.want)
			if !is {
				t.Fatalf("got %s, want %s", access.Address(), test.want)
			}
			r := httptest.NewRequest(http.MethodGet, "/?token="+token, nil)
			r.Host = test.host
			answer := httptest.NewRecorder()
			newTestServer(t, cluster(1), func(d *Deps) { d.Access = access }).ServeHTTP(answer, r)
			if answer.Code != test.status {
				t.Errorf("got status %d, want %d: %s", answer.Code, test.status, answer.Body)
			}
		})
	}
}

func setTarget(r *http.Request, target string) error {
	r.RequestURI = target
	parsed, err := r.URL.Parse(target)
	r.URL = parsed
	return err
}

// TestReads checks that many browsers cause one read of the cluster per interval.
func TestReads(t *testing.T) {
	s := newTestServer(t, cluster(1), nil)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { s.get("/fragment") })
	}
	all.Wait()
	if got := s.reads.Load(); got != 1 {
		t.Errorf("%d reads for 50 requests of the same time", got)
	}
	s.clock.Step(RefreshInterval)
	s.get("/")
	s.get("/api/v1/board")
	if got := s.reads.Load(); got != 2 {
		t.Errorf("%d reads after an interval", got)
	}
}

// TestFailedRead checks that the page says why there is nothing, in a moment, and that it comes back.
func TestFailedRead(t *testing.T) {
	s := newTestServer(t, cluster(1), nil)
	s.err = errors.New("connection refused <b>")
	answer := s.get("/")
	if answer.Code != http.StatusBadGateway || !strings.Contains(answer.Body.String(), "connection refused &lt;b&gt;") || !strings.Contains(answer.Body.String(), `http-equiv="refresh"`) {
		t.Errorf("got %d: %s", answer.Code, answer.Body)
	}
	s.mu.Lock()
	s.err = nil
	s.mu.Unlock()
	s.clock.Step(RefreshInterval)
	if answer = s.get("/"); answer.Code != http.StatusOK {
		t.Errorf("got %d after the read succeeds", answer.Code)
	}
}

// TestGoneBrowser checks that a browser that goes during a read does not leave its error to the next one.
func TestGoneBrowser(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	// A request that has gone may read or not.
	for range 50 {
		s := newTestServer(t, cluster(1), nil)
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil))
		if answer := s.get("/"); answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), "Where is it?") {
			t.Fatalf("got %d: %q", answer.Code, answer.Body)
		}
	}
}

// TestSamples checks which nodes are measured, and that a page comes without the measurements that fail.
func TestSamples(t *testing.T) {
	in := cluster(3)
	in.Agents = map[string]bool{"node-0": true, "node-1": true}
	in.Nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}}, {ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}}
	var mu sync.Mutex
	reads := map[string]int{}
	s := newTestServer(t, in, func(d *Deps) {
		d.Samples = func(_ context.Context, node string) (*v1alpha1.GPUSamples, error) {
			mu.Lock()
			defer mu.Unlock()
			reads[node]++
			if node == "node-1" {
				return nil, errors.New("the agent does not answer")
			}
			bytes := float64(40 << 30)
			return &v1alpha1.GPUSamples{Time: metav1.NewMicroTime(start), Items: []v1alpha1.GPUSample{{UUID: "GPU-00000000-0000-0000-0000-000000000000", GPUSampleUse: v1alpha1.GPUSampleUse{MemoryUsedBytes: &bytes}}}}, nil
		}
	})
	for range 3 {
		answer := s.get("/")
		for _, want := range []string{"40.0 of 80 GiB used", "measured 2026-11-27 09:00:00Z", "The use of memory of node-1 is not known: the agent does not answer"} {
			if !strings.Contains(answer.Body.String(), want) {
				t.Fatalf("no %q in:\n%s", want, answer.Body)
			}
		}
		s.clock.Step(RefreshInterval)
	}
	if got := fmt.Sprint(reads); got != "map[node-0:1 node-1:1]" {
		t.Errorf("got reads %s for 3 pages within %s", got, sampleInterval)
	}
}

// TestSlowAgents checks that agents that do not answer delay a page once, and not each one.
func TestSlowAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := cluster(mostSampled)
		s, err := New(Deps{
			Read: func(context.Context) (*board.Input, error) { return in, nil },
			Samples: func(ctx context.Context, _ string) (*v1alpha1.GPUSamples, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			Clock: clock.RealClock{},
		})
		if err != nil {
			t.Fatal(err)
		}
		var took []time.Duration
		for range 3 {
			begun := time.Now()
			answer := httptest.NewRecorder()
			s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
			took = append(took, time.Since(begun))
			if !strings.Contains(answer.Body.String(), "is not known: context deadline exceeded") {
				t.Fatal(answer.Body)
			}
		}
		if want := []time.Duration{sampleTimeout, 0, 0}; !slices.Equal(took, want) {
			t.Errorf("pages took %v, want %v", took, want)
		}
	})
}

// TestReasons checks that the reasons are those of the pods that a page shows, and that the object that is asked for once has them.
func TestReasons(t *testing.T) {
	in := cluster(1)
	for i := range 32 {
		in.Waiting = append(in.Waiting, v1alpha1.BoardWaiting{Namespace: fmt.Sprint("team-", i/15), Name: fmt.Sprint("pod-", i), Pod: fmt.Sprint("pod-", i), Pods: 1, Since: metav1.NewTime(start)})
	}
	s := newTestServer(t, in, func(d *Deps) {
		d.Reasons = func(_ context.Context, _ *board.Input, shown []v1alpha1.BoardWaiting, wait bool) board.Reasons {
			found := board.Reasons{Time: start, Pods: map[string]*v1alpha1.Why{}}
			for _, w := range shown {
				found.Pods[w.Namespace+"/"+w.Pod] = &v1alpha1.Why{Sentence: fmt.Sprintf("reason of %s, %v", w.Pod, wait)}
			}
			return found
		}
	})
	tests := map[string]struct {
		target string
		want   []string
		never  []string
	}{
		"the oldest":     {target: "/", want: []string{"reason of pod-0, false", "reason of pod-11, false", "20 more wait"}, never: []string{"reason of pod-12,"}},
		"of a namespace": {target: "/?namespace=team-1", want: []string{"reason of pod-15, false", "reason of pod-26, false", "3 more wait"}, never: []string{"pod-14", "pod-27"}},
		"of two pods":    {target: "/?namespace=team-2", want: []string{"reason of pod-30, false", "reason of pod-31, false"}, never: []string{"pod-29", "more wait"}},
		"of another":     {target: "/?namespace=team-3", want: []string{"Nothing that you may see"}, never: []string{"more wait", "evaluated at"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			body := s.get(test.target).Body.String()
			checkTexts(t, body, test.want, test.never)
		})
	}
	made, err := s.Board(t.Context(), v1alpha1.BoardFilter{Namespace: "team-1"})
	if err != nil || len(made.Waiting) != 12 || made.Waiting[0].Sentence != "reason of pod-15, true" || made.MoreWaiting != 3 {
		t.Errorf("got %+v, %v", made, err)
	}
}

// TestMarks checks that the picture of a GPU shows that one of its MIG devices is not healthy, or not allocated.
func TestMarks(t *testing.T) {
	part := func(state, draining string) v1alpha1.BoardPart {
		return v1alpha1.BoardPart{Size: 1, State: state, BoardDevice: v1alpha1.BoardDevice{Draining: draining}}
	}
	tests := map[string]struct {
		state  string
		parts  []v1alpha1.BoardPart
		corner string
		marks  int
		locked bool
	}{
		"healthy":                      {state: "Healthy"},
		"degraded":                     {state: "Degraded", corner: "warn"},
		"healthy, with parts":          {state: "Healthy", parts: []v1alpha1.BoardPart{part("Healthy", ""), part("Healthy", "")}},
		"a part has a fault":           {state: "Healthy", parts: []v1alpha1.BoardPart{part("Healthy", ""), part("Unhealthy", "")}, corner: "bad", marks: 1},
		"a part is degraded":           {state: "Healthy", parts: []v1alpha1.BoardPart{part("Degraded", ""), part("Healthy", "")}, corner: "warn", marks: 1},
		"the GPU is worse than a part": {state: "NeedsReset", parts: []v1alpha1.BoardPart{part("Degraded", "")}, corner: "bad", marks: 1},
		"a part drains":                {state: "Healthy", parts: []v1alpha1.BoardPart{part("Healthy", "a layout is applied")}, locked: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := v1alpha1.BoardGPU{Health: v1alpha1.DeviceHealth{State: test.state}, Slices: 2, Parts: test.parts}
			marks := 0
			for _, s := range shapes(g) {
				if s.Class == "bad" || s.Class == "warn" {
					marks++
				}
			}
			if corner(g) != test.corner || marks != test.marks || locked(g) != test.locked {
				t.Errorf("got %q, %d marks, locked %v", corner(g), marks, locked(g))
			}
		})
	}
}

// TestSizes checks the sizes that the page promises, and that it asks nothing of other hosts.
func TestSizes(t *testing.T) {
	s := newTestServer(t, cluster(8), nil)
	total := 0
	for _, target := range []string{"/", "/style.css", "/script.js", "/icon.svg"} {
		answer := s.get(target)
		total += answer.Body.Len()
		body := strings.ReplaceAll(answer.Body.String(), `xmlns="http://www.w3.org/2000/svg"`, "")
		if external := regexp.MustCompile(`(https?:)?//[a-z0-9.]+\.[a-z]+|url\((https?|//)|@import`).FindString(body); external != "" {
			t.Errorf("%s names %s", target, external)
		}
		if target == "/script.js" && answer.Body.Len() > 15<<10 {
			t.Errorf("the script has %d bytes", answer.Body.Len())
		}
	}
	t.Logf("%d bytes for 8 nodes with 8 GPUs each", total)
	if total > 100_000 {
		t.Errorf("%d bytes for 8 nodes", total)
	}
}

func TestObjectIsTheBoard(t *testing.T) {
	s := newTestServer(t, cluster(2), nil)
	var made v1alpha1.Board
	decoder := json.NewDecoder(s.get("/api/v1/board?node=node-1").Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&made); err != nil {
		t.Fatal(err)
	}
	if len(made.Nodes) != 1 || made.Nodes[0].Name != "node-1" || made.Filter.Node != "node-1" || made.Totals.GPUs != 8 {
		t.Errorf("got %+v", made)
	}
}

// BenchmarkPage renders the page of 500 nodes: as it comes, and each node.
func BenchmarkPage(b *testing.B) {
	for name, target := range map[string]string{"groups": "/", "each": "/?all"} {
		b.Run(name, func(b *testing.B) {
			in := cluster(500)
			s, err := New(Deps{Read: func(context.Context) (*board.Input, error) { return in, nil }, Clock: testclock.NewFakeClock(start)})
			if err != nil {
				b.Fatal(err)
			}
			var size int
			for b.Loop() {
				answer := httptest.NewRecorder()
				s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, target, nil))
				body, _ := io.ReadAll(answer.Body)
				size = len(body)
			}
			b.ReportMetric(float64(size), "bytes/page")
		})
	}
}
