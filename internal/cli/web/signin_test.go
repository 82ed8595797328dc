package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
)

// signInTest is a page to which users sign in, with a fake API server.
type signInTest struct {
	*SignIn
	clock *testclock.FakeClock
	// users are the users by their tokens; err is what the API server answers instead.
	users map[string]string
	err   error
	asked int
	// alive are the contexts of the pages by user.
	alive map[string]context.Context
}

func newSignInTest(t *testing.T, secure bool) *signInTest {
	t.Helper()
	s := &signInTest{
		clock: testclock.NewFakeClock(start), alive: map[string]context.Context{},
		users: map[string]string{"token-of-ann": "ann", "token-of-ben": "ben", "second-of-ann": "ann"},
	}
	var err error
	s.SignIn, err = NewSignIn(t.Context(), SignInDeps{
		Who: func(_ context.Context, token string) (string, error) {
			s.asked++
			if s.err != nil {
				return "", s.err
			}
			if s.users[token] == "" {
				return "", ErrNoUser
			}
			return s.users[token], nil
		},
		Page: func(ctx context.Context, token, user string) (http.Handler, error) {
			if user == "pageless" {
				return nil, errors.New("no page")
			}
			s.alive[user] = ctx
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, "page %s of %s by %s", r.URL.Path, user, token)
			}), nil
		},
		Secure: secure, Source: "https://10.0.0.1:6443", Log: slog.New(slog.DiscardHandler), Clock: s.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// request is what a browser or a program sends.
type request struct {
	method string
	path   string
	token  string
	cookie string
	bearer string
	site   string
	next   string
	// port is that of the address that the browser has opened; 8088 if empty.
	port string
}

func (s *signInTest) send(q request) *httptest.ResponseRecorder {
	if q.method == "" {
		q.method = http.MethodGet
	}
	port := cmp.Or(q.port, "8088")
	r := httptest.NewRequest(q.method, "http://127.0.0.1:"+port+q.path, strings.NewReader(url.Values{"token": {q.token}, "next": {q.next}}.Encode()))
	if q.method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if q.cookie != "" {
		r.AddCookie(&http.Cookie{Name: sessionCookie + "-" + port, Value: q.cookie})
	}
	if q.bearer != "" {
		r.Header.Set("Authorization", q.bearer)
	}
	if q.site != "" {
		r.Header.Set("Sec-Fetch-Site", q.site)
	}
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, r)
	return answer
}

// signedIn returns the cookie of a user who has signed in.
func (s *signInTest) signedIn(t *testing.T, token string) string {
	t.Helper()
	answer := s.send(request{method: http.MethodPost, path: "/sign-in", token: token})
	cookies := answer.Result().Cookies()
	if answer.Code != http.StatusSeeOther || len(cookies) != 1 {
		t.Fatalf("status %d with %d cookies: %s", answer.Code, len(cookies), answer.Body)
	}
	return cookies[0].Value
}

