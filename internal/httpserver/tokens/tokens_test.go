package tokens

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
)

// server is an API server that knows the tokens "good" and "other".
type server struct {
	*fake.Clientset
	mu    sync.Mutex
	asked int
	away  bool
}

func newServer() *server {
	s := &server{Clientset: fake.NewClientset()}
	s.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked++
		if s.away {
			return true, nil, errors.New("away")
		}
		switch token := review.Spec.Token; token {
		case "good", "other":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: token, Groups: []string{"readers"}}}
		}
		return true, review, nil
	})
	s.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		of := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "good" && review.Spec.Groups[0] == "readers" && of.Path == "/metrics" && of.Verb == "get"
		return true, review, nil
	})
	return s
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func ask(g *Guard, header string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", http.NoBody)
	if header != "" {
		r.Header.Set("Authorization", header)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

var page = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "metrics") })

// TestAnswers checks who gets the page.
func TestAnswers(t *testing.T) {
	api := newServer()
	g := NewGuard(page, api, clock.RealClock{})
	tests := map[string]struct {
		header string
		want   int
		text   string
	}{
		"no token":             {"", http.StatusUnauthorized, "metrics.auth: kubernetes"},
		"another scheme":       {"Basic Z29vZA==", http.StatusUnauthorized, "metrics.auth: kubernetes"},
		"an empty token":       {"Bearer ", http.StatusUnauthorized, "metrics.auth: kubernetes"},
		"a token of nobody's":  {"Bearer junk", http.StatusUnauthorized, "does not accept the token"},
		"a token that may":     {"Bearer good", http.StatusOK, "metrics"},
		"in small letters":     {"bearer good", http.StatusOK, "metrics"},
		"a token that may not": {"Bearer other", http.StatusForbidden, "berth-metrics-reader"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := ask(g, tc.header); got.Code != tc.want || !strings.Contains(got.Body.String(), tc.text) || tc.want != http.StatusOK && strings.Contains(got.Body.String(), "metrics\n") {
				t.Errorf("%d %s, want %d %s", got.Code, got.Body, tc.want, tc.text)
			}
		})
	}
}

// TestRemembered checks that an answer counts for a minute, and that no answer is remembered while the API server is away.
func TestRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newServer()
		g := NewGuard(page, api, clock.RealClock{})
		for range 10 {
			ask(g, "Bearer good")
			ask(g, "Bearer junk")
		}
		if got := api.count(); got != 2 {
			t.Errorf("%d questions, want 2", got)
		}
		api.mu.Lock()
		api.away = true
		api.mu.Unlock()
		if got := ask(g, "Bearer good").Code; got != http.StatusOK {
			t.Errorf("while the answer counts: %d", got)
		}
		time.Sleep(life)
		for range 2 {
			if got := ask(g, "Bearer good").Code; got != http.StatusServiceUnavailable {
				t.Errorf("after a minute, with the API server away: %d", got)
			}
		}
		if got := api.count(); got != 4 {
			t.Errorf("%d questions, want 4", got)
		}
	})
}

// TestManyTokens checks that tokens of nobody's are bounded, and do not make the guard forget the good one.
func TestManyTokens(t *testing.T) {
	api := newServer()
	g := NewGuard(page, api, clock.RealClock{})
	ask(g, "Bearer good")
	for i := range 3 * mostAnswers {
		ask(g, fmt.Sprint("Bearer junk", i))
		if len(g.answers) > mostAnswers {
			t.Fatalf("%d answers are kept, want at most %d", len(g.answers), mostAnswers)
		}
	}
	before := api.count()
	if got := ask(g, "Bearer good").Code; got != http.StatusOK || api.count() != before {
		t.Errorf("the good token: %d, and %d more questions", got, api.count()-before)
	}
}
