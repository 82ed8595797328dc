package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// parseFlags returns the flags of a command line.
func parseFlags(t *testing.T, args ...string) (*sharedFlags, *cobra.Command) {
	t.Helper()
	f, cmd := &sharedFlags{}, &cobra.Command{Run: func(*cobra.Command, []string) {}}
	f.Bind(cmd)
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return f, cmd
}

// TestLoadOverrides checks that a flag that is set overrides the file, also with false, and that one that is not set
// does not.
func TestLoadOverrides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	text := "apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\nstandalone: true\ndcgmNames: true\nstateDir: /file/state\ncdiDir: /file/cdi\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, cmd := parseFlags(t, "--config", file, "--state-dir", "/flag/state", "--dcgm-names=false", "--node-name", "node-0")
	config, err := f.Load(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if config.StateDir != "/flag/state" || config.CDIDir != "/file/cdi" || config.DCGMNames || !config.Standalone || config.NodeName != "node-0" {
		t.Errorf("the configuration is %+v", config)
	}
	f, cmd = parseFlags(t, "--config", filepath.Join(t.TempDir(), "missing"))
	if _, err := f.Load(cmd); err == nil {
		t.Error("a missing file is no error")
	}
}

// TestConnect checks that a standalone agent has no client, that the error without credentials names the options, and
// that a kubeconfig file is used.
func TestConnect(t *testing.T) {
	for _, name := range []string{"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		t.Setenv(name, "")
	}
	if client, err := (&sharedFlags{}).Connect(&v1alpha1.AgentConfig{Standalone: true}); client != nil || err != nil {
		t.Errorf("standalone: %v, %v", client, err)
	}
	if _, err := (&sharedFlags{}).Connect(&v1alpha1.AgentConfig{}); err == nil || !strings.Contains(err.Error(), "--kubeconfig") || !strings.Contains(err.Error(), "--standalone") {
		t.Errorf("without credentials: %v", err)
	}
	if _, err := (&sharedFlags{}).Connect(&v1alpha1.AgentConfig{}); err != nil && strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Errorf("the error names variables that no user sets: %v", err)
	}
	if _, err := (&sharedFlags{ConfigMap: "ns/name"}).Connect(&v1alpha1.AgentConfig{Standalone: true}); err == nil || !strings.Contains(err.Error(), "--config-map ns/name needs an API server") {
		t.Errorf("a ConfigMap without an API server: %v", err)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := (&sharedFlags{Kubeconfig: missing}).Connect(&v1alpha1.AgentConfig{}); err == nil ||
		err.Error() != "find the API server: read --kubeconfig: stat "+missing+": no such file or directory (correct the path or the file)" {
		t.Errorf("a kubeconfig that does not exist: %v", err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if client, err := (&sharedFlags{Kubeconfig: file}).Connect(&v1alpha1.AgentConfig{}); client == nil || err != nil {
		t.Errorf("with a kubeconfig file: %v, %v", client, err)
	}
}

// TestLogger checks that only --verbose logs steps.
func TestLogger(t *testing.T) {
	for _, verbose := range []bool{false, true} {
		var out bytes.Buffer
		log := (&sharedFlags{Verbose: verbose}).Logger(&out)
		log.Debug("Step")
		log.Info("Started")
		if got := strings.Contains(out.String(), "Step"); got != verbose || !strings.Contains(out.String(), "Started") {
			t.Errorf("verbose %v logs %q", verbose, out.String())
		}
	}
}

// TestClientsetBurst: 64 prepares at once read their claims without waiting for the client's limit.
func TestClientsetBurst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: http://127.0.0.1:1}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, _, err := (&sharedFlags{Kubeconfig: file, MetricsAuth: AuthNone}).Clientsets(&v1alpha1.AgentConfig{})
	if err != nil {
		t.Fatal(err)
	}
	limiter := client.ResourceV1().RESTClient().GetRateLimiter()
	for i := range 64 {
		if !limiter.TryAccept() {
			t.Fatalf("the request for claim %d would wait", i)
		}
	}
}
