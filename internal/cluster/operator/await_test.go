package operator

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/cluster/operator/definitions"
)

// TestAwaitAPI: an operator that cannot reach the API server waits for it and serves its probes until then; it ends with an answer of the
// API server that another attempt does not change.
func TestAwaitAPI(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	crd := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	forbidden := apierrors.NewForbidden(crd, "gpunodes.berth.dev", errors.New("not allowed"))
	newer := &definitions.NewerError{Name: "gpunodes.berth.dev", Cluster: 1000, Embedded: 5}
	for name, test := range map[string]struct {
		answers []error // of the attempts, one after the other
		want    error
	}{
		"at once":         {[]error{nil}, nil},
		"away":            {[]error{refused, context.DeadlineExceeded, refused, nil}, nil},
		"overloaded":      {[]error{apierrors.NewTooManyRequests("later", 1), apierrors.NewServiceUnavailable("no"), apierrors.NewInternalError(refused), nil}, nil},
		"newer":           {[]error{newer}, newer},
		"newer, later":    {[]error{refused, newer}, newer},
		"forbidden":       {[]error{forbidden}, forbidden},
		"not authorized":  {[]error{refused, apierrors.NewUnauthorized("who?")}, apierrors.NewUnauthorized("who?")},
		"an API timeout":  {[]error{apierrors.NewTimeoutError("slow", 1), nil}, nil},
		"wrapped refusal": {[]error{errors.Join(errors.New("read"), refused), nil}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Unix(0, 0))
			s := &started{probes: freeAddress(t)}
			deps := Deps{API: &rest.Config{Host: "https://api.example"}, ProbeListen: s.probes, Clock: clock, Log: slog.New(slog.DiscardHandler)}
			_, end, err := serveProbes(t.Context(), deps)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(end)
			attempts, done := make(chan int), make(chan error, 1)
			go func() {
				n := 0
				done <- awaitAPI(t.Context(), deps, func(context.Context) error {
					n++
					attempts <- n
					return test.answers[n-1]
				})
			}()
			for n := range test.answers {
				select {
				case got := <-attempts:
					if got != n+1 {
						t.Fatalf("attempt %d, want %d", got, n+1)
					}
				case err := <-done:
					t.Fatalf("it returned %v after %d attempts, want %d", err, n, len(test.answers))
				}
				if n+1 == len(test.answers) {
					break
				}
				for !clock.HasWaiters() && len(done) == 0 {
					runtime.Gosched()
				}
				if len(done) > 0 {
					t.Fatalf("it returned %v after %d attempts, want %d", <-done, n+1, len(test.answers))
				}
				if got := s.probe(t, "/healthz"); !strings.HasPrefix(got, "200") {
					t.Errorf("/healthz while it waits: %s", got)
				}
				if got := s.probe(t, "/readyz"); !strings.HasPrefix(got, "503") || !strings.Contains(got, "https://api.example") {
					t.Errorf("/readyz while it waits: %s", got)
				}
				clock.Step(attemptPause)
			}
			if err := <-done; (err == nil) != (test.want == nil) || err != nil && err.Error() != test.want.Error() {
				t.Errorf("it returned %v, want %v", err, test.want)
			}
		})
	}
	t.Run("ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		deps := Deps{API: &rest.Config{}, Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Log: slog.New(slog.DiscardHandler)}
		err := awaitAPI(ctx, deps, func(context.Context) error { cancel(); return refused })
		if !errors.Is(err, context.Canceled) || !errors.Is(err, refused) {
			t.Errorf("it returned %v", err)
		}
	})
}
