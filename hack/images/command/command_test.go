package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/hack/images/program"
	"github.com/berth-gpu/berth/internal/core/version"
)

// TestMain makes the test binary a program of Berth where it is run under a program's name.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "berth") {
		fmt.Println(name, version.Current())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// programs returns a directory with the programs of all images.
func programs(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, p := range program.All() {
		for _, name := range p.Files {
			if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func run(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	code = Run(t.Context(), Deps{Out: &o, Err: &e}, args)
	return o.String(), e.String(), code
}

// TestMakeAndPush makes all images, and pushes them to the registry that asks for a password.
func TestMakeAndPush(t *testing.T) {
	images := filepath.Join(t.TempDir(), "images")
	out, errOut, code := run(t, "make", "--bin", programs(t), "--output", images, "--tag", "v0.1.0")
	if code != 0 {
		t.Fatalf("make: %d, %s", code, errOut)
	}
	for _, p := range program.All() {
		img, err := image.Load(filepath.Join(images, p.Name))
		if err != nil {
			t.Fatal(err)
		}
		digest, err := img.Image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if want := "berth.dev/" + p.Name + ":v0.1.0@" + digest.String() + "  "; !strings.Contains(out, want) {
			t.Errorf("make printed %q, want %q in it", out, want)
		}
		for _, file := range []string{p.Name + ".tar", p.Name + ".cdx.json"} {
			if info, err := os.Stat(filepath.Join(images, file)); err != nil || info.Size() == 0 || info.Mode().Perm() != 0o644 {
				t.Errorf("%s: %v, %v", file, info, err)
			}
		}
	}

	address := registryWithPassword(t)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("REGISTRY_AUTH_FILE", "")
	if _, errOut, code := run(t, "push", "--images", images, address); code != 2 || !strings.Contains(errOut, "401") || !strings.Contains(errOut, "docker login") {
		t.Errorf("push without credentials: %d, %q", code, errOut)
	}
	config := `{"auths":{"` + address + `":{"username":"user","password":"secret"}}}`
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut, code = run(t, "push", "--images", images, address)
	if code != 0 {
		t.Fatalf("push: %d, %s", code, errOut)
	}
	line := func(name string) string {
		return regexp.QuoteMeta(address+"/"+name) + `:v0\.1\.0@sha256:[0-9a-f]{64}\n`
	}
	want := regexp.MustCompile(`^` + line("berth") + line("berth-agent") + line("berth-operator") + line("berth-scheduler") + `$`)
	if !want.MatchString(out) {
		t.Errorf("push printed %q, want a line for each image that matches %s", out, want)
	}
}

// registryWithPassword serves as `berth-images registry` does, and returns the address.
func registryWithPassword(t *testing.T) string {
	t.Helper()
	listener, err := listenLoopback("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener, withPassword("user", "secret", newRegistry())) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v, want no error after an interrupt", err)
		}
	})
	return listener.Addr().String()
}

// TestRegistryWithoutPassword checks that the registry asks for nothing when no user is given.
func TestRegistryWithoutPassword(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, Deps{Out: io.Discard, Err: w}, []string{"registry", "--address", "127.0.0.1:0"})
	}()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(line[:n]))
	client := &http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get("http://" + address + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("GET /v2/: %s, want 200", answer.Status)
	}
	stop()
	if code := <-done; code != 0 {
		t.Errorf("exit status %d after an interrupt, want 0", code)
	}
	if _, err := net.DialTimeout("tcp", address, time.Second); err == nil {
		t.Error("the registry still listens")
	}
}

func TestWrongInput(t *testing.T) {
	empty, bin := t.TempDir(), programs(t)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":      {[]string{"mak"}, "make"},
		"no registry":          {[]string{"push"}, "want REGISTRY, got none"},
		"URL for a registry":   {[]string{"push", "https://registry.example.com"}, "is not a registry"},
		"no images":            {[]string{"push", "--images", empty, "127.0.0.1:1"}, "make images"},
		"no programs":          {[]string{"make", "--bin", empty, "--output", empty}, filepath.Join(empty, "berth")},
		"a tag that is none":   {[]string{"make", "--bin", bin, "--output", empty, "--tag", "v1+x"}, "v1+x"},
		"public address":       {[]string{"registry", "--address", "0.0.0.0:5000"}, "not a loopback address"},
		"no port":              {[]string{"registry", "--address", "127.0.0.1"}, "such as 127.0.0.1:5000"},
		"user and no password": {[]string{"registry", "--user", "x"}, "password"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := run(t, tc.args...)
			if code != 2 || out != "" || !strings.Contains(errOut, tc.want) || !strings.Contains(errOut, "error: ") {
				t.Errorf("exit status %d, %q, %q; want 2 and an error with %q", code, out, errOut, tc.want)
			}
		})
	}
}
