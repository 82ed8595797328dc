package connect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/berth-gpu/berth/internal/cli/usage"
)

const twoClusters = `apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: one, cluster: {server: "https://one:6443"}}
- {name: two, cluster: {server: "https://two:6443"}}
contexts:
- {name: one, context: {cluster: one, user: ann, namespace: ml}}
- {name: two, context: {cluster: two, user: ben}}
users:
- {name: ann, user: {token: of-ann}}
- {name: ben, user: {token: of-ben}}
`

// connection is what a test looks at.
type connection struct {
	Host       string
	Token      string
	As         string
	UID        string
	CA         string
	Cert       string
	Key        string
	ServerName string
	Namespace  string
	Groups     []string
	Named      []string
	Insecure   bool
	Timeout    time.Duration
	Err        string
}

func parse(t *testing.T, args []string) (*Flags, error) {
	t.Helper()
	flags, set := &Flags{}, pflag.NewFlagSet("berth", pflag.ContinueOnError)
	flags.AddTo(set)
	flags.AddNamespace(set, "the namespace")
	return flags, set.Parse(args)
}

func TestConfig(t *testing.T) {
	tests := map[string]struct {
		args []string
		none bool // without a kubeconfig
		want connection
	}{
		"the current context": {want: connection{Host: "https://one:6443", Token: "of-ann", Namespace: "ml"}},
		"a context":           {args: []string{"--context", "two"}, want: connection{Host: "https://two:6443", Token: "of-ben", Namespace: "default", Named: []string{"--context two"}}},
		"a cluster and a user": {args: []string{"--cluster", "two", "--user=ben"},
			want: connection{Host: "https://two:6443", Token: "of-ben", Namespace: "ml", Named: []string{"--cluster two", "--user ben"}}},
		"a server and a token": {args: []string{"-s", "https://three", "--token", "secret"}, none: true,
			want: connection{Host: "https://three", Token: "secret", Namespace: "default", Named: []string{"--server https://three", "--token"}}},
		"another user": {args: []string{"--as", "eve", "--as-uid", "7", "--as-group", "a", "--as-group", "b"},
			want: connection{Host: "https://one:6443", Token: "of-ann", As: "eve", UID: "7", Groups: []string{"a", "b"}, Namespace: "ml",
				Named: []string{"--as eve", "--as-group a,b", "--as-uid 7"}}},
		"TLS": {args: []string{"--insecure-skip-tls-verify", "--tls-server-name", "name"},
			want: connection{Host: "https://one:6443", Token: "of-ann", Insecure: true, ServerName: "name", Namespace: "ml",
				Named: []string{"--insecure-skip-tls-verify", "--tls-server-name name"}}},
		"a timeout names no server": {args: []string{"--request-timeout", "30s"}, want: connection{Host: "https://one:6443", Token: "of-ann", Timeout: 30 * time.Second, Namespace: "ml"}},
		"a timeout in seconds":      {args: []string{"--request-timeout", "3"}, want: connection{Host: "https://one:6443", Token: "of-ann", Timeout: 3 * time.Second, Namespace: "ml"}},
		"no timeout":                {args: []string{"--request-timeout", "0"}, want: connection{Host: "https://one:6443", Token: "of-ann", Timeout: -1, Namespace: "ml"}},
		"a namespace":               {args: []string{"-n", "ns/team"}, want: connection{Host: "https://one:6443", Token: "of-ann", Namespace: "team"}},
		"nothing":                   {none: true, want: connection{Namespace: "default", Err: errNone.Error()}},
		"no such context": {args: []string{"--context", "tow"},
			want: connection{Namespace: "default", Named: []string{"--context tow"}, Err: `context "tow" does not exist`}},
		"no such file": {args: []string{"--kubeconfig", "/nowhere"},
			want: connection{Namespace: "default", Named: []string{"--kubeconfig /nowhere"}, Err: "stat /nowhere: no such file or directory"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config")
			if !tc.none {
				if err := os.WriteFile(file, []byte(twoClusters), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("KUBECONFIG", file)
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			flags, err := parse(t, tc.args)
			if err != nil {
				t.Fatal(err)
			}
			got := connection{Named: flags.Named(), Namespace: flags.Namespace()}
			config, err := flags.Config()
			if err != nil {
				got.Err = err.Error()
			} else {
				got.Host, got.Token, got.Groups = config.Host, config.BearerToken, config.Impersonate.Groups
				got.As, got.UID, got.Insecure = config.Impersonate.UserName, config.Impersonate.UID, config.Insecure
				got.ServerName, got.Timeout = config.ServerName, config.Timeout
				switch got.Timeout {
				case DefaultTimeout:
					got.Timeout = 0
				case 0:
					got.Timeout = -1
				}
			}
			if got.Groups != nil && len(got.Groups) == 0 {
				got.Groups = nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if flags.Given() != (len(tc.want.Named) > 0) {
				t.Errorf("Given() is %v", flags.Given())
			}
		})
	}
}

// TestWatchConfig: a watch has no limit unless the user sets one.
func TestWatchConfig(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want time.Duration
	}{
		{[]string{"-s", "https://10.0.0.1:6443"}, 0},
		{[]string{"-s", "https://10.0.0.1:6443", "--request-timeout", "3s"}, 3 * time.Second},
	} {
		flags, err := parse(t, tc.args)
		if err != nil {
			t.Fatal(err)
		}
		if config, err := flags.WatchConfig(); err != nil || config.Timeout != tc.want {
			t.Errorf("%v: %v, %v; want %v", tc.args, config.Timeout, err, tc.want)
		}
	}
}

func TestWrongTimeout(t *testing.T) {
	for _, text := range []string{"soon", "-3", "-1s", ""} {
		if _, err := parse(t, []string{"--request-timeout", text}); err == nil || !strings.Contains(err.Error(), "want a duration") {
			t.Errorf("--request-timeout %q: %v", text, err)
		}
	}
}

// TestGroup: each flag is in the group of the help, also when a command has a flag of the same name.
func TestGroup(t *testing.T) {
	flags, set := &Flags{}, pflag.NewFlagSet("berth", pflag.ContinueOnError)
	set.Bool("cluster", false, "")
	flags.AddTo(set, "cluster")
	count := 0
	set.VisitAll(func(flag *pflag.Flag) {
		if usage.GroupOf(flag) == usage.Connection {
			count++
		}
	})
	if count != 14 {
		t.Errorf("%d connection flags, want 14", count)
	}
	if err := set.Parse([]string{"--cluster"}); err != nil || flags.Given() {
		t.Errorf("--cluster of the command: %v, Given() is %v", err, flags.Given())
	}
}
