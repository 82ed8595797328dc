package gangs

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// TestClockOff: what objects say of times is judged by the clock of the API server, which set them, wherever the clock of the scheduler is.
func TestClockOff(t *testing.T) {
	boundAt := func(p *v1.Pod, after time.Duration) *v1.Pod {
		p.CreationTimestamp = metav1.NewTime(start.Add(after))
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(after))
		return p
	}
	createdAt := func(p *v1.Pod, after time.Duration) *v1.Pod {
		p.CreationTimestamp = metav1.NewTime(start.Add(after))
		return p
	}
	deleted := func(w *world) string {
		w.overdue()
		w.clock.Step(w.limits.Release + time.Second)
		_, gone := w.look()
		return gone
	}
	at := func(t time.Time) string { return t.Sub(start).String() }
	tests := map[string]struct {
		run  func(t *testing.T, w *world) string
		want string
	}{
		"it was whole 6 minutes before the scheduler started, and has lost a member": {func(_ *testing.T, w *world) string {
			w.set(boundAt(pod(0, 2, "n0"), -6*time.Minute))
			w.set(createdAt(pod(1, 2, ""), -7*time.Minute))
			return deleted(w)
		}, ""},
		"it is bound in part since 4 minutes before the scheduler started": {func(_ *testing.T, w *world) string {
			w.set(boundAt(pod(0, 2, "n0"), -4*time.Minute))
			w.set(createdAt(pod(1, 2, ""), -7*time.Minute))
			return deleted(w)
		}, "0"},
		"the place in the queue": {func(_ *testing.T, w *world) string {
			w.set(createdAt(pod(0, 2, ""), -7*time.Minute))
			w.set(createdAt(pod(1, 2, ""), -6*time.Minute))
			w.look()
			said, _ := w.server.serverTimeOf(w.train().since)
			return at(said)
		}, "-6m0s"},
		"pods that end soon": {func(_ *testing.T, w *world) string {
			node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, pods: []*v1.Pod{
				running("long over", 1, deletedAt(-6*time.Minute)), running("over", 1, deletedAt(-time.Minute)), running("soon", 1, deletedAt(30*time.Second)),
				running("later", 1, deletedAt(2*time.Minute)),
			}}
			got := ""
			_, list := w.lower([]fwk.NodeInfo{node}, gangplan.Key{}, 10)
			for _, h := range list {
				got += h.Pods[0].Name + ", "
			}
			return fmt.Sprint(got, w.endable([]fwk.NodeInfo{node}, 1, 0))
		}, "soon, over, true"},
		"when pods end": {func(_ *testing.T, w *world) string {
			node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, pods: []*v1.Pod{
				running("over", 1, deletedAt(-6*time.Minute)), running("soon", 1, deadline(60)), running("later", 1, deadline(600)), running("long over", 1, deadline(-400)),
			}}
			got := ""
			for _, h := range w.ending([]fwk.NodeInfo{node}) {
				got += h.Pods[0].Name + " "
			}
			return got
		}, "later soon "},
		"the start of a reservation, and who may pass": {func(t *testing.T, w *world) string {
			p := one("a", 0)
			w.set(p)
			w.refuse(t, p, running("x", 8, deadline(300)))
			w.clock.Step(time.Minute)
			w.refuse(t, p, running("x", 8, deadline(300)))
			res := w.of(p).reservation
			until, _ := w.server.serverTimeOf(res.until)
			who := w.seeker(running("y", 8, deadline(200), func(p *v1.Pod) { p.Status.StartTime = nil }), gangplan.Key{})
			late := w.seeker(running("y", 8, deadline(239), func(p *v1.Pod) { p.Status.StartTime = nil }), gangplan.Key{})
			return fmt.Sprint(at(res.start), " ", at(until), " ", res.admits(who.ends), " ", res.admits(late.ends))
		}, "5m0s 5m30s true false"},
		"how long pods are waited for that end for a gang": {func(t *testing.T, w *world) string {
			p := one("a", 5)
			w.set(p)
			w.refuse(t, p)
			w.take(p, &attempt{changes: w.of(p).changes}, way1(p, true, []*v1.Pod{running("x", 8, deletedAt(40*time.Second))}), false, 0)
			until, _ := w.server.serverTimeOf(w.of(p).reservation.until)
			return at(until)
		}, "1m10s"},
	}
	for name, test := range tests {
		for _, ahead := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
			t.Run(fmt.Sprint(name, ", ", ahead), func(t *testing.T) {
				c := clocktesting.NewFakeClock(start.Add(ahead))
				w := worldAt(c)
				w.server.learn(start)
				w.elect()
				if got := test.run(t, w); got != test.want {
					t.Errorf("got %q; want %q", got, test.want)
				}
			})
		}
	}
}

