package web

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/httpserver"
)

const (
	// mostOfUser is how many sessions there are of one user at the same time. One more ends the user's that was not used for longest.
	mostOfUser = 8
	// sessionIdle and sessionLife are how long a session lasts without a request, and at all.
	sessionIdle = time.Hour
	sessionLife = 12 * time.Hour
	// reviewInterval is how long the answer of the API server counts to whose token it is. A token that is revoked ends its session then.
	reviewInterval = time.Minute
	// mostReviews is how many tokens of sign-ins are reviewed at the same time, and mostOfAddress how many of one address, which can be
	// that of a proxy; reviewWait is how long a sign-in waits for that. mostToken is how long a token may be, in bytes.
	mostReviews   = 64
	mostOfAddress = 8
	reviewWait    = 5 * time.Second
	mostToken     = 16 << 10

	// sessionCookie is the first part of the cookie's name, mostNext how long the address may be to which a sign-in leads, in bytes.
	sessionCookie = "berth-session"
	mostNext      = 2 << 10
)

// ErrNoUser says that the API server does not accept a token, as that of no user.
var ErrNoUser = errors.New("the API server does not accept the token")

// DefaultSessions is how many sessions there are at the same time.
const DefaultSessions = 256

// SignInDeps are the dependencies of a SignIn.
type SignInDeps struct {
	// Who asks the API server whose token it is. The error is ErrNoUser for a token that the API server does not accept.
	Who func(ctx context.Context, token string) (user string, err error)
	// Page returns the page of a user, with the rights that the token gives. It works until ctx ends.
	Page func(ctx context.Context, token, user string) (http.Handler, error)
	// Secure is true behind TLS: then cookies are for TLS only.
	Secure bool
	// Source is where the facts are from, such as the address of an API server.
	Source string
	Log    *slog.Logger
	Clock  clock.Clock
	// Sessions is how many sessions there are at the same time; 0 means DefaultSessions. One more ends a session of the user who has most,
	// so that no user signs others out by signing in often. All service accounts of a namespace, of which there can be any number, are one
	// user here.
	Sessions int
}

// SignIn serves each user a page of their own. A user signs in with a token of the cluster, in a form or, for programs, in the header
// Authorization of each request. The token stays in memory, and the browser has a random cookie in its place.
type SignIn struct {
	deps SignInDeps
	page *page
	mux  http.Handler
	// life is the context of all sessions.
	life    context.Context
	reviews *httpserver.Slots

	mu       sync.Mutex
	sessions map[string]*session
}

// session is a user who is signed in.
type session struct {
	token string
	user  string
	page  http.Handler
	end   context.CancelFunc

	begun time.Time
	used  time.Time
	// review is held by the request that asks whose token it is; reviewed is when that was known.
	review   chan struct{}
	reviewed time.Time
}

// NewSignIn returns a server whose sessions end with ctx at the latest. It returns an error when the page cannot be parsed.
func NewSignIn(ctx context.Context, deps SignInDeps) (*SignIn, error) {
	page, err := parsePage()
	if err != nil {
		return nil, err
	}
	s := &SignIn{deps: deps, page: page, life: ctx, reviews: httpserver.NewSlots(mostReviews, mostOfAddress), sessions: map[string]*session{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /sign-in", func(w http.ResponseWriter, r *http.Request) {
		s.form(w, http.StatusOK, nextOf(r.URL.Query().Get("next")), "")
	})
	mux.HandleFunc("POST /sign-in", s.signIn)
	mux.HandleFunc("POST /sign-out", s.signOut)
	addFiles(mux)
	mux.HandleFunc("/", s.serve)
	s.mux = http.NewCrossOriginProtection().Handler(mux)
	return s, nil
}

// ServeHTTP answers a request.
func (s *SignIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	s.mux.ServeHTTP(w, r)
}

