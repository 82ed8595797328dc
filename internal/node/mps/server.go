package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/httpserver"
)

// The paths of version 1.
const (
	wantedURL = "/v1/wanted"
	statusURL = "/v1/status"
	watchURL  = "/v1/watch"
)

// Report holds the statuses of all daemons.
type Report struct {
	// Generation is the generation of the wanted set that the statuses refer to, or NoGeneration.
	Generation int64 `json:"generation"`
	// GPUs are the daemons, sorted by UUID.
	GPUs []Status `json:"gpus"`
}

// NoGeneration is the generation of a report that does not come from a supervisor. No set has it.
const NoGeneration int64 = -1

// request is the body of PUT wanted, accepted the response to it, refusal the body of every error. A Report is the
// response to GET status and each line of GET watch.
type (
	request struct {
		Wanted []Wanted `json:"wanted"`
	}
	accepted struct {
		Generation int64 `json:"generation"`
	}
	refusal struct {
		Error string `json:"error"`
	}
)

// serve handles requests on the socket until ctx ends and shutDown has returned.
func (s *Supervisor) serve(ctx context.Context, leave func()) error {
	listener, err := s.listen(ctx)
	if err != nil {
		leave()
		return err
	}
	server := httpserver.New(httpserver.Options{Handler: s.handler()})
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err = <-failed:
		leave()
		return fmt.Errorf("serve %s: %w", s.deps.Socket, err)
	case <-ctx.Done():
	}
	leave()
	err = server.Close()
	<-failed
	return err
}

// listen creates the socket, which only its owner may open at any time. An existing socket belongs to an ended
// supervisor, because this one holds the lock on the root.
func (s *Supervisor) listen(ctx context.Context) (net.Listener, error) {
	path := s.deps.Socket
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: the path has %d characters, and Linux takes %d; choose a shorter one",
			path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var chmod error
		err := conn.Control(func(fd uintptr) { chmod = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmod)
	}}
	return config.Listen(ctx, "unix", path)
}

func (s *Supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+wantedURL, s.putWanted)
	mux.HandleFunc("GET "+statusURL, s.getStatus)
	mux.HandleFunc("GET "+watchURL, s.getWatch)
	return mux
}

func (s *Supervisor) putWanted(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFile))
	if err != nil {
		answer(w, http.StatusBadRequest, refusal{fmt.Sprintf("read the request: %v", err)})
		return
	}
	var wanted request
	if err := decode(body, &wanted); err != nil {
		answer(w, http.StatusBadRequest,
			refusal{fmt.Sprintf("read the request: %v (if the agent is newer than this supervisor, delete the supervisor's pod so that it is updated; that ends its clients)",
				err)})
		return
	}
	set, err := checked(wanted.Wanted)
	if err != nil {
		answer(w, http.StatusBadRequest, refusal{err.Error()})
		return
	}
	generation, err := s.set(set)
	if err != nil {
		code := http.StatusInternalServerError
		if errors.Is(err, errNotServing) {
			code = http.StatusServiceUnavailable
		}
		answer(w, code, refusal{err.Error()})
		return
	}
	answer(w, http.StatusOK, accepted{generation})
}

func (s *Supervisor) getStatus(w http.ResponseWriter, _ *http.Request) {
	now, _ := s.report()
	answer(w, http.StatusOK, now)
}

// getWatch writes the report and then each newer one, one per line. Of reports that come faster than they are read it
// writes only the last.
func (s *Supervisor) getWatch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/jsonl")
	lines := httpserver.NewLines(w)
	for {
		now, changed := s.report()
		if lines.Write(now) != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has closed the connection; the error has no receiver
}
