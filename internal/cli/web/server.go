package web

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/web/board"
)

//go:embed page.html style.css script.js icon.svg
var files embed.FS

// Deps are the dependencies of a Server.
type Deps struct {
	// Read reads the cluster. It is called at most once at a time, and at most every RefreshInterval.
	Read func(context.Context) (*board.Input, error)
	// Reasons returns why pods wait that a page shows, as far as that is known, and has it found out again; wait waits for that. It is nil
	// where they are not evaluated.
	Reasons func(ctx context.Context, in *board.Input, shown []v1alpha1.BoardWaiting, wait bool) board.Reasons
	// Samples reads the measurements of a node; nil where they are not read.
	Samples func(ctx context.Context, node string) (*v1alpha1.GPUSamples, error)
	// Trace returns what berth trace prints for a GPU, or for a pod as NAMESPACE/NAME.
	Trace func(ctx context.Context, what string) (string, error)
	// User is the user who is signed in, empty where there is no signing in.
	User string
	// Access guards the pages; nil lets everybody in.
	Access *Access
	// Source is where the facts are from, such as the address of an API server.
	Source string
	Clock  clock.WithDelayedExecution
}

// Server serves the page.
type Server struct {
	deps    Deps
	cluster *cached[*board.Input]
	samples *samples
	page    *page
	mux     *http.ServeMux
}

// New returns a server. It returns an error when the page cannot be parsed.
func New(deps Deps) (*Server, error) {
	page, err := parsePage()
	if err != nil {
		return nil, err
	}
	s := &Server{deps: deps, page: page, cluster: newCached(deps.Clock, RefreshInterval, deps.Read), samples: newSamples(deps.Clock, deps.Samples), mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /{$}", s.board)
	s.mux.HandleFunc("GET /fragment", s.fragment)
	s.mux.HandleFunc("GET /api/v1/board", s.object)
	s.mux.HandleFunc("GET /gpu/{uuid}", s.traceGPU)
	s.mux.HandleFunc("GET /pod/{namespace}/{name}", s.tracePod)
	addFiles(s.mux)
	return s, nil
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	if s.deps.Access != nil && !s.deps.Access.admit(w, r) {
		return
	}
	s.mux.ServeHTTP(w, r)
}

// setHeaders sets the headers of each answer.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // With none, a form of this page would come from the origin null.
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// filterOf reads the filter from the address.
func filterOf(query url.Values) v1alpha1.BoardFilter {
	return v1alpha1.BoardFilter{Node: query.Get("node"), Model: query.Get("model"), Namespace: query.Get("namespace"), All: query.Has("all")}
}

// addressOf is the inverse of filterOf.
func addressOf(f v1alpha1.BoardFilter) url.Values {
	query := url.Values{}
	for key, value := range map[string]string{"node": f.Node, "model": f.Model, "namespace": f.Namespace} {
		if value != "" {
			query.Set(key, value)
		}
	}
	if f.All {
		query.Set("all", "")
	}
	return query
}

// Board computes the board of a part of the cluster, with the reasons why its pods wait.
func (s *Server) Board(ctx context.Context, filter v1alpha1.BoardFilter) (*v1alpha1.Board, error) {
	return s.build(ctx, filter, true)
}

// build computes a board. wait waits for the reasons why pods wait.
func (s *Server) build(ctx context.Context, filter v1alpha1.BoardFilter, wait bool) (*v1alpha1.Board, error) {
	read, err := s.cluster.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	in := *read
	in.Filter = filter
	made := board.Build(&in)
	if s.deps.Reasons != nil {
		in.Reasons = s.deps.Reasons(ctx, &in, made.Waiting, wait)
	}
	if s.deps.Samples != nil {
		s.measure(ctx, &in, made)
	}
	return board.Build(&in), nil
}

// measure adds the measurements of the nodes of a board.
func (s *Server) measure(ctx context.Context, in *board.Input, made *v1alpha1.Board) {
	in.Notes = slices.Clip(in.Notes) // Other requests have the same ones.
	var names []string
	for i := range made.Nodes {
		if made.Nodes[i].Away == "" {
			names = append(names, made.Nodes[i].Name)
		}
	}
	if len(names) > mostSampled {
		in.Notes = append(in.Notes, fmt.Sprintf("The use of memory and what is idle are read for up to %d nodes; select a node to see them", mostSampled))
		return
	}
	var notes []string
	in.Samples, notes = s.samples.of(ctx, names)
	in.Notes = append(in.Notes, notes...)
}

func (s *Server) board(w http.ResponseWriter, r *http.Request) { s.render(w, r, "page") }

func (s *Server) fragment(w http.ResponseWriter, r *http.Request) { s.render(w, r, "main") }

func (s *Server) render(w http.ResponseWriter, r *http.Request, name string) {
	made, err := s.build(r.Context(), filterOf(r.URL.Query()), false)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.write(w, http.StatusOK, name, view{Board: made, Now: s.deps.Clock.Now(), Source: s.deps.Source})
}

func (s *Server) write(w http.ResponseWriter, status int, name string, v view) {
	v.User = s.deps.User
	s.page.write(w, status, name, &v)
}

func (s *Server) fail(w http.ResponseWriter, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.write(w, http.StatusBadGateway, "failed", view{Error: err.Error(), Now: s.deps.Clock.Now(), Source: s.deps.Source})
}

// object returns the board as JSON.
func (s *Server) object(w http.ResponseWriter, r *http.Request) {
	made, err := s.build(r.Context(), filterOf(r.URL.Query()), false)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(made) // The browser has gone.
}

func (s *Server) traceGPU(w http.ResponseWriter, r *http.Request) { s.trace(w, r, r.PathValue("uuid")) }

func (s *Server) tracePod(w http.ResponseWriter, r *http.Request) {
	s.trace(w, r, r.PathValue("namespace")+"/"+r.PathValue("name"))
}

func (s *Server) trace(w http.ResponseWriter, r *http.Request, what string) {
	// The words are arguments of berth trace: none of them can be a flag.
	if strings.HasPrefix(what, "-") || strings.HasPrefix(what, "/") || len(what) > 400 || s.deps.Trace == nil {
		http.NotFound(w, r)
		return
	}
	text, err := s.deps.Trace(r.Context(), what)
	v := view{Title: what, Text: text, Now: s.deps.Clock.Now(), Source: s.deps.Source}
	if err != nil {
		v.Error = err.Error()
	}
	s.write(w, http.StatusOK, "trace", v)
}

// addFiles adds what pages link to.
func addFiles(mux *http.ServeMux) {
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, files, name)
		})
	}
}