// TestClockUnknown: a gang that another scheduler has bound in part is not released before it is known when that was.
func TestClockUnknown(t *testing.T) {
	w := worldAt(clocktesting.NewFakeClock(start))
	w.elect()
	w.set(pod(0, 2, "n0"))
	w.set(pod(1, 2, ""))
	w.look()
	for range 10 {
		w.clock.Step(w.limits.Release)
		if _, deleted := w.look(); deleted != "" {
			t.Fatalf("%s are deleted", deleted)
		}
	}
	w.server.learn(w.clock.Now())
	w.clock.Step(w.limits.Release)
	if _, deleted := w.look(); deleted != "0" {
		t.Errorf("%q are deleted once the time is known; want 0", deleted)
	}
}

// TestServerClock checks what is known of the API server's clock while either clock is set.
func TestServerClock(t *testing.T) {
	c := clocktesting.NewFakeClock(start)
	s := serverClock{clock: c}
	if said, known := s.serverTimeOf(start); known || !said.Equal(start) || !s.own(start).Equal(start) {
		t.Errorf("it is %v before it was read", said)
	}
	steps := []struct {
		said time.Duration // by how much the API server is ahead
		want time.Duration
	}{{-time.Hour, -time.Hour}, {-time.Hour + 3*time.Second, -time.Hour}, {-time.Hour - 3*time.Second, -time.Hour}, {-time.Hour + 4*time.Second, -time.Hour + 4*time.Second}, {time.Minute, time.Minute}}
	for i, step := range steps {
		c.Step(time.Minute)
		s.learn(c.Now().Add(step.said))
		if got := s.now().Sub(c.Now()); got != step.want || s.own(s.now()) != c.Now() {
			t.Errorf("step %d: %v ahead, want %v", i, got, step.want)
		}
	}
}

