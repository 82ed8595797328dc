// Package tokens lets those clients of a server in whose token the API server knows and who may get the path, as kube-apiserver does for
// its own /metrics.
//
// It guarantees that the answer to a token counts for a minute and no longer, that a token is kept as its hash, and that the answers and
// the questions to the API server are bounded, however many tokens are sent: those of one address delay no other address. It holds the
// answers in memory. It must not import other packages of Berth but the server's.
package tokens

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/httpserver"
)

const (
	// life is how long an answer counts.
	life = time.Minute
	// mostAnswers is how many answers are kept.
	mostAnswers = 1024
	// mostReviews and mostOfAddress are how many tokens are asked about at the same time, and how many of one address.
	mostReviews   = 16
	mostOfAddress = 2
	// reviewTime bounds the wait for an answer.
	reviewTime = 5 * time.Second
)

// Guard is a handler that asks about the token of each request before another handler gets it.
type Guard struct {
	next  http.Handler
	api   kubernetes.Interface
	clock clock.PassiveClock
	slots *httpserver.Slots

	mu      sync.Mutex
	answers map[question]answer
}

// question is whether a token, by its hash, gives the right to get a path.
type question struct {
	token [sha256.Size]byte
	path  string
}

// answer is http.StatusOK, StatusUnauthorized or StatusForbidden, with the reason.
type answer struct {
	status int
	reason string
	until  time.Time
}

// NewGuard returns the guard of a handler.
func NewGuard(next http.Handler, api kubernetes.Interface, c clock.PassiveClock) *Guard {
	return &Guard{next: next, api: api, clock: c, slots: httpserver.NewSlots(mostReviews, mostOfAddress), answers: map[question]answer{}}
}

// ServeHTTP answers a request.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); token == "" || !strings.EqualFold(kind, "Bearer") {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "this needs the token of an account that may get the nonResourceURL "+r.URL.Path+" (metrics.auth: kubernetes)", http.StatusUnauthorized)
		return
	}
	ask := question{sha256.Sum256([]byte(token)), r.URL.Path}
	found, known := g.known(ask)
	if !known {
		ctx, cancel := context.WithTimeout(r.Context(), reviewTime)
		defer cancel()
		err := g.slots.Do(ctx, httpserver.Address(r), func(ctx context.Context) (err error) {
			if found, known = g.known(ask); known {
				return nil // Another request with the token was first.
			}
			found, err = g.review(ctx, token, r.URL.Path)
			if err == nil {
				g.keep(ask, found)
			}
			return err
		})
		if err != nil {
			http.Error(w, "the API server does not say whose token it is: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	if found.status != http.StatusOK {
		http.Error(w, found.reason, found.status)
		return
	}
	g.next.ServeHTTP(w, r)
}

func (g *Guard) known(ask question) (answer, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	found, is := g.answers[ask]
	return found, is && g.clock.Now().Before(found.until)
}

// keep keeps an answer. Where there are too many, those go first that refuse a token: anybody can send such ones.
func (g *Guard) keep(ask question, found answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	found.until = now.Add(life)
	for _, goes := range []func(answer) bool{
		func(a answer) bool { return !now.Before(a.until) },
		func(a answer) bool { return a.status != http.StatusOK },
		func(answer) bool { return true },
	} {
		if len(g.answers) < mostAnswers {
			break
		}
		maps.DeleteFunc(g.answers, func(_ question, a answer) bool { return goes(a) })
	}
	g.answers[ask] = found
}

// review asks the API server whose token it is, and whether that account may get the path.
func (g *Guard) review(ctx context.Context, token, path string) (answer, error) {
	who, err := g.api.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return answer{}, fmt.Errorf("create a TokenReview: %w", err)
	}
	if !who.Status.Authenticated {
		return answer{status: http.StatusUnauthorized, reason: "the API server does not accept the token"}, nil
	}
	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	may, err := g.api.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return answer{}, fmt.Errorf("create a SubjectAccessReview: %w", err)
	}
	if !may.Status.Allowed {
		return answer{status: http.StatusForbidden, reason: user.Username + " may not get the nonResourceURL " + path + " (bind the ClusterRole berth-metrics-reader)"}, nil
	}
	return answer{status: http.StatusOK}, nil
}
