package hostpath

import (
	"os"
	"path/filepath"
	"testing"
)

// newHost creates a host's tree with a file, a program, and links that resolve to other files below the host's root.
func newHost(t *testing.T) (View, string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"usr/lib/real": 0o644, "usr/bin/program": 0o755} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"absolute": "/usr/lib/real", "outside": "../../../usr/bin/program", "dangling": "nowhere", "lib": "usr/lib"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	return New(root), root
}

func TestPaths(t *testing.T) {
	host, plain := New("/host"), New("")
	for name, test := range map[string]struct{ got, want string }{
		"ToHost below the root":     {host.ToHost("/host/usr/lib"), "/usr/lib"},
		"ToHost of the root":        {host.ToHost("/host"), "/"},
		"ToHost of a host's path":   {host.ToHost("/usr/lib"), "/usr/lib"},
		"ToHost of a longer name":   {host.ToHost("/hosts/file"), "/hosts/file"},
		"ToHost without a root":     {plain.ToHost("/usr/../etc"), "/etc"},
		"Local of a host's path":    {host.Local("/usr/lib"), "/host/usr/lib"},
		"Local below the root":      {host.Local("/host/usr/lib"), "/host/usr/lib"},
		"Local without a root":      {plain.Local("usr/lib"), "/usr/lib"},
		"Resolve of a missing path": {plain.Resolve("/nowhere/at/all"), "/nowhere/at/all"},
	} {
		if test.got != test.want {
			t.Errorf("%s: %q, want %q", name, test.got, test.want)
		}
	}
}

// TestLinks checks that links are followed as on the host: an absolute one begins at the host's root and none leads out
// of it.
func TestLinks(t *testing.T) {
	host, root := newHost(t)
	for link, want := range map[string]string{"/absolute": "usr/lib/real", "/outside": "usr/bin/program", "/lib/real": "usr/lib/real"} {
		if got := host.Resolve(link); got != filepath.Join(root, want) {
			t.Errorf("Resolve(%s) = %s, want %s", link, got, filepath.Join(root, want))
		}
	}
	if why := host.Missing("/absolute"); why != "" {
		t.Errorf("a link to a file is missing: %s", why)
	}
	if why := host.Missing("/dangling"); why != "no such file or directory" {
		t.Errorf("a dangling link: %q", why)
	}
}

func TestKinds(t *testing.T) {
	host, _ := newHost(t)
	for p, want := range map[string][2]bool{ // executable, directory
		"/usr/bin/program": {true, false}, "/outside": {true, false}, "/usr/lib/real": {false, false},
		"/lib": {false, true}, "/usr/bin": {false, true}, "/none": {false, false}, "": {false, false},
	} {
		if got := [2]bool{host.Executable(p), host.Directory(p)}; got != want {
			t.Errorf("%q: executable and directory are %v, want %v", p, got, want)
		}
	}
}

func TestDevice(t *testing.T) {
	host, _ := newHost(t)
	null, err := New("").Device("/dev/null")
	if err != nil || !null.Char || null.Major != 1 || null.Minor != 3 {
		t.Errorf("/dev/null is %+v, %v", null, err)
	}
	if node, err := host.Device("/usr/lib/real"); err != nil || node != (Node{}) {
		t.Errorf("a plain file is %+v, %v", node, err)
	}
	if _, err := host.Device("/dev/none"); err == nil || err.Error() != "/dev/none: no such file or directory" {
		t.Errorf("a missing node: %v", err)
	}
}
