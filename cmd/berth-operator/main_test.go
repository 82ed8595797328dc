package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain makes the test binary berth-operator where the variable says so.
func TestMain(m *testing.M) {
	if os.Getenv("BERTH_OPERATOR_ARGS") != "" {
		os.Args = append([]string{"berth-operator"}, strings.Fields(os.Getenv("BERTH_OPERATOR_ARGS"))...)
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// run runs berth-operator and returns its output and exit code.
func run(t *testing.T, args string) (string, int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.CommandContext(t.Context(), self)
	program.Env = append(os.Environ(), "BERTH_OPERATOR_ARGS="+args, "POD_NAMESPACE=", "KUBERNETES_SERVICE_HOST=")
	out, err := program.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

// kubeconfig returns the path of a kubeconfig for an API server that answers all requests alike.
func kubeconfig(t *testing.T, code int, body string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s, want no write", r.Method, r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api", "/apis":
			_, _ = fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apiextensions.k8s.io","versions":[{"groupVersion":"apiextensions.k8s.io/v1","version":"v1"}]}]}`)
		case "/apis/apiextensions.k8s.io/v1":
			_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apiextensions.k8s.io/v1","resources":[{"name":"customresourcedefinitions","kind":"CustomResourceDefinition"}]}`)
		default:
			w.WriteHeader(code)
			_, _ = fmt.Fprint(w, body)
		}
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "test", "contexts": [{"name": "test", "context": {"cluster": "test"}}], "clusters": [{"name": "test", "cluster": {"server": "` + server.URL + `"}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestExitCode checks what a container of the operator ends with.
func TestExitCode(t *testing.T) {
	newer := `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"gpunodes.berth.dev","annotations":{"berth.dev/schema-version":"1000"}}}`
	forbidden := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"User \"x\" cannot get resource"}`
	tests := map[string]struct {
		args string
		code int
		want []string
	}{
		"version":                {"--version", 0, []string{"berth-operator "}},
		"an unknown flag":        {"--leader-elec", 1, []string{"berth-operator: berth-operator has no flag --leader-elec, did you mean --leader-elect?"}},
		"no namespace":           {"--kubeconfig /absent", 1, []string{"berth-operator: find the operator's namespace", "use --namespace NAME"}},
		"no kubeconfig":          {"--namespace x --kubeconfig /absent", 1, []string{"read --kubeconfig", "/absent"}},
		"not in a pod":           {"--namespace x", 1, []string{"not in a pod", "use --kubeconfig FILE"}},
		"a newer definition":     {"--namespace x --kubeconfig " + kubeconfig(t, 200, newer), 1, []string{"berth-operator: CustomResourceDefinition gpunodes.berth.dev", "version 1000", "helm rollback"}},
		"a right that is absent": {"--namespace x --kubeconfig " + kubeconfig(t, 403, forbidden), 1, []string{"read CustomResourceDefinition gpunodes.berth.dev", "fix: give the operator's service account"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, code := run(t, tc.args)
			if code != tc.code {
				t.Errorf("exit code %d, want %d:\n%s", code, tc.code, out)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("it printed %q, want %q in it", out, want)
				}
			}
		})
	}
}