func TestSignInRequests(t *testing.T) {
	long := strings.Repeat("x", mostToken+1)
	tests := map[string]struct {
		request
		err      error
		status   int
		location string
		body     string
	}{
		"nothing":                        {request: request{path: "/"}, status: 303, location: "/sign-in"},
		"a view":                         {request: request{path: "/?node=a"}, status: 303, location: "/sign-in?next=%2F%3Fnode%3Da"},
		"a trace":                        {request: request{path: "/gpu/GPU-1"}, status: 303, location: "/sign-in?next=%2Fgpu%2FGPU-1"},
		"a path that looks like a host":  {request: request{path: "//evil.example/x"}, status: 307, location: "/evil.example/x"},
		"the form, for a view":           {request: request{path: "/sign-in?next=%2F%3Fnode%3Da"}, status: 200, body: `name="next" value="/?node=a"`},
		"a token, for a view":            {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: "/?node=a"}, status: 303, location: "/?node=a"},
		"another token, for a view":      {request: request{method: "POST", path: "/sign-in", token: "guess", next: "/?node=a"}, status: 403, body: `name="next" value="/?node=a"`},
		"a token, for another site":      {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: "https://evil.example/"}, status: 303, location: "/"},
		"a token, for another host":      {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: "//evil.example/"}, status: 303, location: "/"},
		"a token, for a host behind \\":  {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: `/\evil.example/`}, status: 303, location: "/"},
		"a token, for a host in escapes": {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: "/%2Fevil.example/"}, status: 303, location: "/"},
		"a token, for a script":          {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: "javascript:alert(1)"}, status: 303, location: "/"},
		"a token, for the form":          {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: "/sign-in"}, status: 303, location: "/"},
		"a token, for a long address":    {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", next: "/?node=" + long[:mostNext]}, status: 303, location: "/"},
		"the object":                     {request: request{path: "/api/v1/board"}, status: 401, body: "sign in"},
		"the fragment":                   {request: request{path: "/fragment"}, status: 401, body: "sign in"},
		"the form":                       {request: request{path: "/sign-in"}, status: 200, body: `<form action="/sign-in" method="post"`},
		"health":                         {request: request{path: "/healthz"}, status: 200, body: "ok"},
		"the style":                      {request: request{path: "/style.css"}, status: 200},
		"a token":                        {request: request{method: "POST", path: "/sign-in", token: "token-of-ann"}, status: 303, location: "/"},
		"a token with a line end":        {request: request{method: "POST", path: "/sign-in", token: " token-of-ann\n"}, status: 303, location: "/"},
		"another token":                  {request: request{method: "POST", path: "/sign-in", token: "guess"}, status: 403, body: "does not accept this token"},
		"no token":                       {request: request{method: "POST", path: "/sign-in"}, status: 403, body: "does not accept this token"},
		"a token with a space":           {request: request{method: "POST", path: "/sign-in", token: "a b"}, status: 403},
		"a long token":                   {request: request{method: "POST", path: "/sign-in", token: long}, status: 403},
		"a token in the address":         {request: request{method: "POST", path: "/sign-in?token=token-of-ann"}, status: 403},
		"a token from another site":      {request: request{method: "POST", path: "/sign-in", token: "token-of-ann", site: "cross-site"}, status: 403},
		"an API server without answer":   {request: request{method: "POST", path: "/sign-in", token: "token-of-ann"}, err: errors.New("connection refused"), status: 502, body: "connection refused"},
		"an unknown cookie":              {request: request{path: "/", cookie: "guess"}, status: 303, location: "/sign-in"},
		"an empty cookie":                {request: request{path: "/", cookie: " "}, status: 303, location: "/sign-in"},
		"a bearer":                       {request: request{path: "/api/v1/board", bearer: "Bearer token-of-ben"}, status: 200, body: "page /api/v1/board of ben by token-of-ben"},
		"a bearer in lower case":         {request: request{path: "/", bearer: "bearer token-of-ben"}, status: 200, body: "page / of ben"},
		"another bearer":                 {request: request{path: "/", bearer: "Bearer guess"}, status: 401},
		"a bearer without a token":       {request: request{path: "/", bearer: "Bearer "}, status: 401},
		"a password":                     {request: request{path: "/", bearer: "Basic token-of-ben"}, status: 401},
		"a bearer, and the server fails": {request: request{path: "/", bearer: "Bearer token-of-ben"}, err: errors.New("connection refused"), status: 502, body: "connection refused"},
		"signing out without a session":  {request: request{method: "POST", path: "/sign-out"}, status: 303, location: "/sign-in"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSignInTest(t, false)
			s.err = tc.err
			answer := s.send(tc.request)
			if answer.Code != tc.status || answer.Header().Get("Location") != tc.location || !strings.Contains(answer.Body.String(), tc.body) {
				t.Errorf("got status %d, Location %q and\n%s\nwant %d, %q and %q", answer.Code, answer.Header().Get("Location"), answer.Body, tc.status, tc.location, tc.body)
			}
			if strings.Contains(answer.Body.String(), "token-of-ann") || answer.Header().Get("Content-Security-Policy") == "" {
				t.Errorf("the answer has the token, or no policy: %v\n%s", answer.Header(), answer.Body)
			}
		})
	}
}

