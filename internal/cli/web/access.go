package web

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Access lets in who knows a token, on a loopback address.
type Access struct {
	token string
	host  string
	port  string
}

// NewAccess returns the access to a listener with a new random token.
func NewAccess(listener net.Addr) (*Access, error) {
	host, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return nil, fmt.Errorf("read the address of the listener: %w", err)
	}
	return &Access{token: rand.Text(), host: host, port: port}, nil
}

// Address is what a browser opens.
func (a *Access) Address() string {
	return "http://" + net.JoinHostPort(a.host, a.port) + "/?token=" + a.token
}

// admit answers a request that may not go on. The token in an address becomes a cookie, so that it is in no further address.
func (a *Access) admit(w http.ResponseWriter, r *http.Request) bool {
	if !a.own(r.Host) {
		// A page of another site, whose name leads to this machine, must not read this one.
		http.Error(w, "the host of the address has to be 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
		return false
	}
	name := "berth-web-" + a.port // Cookies do not tell ports apart.
	if query := r.URL.Query(); query.Has("token") {
		if !a.is(query.Get("token")) {
			a.refuse(w)
			return false
		}
		http.SetCookie(w, &http.Cookie{Name: name, Value: a.token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		query.Del("token")
		to := *r.URL
		to.RawQuery = query.Encode()
		http.Redirect(w, r, to.RequestURI(), http.StatusSeeOther)
		return false
	}
	cookie, err := r.Cookie(name)
	if err != nil || !a.is(cookie.Value) {
		a.refuse(w)
		return false
	}
	return true
}

func (a *Access) is(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(a.token)) == 1
}

func (a *Access) refuse(w http.ResponseWriter) {
	http.Error(w, "open the address that berth web has printed: it has the token", http.StatusUnauthorized)
}

// own tells whether a Host header names this listener.
func (a *Access) own(host string) bool {
	name, port := hostPort(host)
	if port != a.port {
		return false
	}
	address, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && address.IsLoopback()
}

// hostPort returns the parts of a Host header. Browsers leave out the port 80.
func hostPort(header string) (host, port string) {
	host, port, err := net.SplitHostPort(header)
	if err != nil {
		return strings.Trim(header, "[]"), "80"
	}
	return host, port
}
