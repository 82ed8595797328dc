package hostruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const testPID = 77

// machine is a fixture of /proc with one kubelet, and its root directory.
type machine struct{ proc string }

// newMachine has a kubelet with these arguments, which started some time from now: files that exist are older for a positive time.
func newMachine(t *testing.T, started time.Duration, argv ...string) machine {
	t.Helper()
	m := machine{t.TempDir()}
	const uptime = 1000
	dir := filepath.Join(m.proc, strconv.Itoa(testPID))
	m.write(t, filepath.Join(m.proc, "stat"), fmt.Sprintf("cpu 1 2 3\nbtime %d\nprocesses 9\n", time.Now().Add(started).Unix()-uptime))
	m.write(t, filepath.Join(dir, "cmdline"), strings.Join(argv, "\x00")+"\x00")
	m.write(t, filepath.Join(dir, "stat"), fmt.Sprintf("%d (kubelet) S%s %d 0 0", testPID, strings.Repeat(" 0", 18), uptime*ticksPerSecond))
	if err := os.MkdirAll(filepath.Join(dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/srv", filepath.Join(dir, "cwd")); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m machine) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// inside returns the path of one of the kubelet's files.
func (m machine) inside(path string) string {
	return filepath.Join(m.proc, strconv.Itoa(testPID), "root", path)
}

func (m machine) policy() (string, error) {
	p, err := inspectKubelet(m.proc, testPID)
	if err != nil {
		return "", err
	}
	return p.topologyManagerPolicy()
}

// config is a KubeletConfiguration with these lines.
func config(lines ...string) string {
	return strings.Join(append([]string{"apiVersion: kubelet.config.k8s.io/v1beta1", "kind: KubeletConfiguration"}, lines...), "\n") + "\n"
}

func TestTopologyManagerPolicy(t *testing.T) {
	const file, dir = "/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet.conf.d"
	restricted, bestEffort := config("topologyManagerPolicy: restricted"), config("topologyManagerPolicy: best-effort")
	for name, test := range map[string]struct {
		argv []string
		// files are the kubelet's, and links point from the first to the second.
		files map[string]string
		links map[string]string
		// late starts the kubelet a minute before the files were written.
		late bool
		want string
		// wantErr is a part of the error.
		wantErr string
	}{
		"no file and no flag":        {argv: []string{"/usr/bin/kubelet", "--v=4"}, want: "none"},
		"a flag":                     {argv: []string{"kubelet", "--topology-manager-policy=single-numa-node"}, want: "single-numa-node"},
		"a flag of two arguments":    {argv: []string{"kubelet", "--topology_manager_policy", "restricted"}, want: "restricted"},
		"the last flag counts":       {argv: []string{"kubelet", "--topology-manager-policy=restricted", "--topology-manager-policy=none"}, want: "none"},
		"another flag":               {argv: []string{"kubelet", "--topology-manager-policy-options=a=b", "--topology-manager-scope=pod"}, want: "none"},
		"a file":                     {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: restricted}, want: "restricted"},
		"a file of JSON":             {argv: []string{"kubelet", "--config", file}, files: map[string]string{file: `{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","topologyManagerPolicy":"best-effort"}`}, want: "best-effort"},
		"a file without it":          {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: config("topologyManagerScope: pod")}, want: "none"},
		"a file with an empty one":   {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: config(`topologyManagerPolicy: ""`)}, want: "none"},
		"a file with null":           {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: config("topologyManagerPolicy: null")}, want: "none"},
		"another case is no field":   {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: config("topologymanagerpolicy: restricted")}, want: "none"},
		"a second document":          {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: config() + "---\n" + restricted}, want: "none"},
		"a flag before a file":       {argv: []string{"kubelet", "--config=" + file, "--topology-manager-policy=none"}, files: map[string]string{file: restricted}, want: "none"},
		"hyperkube":                  {argv: []string{"/opt/hyperkube", "kubelet", "--config=" + file}, files: map[string]string{file: restricted}, want: "restricted"},
		"a relative path":            {argv: []string{"kubelet", "--config=k/config.yaml"}, files: map[string]string{"/srv/k/config.yaml": restricted}, want: "restricted"},
		"a link in the kubelet's /":  {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{"/data/c.yaml": restricted}, links: map[string]string{file: "/data/c.yaml"}, want: "restricted"},
		"a link out of the root":     {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{"/data/c.yaml": restricted}, links: map[string]string{file: "../../../../../../../../../data/c.yaml"}, want: "restricted"},
		"drop-ins without a file":    {argv: []string{"kubelet", "--config-dir=" + dir}, files: map[string]string{dir + "/1.conf": restricted}, want: "restricted"},
		"a drop-in before the file":  {argv: []string{"kubelet", "--config=" + file, "--config-dir", dir}, files: map[string]string{file: restricted, dir + "/1.conf": bestEffort}, want: "best-effort"},
		"the last drop-in":           {argv: []string{"kubelet", "--config-dir=" + dir + "/"}, files: map[string]string{dir + "/2.conf": bestEffort, dir + "/10.conf": restricted, dir + "/30/a.conf": config("v: 1")}, want: "best-effort"},
		"a drop-in in a folder":      {argv: []string{"kubelet", "--config-dir=" + dir}, files: map[string]string{dir + "/2.conf": bestEffort, dir + "/3/a.conf": restricted}, want: "restricted"},
		"null removes it":            {argv: []string{"kubelet", "--config=" + file, "--config-dir=" + dir}, files: map[string]string{file: restricted, dir + "/1.conf": config("topologyManagerPolicy: null")}, want: "none"},
		"other files are no drop-in": {argv: []string{"kubelet", "--config=" + file, "--config-dir=" + dir}, files: map[string]string{file: restricted, dir + "/1.yaml": bestEffort, dir + "/README": "?"}, want: "restricted"},
		"a drop-in that is a link":   {argv: []string{"kubelet", "--config-dir=" + dir}, files: map[string]string{"/data/c.yaml": restricted, dir + "/0.conf": bestEffort}, links: map[string]string{dir + "/1.conf": "/data/c.yaml"}, want: "restricted"},

		"a kubelet in another program": {argv: []string{"/usr/local/bin/k3s", "server"}, wantErr: `the kubelet is part of the program "/usr/local/bin/k3s" (process 77)`},
		"no such file":                 {argv: []string{"kubelet", "--config=" + file}, wantErr: "read the kubelet's configuration: "},
		"no such directory":            {argv: []string{"kubelet", "--config-dir=" + dir}, wantErr: "read the kubelet's drop-ins: "},
		"a directory for a file":       {argv: []string{"kubelet", "--config=/etc"}, files: map[string]string{"/etc/a": ""}, wantErr: "not a regular file"},
		"a changed file":               {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: restricted}, late: true, wantErr: file + " was changed at "},
		"a changed drop-in":            {argv: []string{"kubelet", "--config-dir=" + dir}, files: map[string]string{dir + "/1.conf": restricted}, late: true, wantErr: dir + " was changed at "},
		"an unknown policy":            {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: config("topologyManagerPolicy: single-gpu")}, wantErr: `the topology manager policy "single-gpu", which this agent does not know`},
		"an empty flag":                {argv: []string{"kubelet", "--topology-manager-policy="}, wantErr: `the topology manager policy ""`},
		"a number":                     {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: config("topologyManagerPolicy: 3")}, wantErr: "topologyManagerPolicy is 3, want a string"},
		"another kind":                 {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: "apiVersion: v1\nkind: Config\n"}, wantErr: `it is of kind "Config" of "v1"`},
		"an empty file":                {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: ""}, wantErr: `it is of kind "" of ""`},
		"no YAML":                      {argv: []string{"kubelet", "--config=" + file}, files: map[string]string{file: "a: [\n"}, wantErr: file},
		"a directory that is a link":   {argv: []string{"kubelet", "--config-dir=" + dir}, files: map[string]string{"/data/1.conf": restricted}, links: map[string]string{dir: "/data"}, wantErr: dir + " is a link"},
	} {
		t.Run(name, func(t *testing.T) {
			started := time.Minute
			if test.late {
				started = -time.Minute
			}
			m := newMachine(t, started, test.argv...)
			for path, text := range test.files {
				m.write(t, m.inside(path), text)
			}
			for path, to := range test.links {
				if err := os.MkdirAll(filepath.Dir(m.inside(path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(to, m.inside(path)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := m.policy()
			if (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Fatalf("error %v, want %q", err, test.wantErr)
			}
			if got != test.want {
				t.Errorf("policy %q, want %q", got, test.want)
			}
		})
	}
}

// TestInspectRefuses: what /proc does not say is an error.
func TestInspectRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		text string
		want string
	}{
		"no arguments":   {"77/cmdline", "", "read process 77: it has no arguments"},
		"no start":       {"77/stat", "77 (kubelet) S", "read start of process 77"},
		"no boot":        {"stat", "cpu 1\n", "has no line btime"},
		"a strange boot": {"stat", "btime x\n", "read the time of the boot"},
		"long arguments": {"77/cmdline", "kubelet\x00" + strings.Repeat("x", 1<<20), "its arguments have more than 1048575 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, time.Minute, "kubelet")
			m.write(t, filepath.Join(m.proc, test.file), test.text)
			if got, err := m.policy(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
	if _, err := inspectKubelet(t.TempDir(), testPID); err == nil {
		t.Error("a process that does not exist was read")
	}
}

// TestText reads a field below a root without a process: whatever was changed, and with what could be read before an error.
func TestText(t *testing.T) {
	const field = "containerRuntimeEndpoint"
	a, b := config(field+": a"), config(field+": b")
	for name, test := range map[string]struct {
		file  string
		dir   string
		files map[string]string
		want  string
		from  string
		// wantErr is a part of the error.
		wantErr string
	}{
		"nothing":                   {},
		"a file":                    {file: "/c", files: map[string]string{"/c": a}, want: "a", from: "/c"},
		"a file without it":         {file: "/c", files: map[string]string{"/c": config()}},
		"a drop-in":                 {file: "/c", dir: "/d", files: map[string]string{"/c": a, "/d/1.conf": b, "/d/2.conf": config(), "/d/3.yaml": a}, want: "b", from: "/d/1.conf"},
		"a drop-in removes it":      {file: "/c", dir: "/d", files: map[string]string{"/c": a, "/d/1.conf": config(field + ": null")}, from: "/d/1.conf"},
		"a file that is not there":  {file: "/c", dir: "/d", files: map[string]string{"/d/1.conf": b}, wantErr: "no such file"},
		"no directory":              {file: "/c", dir: "/d", files: map[string]string{"/c": a}, want: "a", from: "/c", wantErr: "read the kubelet's drop-ins"},
		"a drop-in of another kind": {file: "/c", dir: "/d", files: map[string]string{"/c": a, "/d/1.conf": b, "/d/2.conf": "kind: Pod"}, want: "b", from: "/d/1.conf", wantErr: `/d/2.conf: it is of kind "Pod"`},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range test.files {
				machine{}.write(t, filepath.Join(root, path), text)
			}
			got, from, err := readText(root, test.file, test.dir, field)
			if got != test.want || from != test.from {
				t.Errorf("got %q from %q, want %q from %q", got, from, test.want, test.from)
			}
			if (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("error %v, want %q", err, test.wantErr)
			}
		})
	}
}

// TestTooManyDropIns bounds the directory.
func TestTooManyDropIns(t *testing.T) {
	m := newMachine(t, time.Minute, "kubelet", "--config-dir=/d")
	for i := range maxEntries {
		m.write(t, m.inside(fmt.Sprintf("/d/%d", i)), "")
	}
	if got, err := m.policy(); err == nil || !strings.Contains(err.Error(), "/d has more than 1000 entries") {
		t.Errorf("got %q, %v", got, err)
	}
}

// FuzzParsePolicy parses any text: no panic, and no policy from what is no KubeletConfiguration.
func FuzzParsePolicy(f *testing.F) {
	for _, seed := range []string{"", config(), config("topologyManagerPolicy: restricted"), "a: &a [*a]", "- 1", "kind: 3", "\x00", `{"kind":"KubeletConfiguration"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		policy, set, err := parseText([]byte(text), fieldPolicy)
		if policy != "" && (!set || err != nil || !strings.Contains(text, "KubeletConfiguration") && !strings.Contains(text, `\`)) {
			t.Errorf("%q has the policy %q, %v, %v", text, policy, set, err)
		}
	})
}

// FuzzFlag reads any command line: the value is a part of it.
func FuzzFlag(f *testing.F) {
	f.Add("--config=/a --config /b")
	f.Add("--config")
	f.Add("--topology_manager_policy = none")
	f.Add("-_config __config _-config") // an underscore in front of the name is no dash: found by this test
	f.Fuzz(func(t *testing.T, line string) {
		value, set := flag(strings.Split(line, " "), "--config")
		if !strings.Contains(line, value) || set && !strings.Contains(line, "--config") {
			t.Errorf("%q has the value %q, %v", line, value, set)
		}
	})
}