// TestSession follows sessions from their begin to their end.
func TestSession(t *testing.T) {
	s := newSignInTest(t, true)
	step := func(what string, q request, want int, body string) {
		t.Helper()
		if answer := s.send(q); answer.Code != want || !strings.Contains(answer.Body.String(), body) {
			t.Errorf("%s: status %d, want %d with %q: %s", what, answer.Code, want, body, answer.Body)
		}
	}
	ended := func(what, user string, want bool) {
		t.Helper()
		if got := s.alive[user].Err() != nil; got != want {
			t.Errorf("%s: the page of %s has ended: %v", what, user, got)
		}
	}
	answer := s.send(request{method: http.MethodPost, path: "/sign-in", token: "token-of-ann"})
	if cookie := answer.Header().Get("Set-Cookie"); !strings.Contains(cookie, "HttpOnly; Secure; SameSite=Lax") || len(answer.Result().Cookies()[0].Value) < 26 {
		t.Errorf("the cookie is %q", cookie)
	}
	ann := answer.Result().Cookies()[0].Value
	ben := s.signedIn(t, "token-of-ben")
	step("ann", request{path: "/", cookie: ann}, 200, "page / of ann by token-of-ann")
	step("ben", request{path: "/gpu/GPU-1", cookie: ben}, 200, "page /gpu/GPU-1 of ben by token-of-ben")
	asked := s.asked
	step("within the interval nothing is asked", request{path: "/", cookie: ann}, 200, "ann")
	s.clock.Step(reviewInterval)
	step("after it, the API server is asked", request{path: "/", cookie: ann}, 200, "ann")
	if s.asked != asked+1 {
		t.Errorf("the API server was asked %d times", s.asked-asked)
	}
	s.err = errors.New("connection refused")
	s.clock.Step(reviewInterval)
	step("it does not answer", request{path: "/", cookie: ann}, 502, "connection refused")
	s.err = nil
	step("it answers again", request{path: "/", cookie: ann}, 200, "ann")

	delete(s.users, "token-of-ben")
	s.clock.Step(reviewInterval)
	step("the token of ben is revoked", request{path: "/", cookie: ben}, 303, "")
	ended("a revoked token", "ben", true)
	step("and stays so", request{path: "/", cookie: ben}, 303, "")

	s.users["token-of-ann"] = "eve"
	s.clock.Step(reviewInterval)
	step("the token is another user's", request{path: "/", cookie: ann}, 303, "")
	ended("another user", "ann", true)

	s.users["token-of-ann"] = "ann"
	ann = s.signedIn(t, "token-of-ann")
	step("signing out from another site", request{method: "POST", path: "/sign-out", cookie: ann, site: "cross-site"}, 403, "")
	step("which had no effect", request{path: "/", cookie: ann}, 200, "ann")
	step("signing out", request{method: "POST", path: "/sign-out", cookie: ann}, 303, "")
	ended("signing out", "ann", true)
	step("which had one", request{path: "/", cookie: ann}, 303, "")

	ann = s.signedIn(t, "second-of-ann")
	s.clock.Step(sessionIdle)
	step("an hour later", request{path: "/", cookie: ann}, 200, "ann")
	s.clock.Step(sessionIdle + time.Second)
	step("an hour without a request", request{path: "/", cookie: ann}, 303, "")
	ended("no request", "ann", true)
	ann = s.signedIn(t, "token-of-ann")
	for range 12 {
		step("used all day", request{path: "/", cookie: ann}, 200, "ann")
		s.clock.Step(sessionIdle)
	}
	step("at the end of the day", request{path: "/", cookie: ann}, 200, "ann")
	s.clock.Step(time.Second)
	step("after it", request{path: "/", cookie: ann}, 303, "")

	if answer := s.send(request{method: http.MethodPost, path: "/sign-in", token: "token-of-ann", port: "8089"}); answer.Result().Cookies()[0].Name != "berth-session-8089" {
		t.Errorf("the cookie of another port is %q", answer.Header().Get("Set-Cookie"))
	}

	s.users["token-of-pageless"] = "pageless"
	step("a user without a page", request{method: "POST", path: "/sign-in", token: "token-of-pageless"}, 502, "no page")
}

// TestSessionsOfTokens: a program that sends its token has one session, which no cookie leads to.
func TestSessionsOfTokens(t *testing.T) {
	s := newSignInTest(t, false)
	for range 3 {
		s.send(request{path: "/", bearer: "Bearer token-of-ann"})
	}
	if len(s.sessions) != 1 || s.asked != 1 {
		t.Errorf("there are %d sessions after %d questions", len(s.sessions), s.asked)
	}
	for id := range s.sessions {
		if answer := s.send(request{path: "/", cookie: strings.ReplaceAll(id, " ", "%20")}); answer.Code != http.StatusSeeOther {
			t.Errorf("a cookie leads to the session of a token: %d %s", answer.Code, answer.Body)
		}
		if answer := s.send(request{path: "/", cookie: id}); answer.Code != http.StatusSeeOther {
			t.Errorf("a cookie leads to the session of a token: %d %s", answer.Code, answer.Body)
		}
	}
}

// TestMostSessions: one more user ends the session that was not used for longest.
func TestMostSessions(t *testing.T) {
	s := newSignInTest(t, false)
	first := s.signedIn(t, "token-of-ann")
	s.clock.Step(time.Second)
	second := s.signedIn(t, "token-of-ben")
	for i := range DefaultSessions - 2 {
		token := fmt.Sprint("token-", i)
		s.users[token] = token
		s.clock.Step(time.Second)
		s.signedIn(t, token)
	}
	s.send(request{path: "/", cookie: first})
	s.clock.Step(time.Second)
	s.signedIn(t, "second-of-ann")
	if len(s.sessions) != DefaultSessions {
		t.Errorf("there are %d sessions", len(s.sessions))
	}
	for cookie, want := range map[string]int{first: http.StatusOK, second: http.StatusSeeOther} {
		if answer := s.send(request{path: "/", cookie: cookie}); answer.Code != want {
			t.Errorf("status %d, want %d", answer.Code, want)
		}
	}
}