func (s *SignIn) form(w http.ResponseWriter, status int, next, problem string) {
	s.page.write(w, status, "sign-in", &view{Error: problem, Next: next, Now: s.deps.Clock.Now(), Source: s.deps.Source, Title: "sign in"})
}

// nextOf returns an address of this page, or nothing for one that can lead elsewhere.
func nextOf(text string) string {
	address, err := url.Parse(text)
	if err != nil || len(text) > mostNext || address.Scheme != "" || address.Host != "" || address.User != nil || strings.Contains(text, `\`) ||
		!strings.HasPrefix(text, "/") || strings.HasPrefix(address.Path, "/sign-") || strings.HasPrefix(address.Path, "//") {
		return ""
	}
	return address.RequestURI()
}

// signIn begins a session for a browser.
func (s *SignIn) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, mostToken+1<<10)
	token := strings.TrimSpace(r.PostFormValue("token"))
	next := nextOf(r.PostFormValue("next"))
	id := rand.Text()
	switch _, err := s.open(r, id, token); {
	case errors.Is(err, ErrNoUser):
		s.form(w, http.StatusForbidden, next, "The API server does not accept this token. It may have expired, or be of another cluster.")
	case err != nil:
		s.form(w, http.StatusBadGateway, next, err.Error())
	default:
		http.SetCookie(w, s.cookie(r, id, 0))
		http.Redirect(w, r, cmp.Or(next, "/"), http.StatusSeeOther)
	}
}

// cookieName returns the name of the cookie for the port of a request: cookies do not tell ports apart, and each forwarded port of a
// machine can be the page of another cluster.
func cookieName(r *http.Request) string {
	_, port := hostPort(r.Host)
	return sessionCookie + "-" + port
}

// cookie returns the cookie of a session. It is sent when a link of another site is followed, which changes nothing: what changes something
// is a form of this page.
func (s *SignIn) cookie(r *http.Request, id string, maxAge int) *http.Cookie {
	return &http.Cookie{Name: cookieName(r), Value: id, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: s.deps.Secure, SameSite: http.SameSiteLaxMode}
}

func (s *SignIn) signOut(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(cookieName(r)); err == nil {
		s.drop(cookie.Value)
	}
	http.SetCookie(w, s.cookie(r, "", -1))
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

// serve answers with the page of the user.
func (s *SignIn) serve(w http.ResponseWriter, r *http.Request) {
	found, err := s.of(r)
	switch {
	case err == nil:
		found.page.ServeHTTP(w, r)
	case !errors.Is(err, ErrNoUser):
		http.Error(w, err.Error(), http.StatusBadGateway)
	case r.Header.Get("Authorization") != "", r.URL.Path == "/fragment", strings.HasPrefix(r.URL.Path, "/api/"):
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "sign in: this needs a token that the API server accepts", http.StatusUnauthorized)
	default:
		to := "/sign-in"
		if next := nextOf(r.URL.RequestURI()); next != "" && next != "/" && r.Method == http.MethodGet {
			to += "?next=" + url.QueryEscape(next)
		}
		http.Redirect(w, r, to, http.StatusSeeOther)
	}
}

// of returns the session of a request: that of its cookie or, with a token, that of the token.
func (s *SignIn) of(r *http.Request) (*session, error) {
	id, token := "", ""
	if header := r.Header.Get("Authorization"); header != "" {
		kind, value, _ := strings.Cut(header, " ")
		if !strings.EqualFold(kind, "Bearer") {
			return nil, ErrNoUser
		}
		token = strings.TrimSpace(value)
		id = fmt.Sprintf("token %x", sha256.Sum256([]byte(token)))
	} else if cookie, err := r.Cookie(cookieName(r)); err == nil && !strings.HasPrefix(cookie.Value, "token ") {
		id = cookie.Value
	}
	found := s.known(id)
	if found == nil && token == "" {
		return nil, ErrNoUser
	}
	if found == nil {
		return s.open(r, id, token)
	}
	if err := s.still(r.Context(), id, found); err != nil {
		return nil, err
	}
	return found, nil
}

// known returns the session with an ID, or nil. It ends those whose time is over.
func (s *SignIn) known(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.deps.Clock.Now()
	for one, old := range s.sessions {
		if now.Sub(old.used) > sessionIdle || now.Sub(old.begun) > sessionLife {
			s.remove(one)
		}
	}
	found := s.sessions[id]
	if found != nil {
		found.used = now
	}
	return found
}

// remove ends a session. The mutex is held.
func (s *SignIn) remove(id string) {
	if old := s.sessions[id]; old != nil {
		old.end()
		delete(s.sessions, id)
	}
}

func (s *SignIn) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(id)
}

// still returns ErrNoUser, and ends the session, when its token is not accepted any more, or is another user's.
func (s *SignIn) still(ctx context.Context, id string, found *session) error {
	select {
	case found.review <- struct{}{}:
		defer func() { <-found.review }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.deps.Clock.Since(found.reviewed) < reviewInterval {
		return nil
	}
	user, err := s.deps.Who(ctx, found.token)
	if err == nil && user != found.user {
		err = ErrNoUser
	}
	if errors.Is(err, ErrNoUser) {
		s.drop(id)
		return ErrNoUser
	}
	if err != nil {
		return fmt.Errorf("ask the API server whose token it is: %w", err)
	}
	found.reviewed = s.deps.Clock.Now()
	return nil
}

// open begins a session.
func (s *SignIn) open(r *http.Request, id, token string) (*session, error) {
	if token == "" || len(token) > mostToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, ErrNoUser
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewWait)
	defer cancel()
	var user string
	err := s.reviews.Do(ctx, httpserver.Address(r), func(ctx context.Context) (err error) {
		user, err = s.deps.Who(ctx, token)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, errors.New("the API server has not said in time whose token it is, or too many sign in at once: try again")
	}
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(s.life)
	page, err := s.deps.Page(life, token, user)
	if err != nil {
		end()
		return nil, err
	}
	now := s.deps.Clock.Now()
	made := &session{token: token, user: user, page: page, end: end, begun: now, used: now, review: make(chan struct{}, 1), reviewed: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.sessions[id]; old != nil {
		end() // Another request with the same token was first.
		return old, nil
	}
	s.makeRoom(user)
	s.sessions[id] = made
	s.deps.Log.Info("a user has signed in", "user", user)
	return made, nil
}

// makeRoom ends sessions until one more of a user has a place. The mutex is held.
func (s *SignIn) makeRoom(user string) {
	own := func(one *session) bool { return one.user == user }
	for s.count(own) >= mostOfUser {
		s.remove(s.oldest(own))
	}
	for len(s.sessions) >= cmp.Or(s.deps.Sessions, DefaultSessions) {
		of, most := map[string]int{}, 0
		for _, one := range s.sessions {
			of[ownerOf(one.user)]++
			most = max(most, of[ownerOf(one.user)])
		}
		s.remove(s.oldest(func(one *session) bool { return of[ownerOf(one.user)] == most }))
	}
}

// ownerOf returns whose a user is: who may make service accounts in a namespace can make any number of them.
func ownerOf(user string) string {
	if rest, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		namespace, _, _ := strings.Cut(rest, ":")
		return "system:serviceaccount:" + namespace
	}
	return user
}

// count returns how many sessions are of a kind. The mutex is held.
func (s *SignIn) count(of func(*session) bool) (n int) {
	for _, one := range s.sessions {
		if of(one) {
			n++
		}
	}
	return n
}

// oldest returns the session of a kind that was not used for longest. The mutex is held.
func (s *SignIn) oldest(of func(*session) bool) (oldest string) {
	for id, one := range s.sessions {
		if of(one) && (oldest == "" || one.used.Before(s.sessions[oldest].used)) {
			oldest = id
		}
	}
	return oldest
}
