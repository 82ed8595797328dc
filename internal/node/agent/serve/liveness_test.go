package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// TestLiveness checks that a part that has not responded for longer than the limit is named, and that one that responds
// late, and the others, are not.
func TestLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLiveness(clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		stuck := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Run(ctx, map[string]func(context.Context){
				"the ledger":  func(context.Context) { <-stuck },
				"the problem": func(context.Context) { time.Sleep(20 * time.Second) },
			})
		}()
		get := func() (int, string) {
			recorder := httptest.NewRecorder()
			l.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			return recorder.Code, recorder.Body.String()
		}
		time.Sleep(29 * time.Second)
		if code, body := get(); code != http.StatusOK {
			t.Errorf("after 29 s: %d %q, want ok", code, body)
		}
		time.Sleep(2 * time.Second)
		if code, body := get(); code != http.StatusServiceUnavailable || body != "the ledger has not answered for 31s\n" {
			t.Errorf("after 31 s: %d %q, want 503 that names the ledger", code, body)
		}
		close(stuck)
		synctest.Wait()
		if code, body := get(); code != http.StatusOK {
			t.Errorf("after an answer: %d %q, want ok", code, body)
		}
		cancel()
		<-done
	})
}