// TestMostSessionsOfAUser: who signs in often, in the form or with many tokens, ends only sessions of their own.
func TestMostSessionsOfAUser(t *testing.T) {
	s := newSignInTest(t, false)
	other := s.signedIn(t, "token-of-ben")
	first := s.signedIn(t, "token-of-ann")
	var last string
	for i := range 2 * DefaultSessions {
		s.clock.Step(time.Second)
		last = s.signedIn(t, "second-of-ann")
		token := fmt.Sprint("ann-", i)
		s.users[token] = "ann"
		s.clock.Step(time.Second)
		if answer := s.send(request{path: "/", bearer: "Bearer " + token}); answer.Code != http.StatusOK {
			t.Fatalf("status %d", answer.Code)
		}
	}
	if len(s.sessions) != mostOfUser+1 {
		t.Errorf("there are %d sessions, want %d", len(s.sessions), mostOfUser+1)
	}
	for cookie, want := range map[string]int{other: http.StatusOK, last: http.StatusOK, first: http.StatusSeeOther} {
		if answer := s.send(request{path: "/", cookie: cookie}); answer.Code != want {
			t.Errorf("status %d, want %d", answer.Code, want)
		}
	}
}

// TestSessionsOfATenant: who has many accounts signs nobody else out with them.
func TestSessionsOfATenant(t *testing.T) {
	s := newSignInTest(t, false)
	s.deps.Sessions = 64
	var others []string
	for i := range 40 {
		token := fmt.Sprint("token-", i)
		s.users[token] = fmt.Sprint("user-", i)
		others = append(others, s.signedIn(t, token))
		s.clock.Step(time.Second)
	}
	for i := range 200 {
		token := fmt.Sprint("of-tenant-", i)
		s.users[token] = fmt.Sprintf("system:serviceaccount:tenant:account-%d", i%25)
		s.clock.Step(time.Second)
		s.signedIn(t, token)
	}
	if len(s.sessions) != 64 {
		t.Errorf("there are %d sessions", len(s.sessions))
	}
	for i, cookie := range others {
		if answer := s.send(request{path: "/", cookie: cookie}); answer.Code != http.StatusOK {
			t.Fatalf("user %d was signed out", i)
		}
	}
}

// TestManySignIns: tokens about which the API server does not answer keep no user of another address from signing in, and those of the same
// address for a bounded time.
func TestManySignIns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewSignIn(t.Context(), SignInDeps{
			Who: func(ctx context.Context, token string) (string, error) {
				if strings.HasPrefix(token, "junk") {
					<-ctx.Done()
					return "", ctx.Err()
				}
				return "ann", nil
			},
			Page: func(context.Context, string, string) (http.Handler, error) { return http.NotFoundHandler(), nil },
			Log:  slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
		})
		if err != nil {
			t.Fatal(err)
		}
		send := func(address, token string) (status int, took time.Duration) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:8088/sign-in", strings.NewReader(url.Values{"token": {token}}.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.RemoteAddr = address
			began, answer := time.Now(), httptest.NewRecorder()
			s.ServeHTTP(answer, r)
			return answer.Code, time.Since(began)
		}
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() { send("192.0.2.1:1", fmt.Sprint("junk", i)) })
		}
		synctest.Wait()
		if status, took := send("192.0.2.2:1", "token"); status != http.StatusSeeOther || took != 0 {
			t.Errorf("another address: status %d after %v", status, took)
		}
		if status, took := send("192.0.2.1:2", "token"); took > reviewWait {
			t.Errorf("the same address: status %d after %v", status, took)
		}
		all.Wait()
	})
}

// TestSignedInPage: a page says who is signed in, and a name is no markup.
func TestSignedInPage(t *testing.T) {
	s := newTestServer(t, cluster(1), func(d *Deps) { d.User = "<b>ann" })
	for _, path := range []string{"/", "/gpu/GPU-1"} {
		if body := s.get(path).Body.String(); !strings.Contains(body, "signed in as &lt;b&gt;ann") || !strings.Contains(body, `action="/sign-out" method="post"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if body := newTestServer(t, cluster(1), nil).get("/").Body.String(); strings.Contains(body, "sign-out") {
		t.Error("a page without signing in has a form to sign out")
	}
}