// TestServerTime reads the time from the answers of servers.
func TestServerTime(t *testing.T) {
	tests := map[string]struct {
		date   string
		status int
		want   string
	}{
		"an answer":     {start.Format(http.TimeFormat), http.StatusOK, start.String()},
		"a refusal":     {start.Format(http.TimeFormat), http.StatusForbidden, start.String()},
		"no date":       {"", http.StatusOK, "the answer has no header Date: a proxy before the API server has removed it"},
		"another thing": {"soon", http.StatusOK, `read the header Date: parsing time "soon" as "Mon Jan _2 15:04:05 2006": cannot parse "soon" as "Mon"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Date"] = nil
				if test.date != "" {
					w.Header().Set("Date", test.date)
				}
				w.WriteHeader(test.status)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			said, err := serverTime(t.Context(), client, clocktesting.NewFakeClock(start.Add(time.Hour)))
			got := said.String()
			if err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
	if said, err := serverTime(t.Context(), fake.NewClientset(), clocktesting.NewFakeClock(start)); err != nil || !said.Equal(start) {
		t.Errorf("without HTTP it is %v, %v", said, err)
	}
}

// client is a handle with a client.
type client struct {
	fwk.Handle
	set kubernetes.Interface
}

func (c client) ClientSet() kubernetes.Interface { return c.set }

// TestReadClock: the keeper reads the clock of the API server at first, again soon when that fails, and then once a minute.
func TestReadClock(t *testing.T) {
	w := worldAt(clocktesting.NewFakeClock(start.Add(10 * time.Minute)))
	asked, said := 0, ""
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		asked++
		answer.Header()["Date"] = nil
		if said != "" {
			answer.Header().Set("Date", said)
		}
	}))
	defer server.Close()
	set, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{gangs: w.registry, handle: client{set: set}, clock: w.clock}
	steps := []struct {
		after time.Duration
		said  string
		asked int
		known bool
	}{
		{0, "", 1, false},
		{clockAgain - 1, start.Format(http.TimeFormat), 1, false},
		{1, start.Format(http.TimeFormat), 2, true},
		{clockEvery - 1, "", 2, true},
		{1, "", 3, true},
		{clockAgain, start.Add(clockEvery + clockAgain).Format(http.TimeFormat), 4, true},
	}
	for i, step := range steps {
		w.clock.Step(step.after)
		said = step.said
		k.readClock(t.Context())
		if _, known := w.server.serverTimeOf(w.clock.Now()); known != step.known || asked != step.asked {
			t.Errorf("step %d: asked %d times, known %v; want %d and %v", i, asked, known, step.asked, step.known)
		}
	}
	if behind := w.clock.Now().Sub(w.server.now()); (behind - 10*time.Minute).Abs() > 10*time.Second {
		t.Errorf("the API server's clock is %v behind; want 10 minutes", behind)
	}
}

// TestFinalizers: a pod that has ended but for its finalizers is waited for shortly, and no longer.
func TestFinalizers(t *testing.T) {
	ended := func(p *v1.Pod) {
		p.Status.ContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}}
	}
	runs := func(p *v1.Pod) { p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{}) }
	confirmed := func(p *v1.Pod) { p.DeletionGracePeriodSeconds = new(int64) }
	finalizer := func(p *v1.Pod) { p.Finalizers = []string{"example.com/keep"} }
	tests := map[string]struct {
		change []func(*v1.Pod)
		want   string // whether it is waited for at first, and after the limit
	}{
		"it runs":                             {[]func(*v1.Pod){finalizer}, "true true"},
		"it is being deleted":                 {[]func(*v1.Pod){deletedAt(20 * time.Second), finalizer}, "true true"},
		"its containers have ended":           {[]func(*v1.Pod){deletedAt(20 * time.Second), finalizer, ended}, "true false"},
		"one of its containers has ended":     {[]func(*v1.Pod){deletedAt(20 * time.Second), finalizer, ended, runs}, "true true"},
		"the kubelet has confirmed its end":   {[]func(*v1.Pod){deletedAt(20 * time.Second), finalizer, confirmed}, "true false"},
		"it has no finalizer, and ends later": {[]func(*v1.Pod){deletedAt(20 * time.Second), ended}, "true true"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			p := running("a", 1, test.change...)
			node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, pods: []*v1.Pod{p}}
			waited := func() bool {
				list := w.ending([]fwk.NodeInfo{node})
				_, terminating := w.lower([]fwk.NodeInfo{node}, gangplan.Key{}, 10)
				if p.DeletionTimestamp != nil && len(terminating) != len(list) {
					t.Errorf("%d pods end by themselves, %d when a gang ends others", len(list), len(terminating))
				}
				return len(list) == 1
			}
			w.set(p)
			first := waited()
			w.clock.Step(w.limits.Overdue + time.Second)
			w.set(p)
			if got := fmt.Sprint(first, " ", waited()); got != test.want {
				t.Errorf("got %s; want %s", got, test.want)
			}
			if w.remove(p); len(w.finalizing) > 0 {
				t.Errorf("%v is kept of a pod that is gone", w.finalizing)
			}
		})
	}
}
