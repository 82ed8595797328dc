package publish

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/hack/images/sbom"
)

const user, password = "pusher", "secret"

// server is a registry that asks for a password and counts the uploads of blobs.
type server struct {
	mu      sync.Mutex
	uploads int
	tagged  []string
	handler http.Handler
	address string
	refuse  func(*http.Request) int
}

func serve(t *testing.T) *server {
	t.Helper()
	s := &server{handler: registry.New(registry.WithReferrersSupport(true), registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))}
	http := httptest.NewServer(s)
	t.Cleanup(http.Close)
	s.address = strings.TrimPrefix(http.URL, "http://")
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if gotUser, gotPassword, _ := r.BasicAuth(); gotUser != user || gotPassword != password {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if s.refuse != nil {
		if code := s.refuse(r); code != 0 {
			w.WriteHeader(code)
			return
		}
	}
	s.mu.Lock()
	if r.Method == http.MethodPatch || (r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/")) {
		s.uploads++
	}
	if manifest := strings.LastIndex(r.URL.Path, "/manifests/"); r.Method == http.MethodPut && manifest >= 0 {
		s.tagged = append(s.tagged, strings.SplitN(r.URL.Path[manifest+len("/manifests/"):], ":", 2)[0])
	}
	s.mu.Unlock()
	s.handler.ServeHTTP(w, r)
}

// logIn makes a docker configuration with the password, in the form that a pull secret has too.
func (s *server) logIn(t *testing.T) {
	t.Helper()
	config(t, `{"auths":{"`+s.address+`":{"username":"`+user+`","password":"`+password+`"}}}`)
}

func config(t *testing.T, content string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("REGISTRY_AUTH_FILE", "")
}

func anImage(t *testing.T) image.Named {
	t.Helper()
	img, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	return image.Named{Name: "berth.dev/berth-agent:v0.1.0", Image: img}
}

func publisher(t *testing.T, d Deps) *Publisher {
	t.Helper()
	p, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPush pushes an image with its bill, reads both from the registry, and pushes them a second time.
func TestPush(t *testing.T) {
	s, img, bill := serve(t), anImage(t), []byte(`{"bomFormat":"CycloneDX"}`)
	s.logIn(t)
	var sent int64
	p := publisher(t, Deps{Registry: s.address + "/team", Progress: func(n, _ int64) { sent = n }})
	got, err := p.Push(t.Context(), img, bill)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if want := s.address + "/team/berth-agent:v0.1.0@" + digest.String(); got != want {
		t.Errorf("pushed as %s, want %s", got, want)
	}
	if sent == 0 {
		t.Error("no progress was reported")
	}
	if last := s.tagged[len(s.tagged)-1]; last != "v0.1.0" || len(s.tagged) != 3 {
		t.Errorf("manifests were written as %v, want the tag after the digests of image and bill", s.tagged)
	}
	checkImage(t, s, p, digest.String())
	checkBill(t, s, p, digest.String(), bill)

	before := s.uploads
	if _, err := p.Push(t.Context(), img, bill); err != nil {
		t.Fatal(err)
	}
	if s.uploads != before || before == 0 {
		t.Errorf("a second push sent %d blobs after the first sent %d", s.uploads-before, before)
	}
}

func checkImage(t *testing.T, s *server, p *Publisher, digest string) {
	t.Helper()
	tag, err := name.NewTag(s.address + "/team/berth-agent:v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(tag, p.options(t.Context())...)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pulled.Digest(); err != nil || got.String() != digest {
		t.Errorf("pulled %s, want %s: %v", got, digest, err)
	}
	if err := validate.Image(pulled); err != nil {
		t.Error(err)
	}
}

func checkBill(t *testing.T, s *server, p *Publisher, digest string, want []byte) {
	t.Helper()
	of, err := name.NewDigest(s.address + "/team/berth-agent@" + digest)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Referrers(of, p.options(t.Context())...)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != sbom.MediaType {
		t.Fatalf("referrers of the image: %+v, want one of type %s", list.Manifests, sbom.MediaType)
	}
	artifact, err := remote.Image(of.Context().Digest(list.Manifests[0].Digest.String()), p.options(t.Context())...)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := artifact.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("the bill has %d layers: %v", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if got, err := io.ReadAll(content); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the bill is %q, want %q: %v", got, want, err)
	}
}

// TestPushFails checks the error of each refusal, and that no tag refers to an image of which a part is missing.
func TestPushFails(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		refuse func(*http.Request) int
		want   []string
	}{
		"no credentials":    {config: `{}`, want: []string{"401", "docker login ADDRESS", "DOCKER_CONFIG"}},
		"wrong credentials": {config: `{"auths":{"ADDRESS":{"username":"pusher","password":"other"}}}`, want: []string{"401", "docker login ADDRESS"}},
		"may only read": {refuse: func(r *http.Request) int {
			if r.Method == http.MethodPost {
				return http.StatusForbidden
			}
			return 0
		}, want: []string{"403", "may write there"}},
		"no such repository": {refuse: func(r *http.Request) int {
			if r.Method == http.MethodPost {
				return http.StatusNotFound
			}
			return 0
		}, want: []string{"404", "make the repository team/berth-agent first"}},
		"bill refused": {refuse: func(r *http.Request) int {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && r.ContentLength > 0 && strings.Contains(bodyOf(r), "subject") {
				return http.StatusBadRequest
			}
			return 0
		}, want: []string{"attach the bill of materials"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			s.logIn(t)
			if tc.config != "" {
				config(t, strings.ReplaceAll(tc.config, "ADDRESS", s.address))
			}
			s.refuse = tc.refuse
			_, err := publisher(t, Deps{Registry: s.address + "/team"}).Push(t.Context(), anImage(t), []byte("{}"))
			for _, want := range tc.want {
				if want = strings.ReplaceAll(want, "ADDRESS", s.address); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want an error with %q", err, want)
				}
			}
			for _, tag := range s.tagged {
				if tag == "v0.1.0" {
					t.Error("the tag was written")
				}
			}
		})
	}
}

// bodyOf returns the content of a request, which can be read again after.
func bodyOf(r *http.Request) string {
	content, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(content))
	return string(content)
}

func TestNewRefuses(t *testing.T) {
	for _, bad := range []string{"", "https://registry.example.com", "registry example.com", "berth", "team/berth", "registry.example.com/UPPER"} {
		if _, err := New(Deps{Registry: bad}); err == nil || !strings.Contains(err.Error(), "such as registry.example.com/berth") {
			t.Errorf("registry %q: %v, want an error with an example", bad, err)
		}
	}
}
