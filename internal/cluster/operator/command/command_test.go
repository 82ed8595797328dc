package command

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

// TestNamespace: the flag, then the environment, then the service account; without all of them the error says what to do.
func TestNamespace(t *testing.T) {
	file := func(text string, err error) func(string) ([]byte, error) {
		return func(path string) ([]byte, error) {
			if path != "/var/run/secrets/kubernetes.io/serviceaccount/namespace" {
				t.Errorf("it read %s", path)
			}
			return []byte(text), err
		}
	}
	tests := map[string]struct {
		flag        string
		environment string
		read        func(string) ([]byte, error)
		want        string
		wantErr     string
	}{
		"the flag":          {"a", "b", file("c\n", nil), "a", ""},
		"the environment":   {"", "b", file("c\n", nil), "b", ""},
		"a service account": {"", "", file("c\n", nil), "c", ""},
		"none":              {"", "", file("", fs.ErrNotExist), "", "use --namespace NAME"},
		"an empty file":     {"", "", file("\n", nil), "", "use --namespace NAME"},
		"no right to read":  {"", "", file("", errors.New("permission denied")), "", "permission denied"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := namespaceOf(tc.flag, tc.environment, tc.read)
			if got != tc.want || (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("namespace %q, %v; want %q, %q", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

// TestIdentityOf: a pod keeps its name over a restart of its container; processes of one host differ.
func TestIdentityOf(t *testing.T) {
	name := func(kubeconfig string) string {
		t.Helper()
		identity, err := identityOf(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		return identity
	}
	if first, again := name(""), name(""); first != again || first == "" {
		t.Errorf("a pod is %q, and then %q", first, again)
	}
	if one, other := name("FILE"), name("FILE"); one == other {
		t.Errorf("two processes of one host are %q", one)
	}
}
