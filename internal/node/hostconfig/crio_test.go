package hostconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// host makes files below a directory, and links from the first to the second.
func host(t *testing.T, files, links map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for path := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(files[path]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, to := range links {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestReadCRIO checks which files of a directory count, and in which order.
func TestReadCRIO(t *testing.T) {
	runtime := func(name string) string { return "[crio.runtime]\ndefault_runtime = '" + name + "'\n" }
	const dir = CRIODir
	tests := map[string]struct {
		files   map[string]string
		links   map[string]string
		sources []string
		want    string
		// wantErr is a part of the error.
		wantErr string
	}{
		"the file":           {files: map[string]string{CRIOPath: runtime("a")}, sources: []string{CRIOPath}, want: "a"},
		"the directory wins": {files: map[string]string{CRIOPath: runtime("a"), dir + "/1.conf": runtime("b")}, sources: []string{CRIOPath, dir + "/1.conf"}, want: "b"},
		"a subdirectory": {files: map[string]string{dir + "/10.conf": runtime("a"), dir + "/20/x/1.conf": runtime("b"), dir + "/20.conf": "", dir + "/3": "", dir + "/empty/.keep": ""},
			sources: []string{dir + "/10.conf", dir + "/20/x/1.conf", dir + "/20.conf", dir + "/3", dir + "/empty/.keep"}, want: "b"},
		"the last in lexical order": {files: map[string]string{dir + "/a/z.conf": runtime("a"), dir + "/b.conf": runtime("b"), dir + "/a.conf": runtime("c")},
			sources: []string{dir + "/a/z.conf", dir + "/a.conf", dir + "/b.conf"}, want: "b"},
		"a link to a file": {files: map[string]string{"/srv/x": runtime("a")}, links: map[string]string{dir + "/1.conf": "/srv/x"}, sources: []string{dir + "/1.conf"}, want: "a"},
		"the directory is a link": {files: map[string]string{"/srv/d/1.conf": runtime("a")}, links: map[string]string{dir: "/srv/d"},
			sources: []string{dir + "/1.conf"}, want: "a"},
		"a link to a directory":                   {files: map[string]string{"/srv/x": runtime("a")}, links: map[string]string{dir + "/1.conf": "/srv"}, wantErr: "not a regular file"},
		"a link to itself":                        {links: map[string]string{dir + "/1.conf": "1.conf"}, wantErr: "too many"},
		"a link to nothing":                       {links: map[string]string{dir + "/1.conf": "/none"}, wantErr: "no such file"},
		"no TOML in a subdirectory":               {files: map[string]string{dir + "/d/1.conf": "a = ["}, wantErr: dir + "/d/1.conf"},
		"nothing":                                 {wantErr: "file does not exist"},
		"an empty directory":                      {files: map[string]string{"/etc/crio/x": ""}, wantErr: "file does not exist"},
		"a file in place of the directory":        {files: map[string]string{dir: ""}, wantErr: "not a directory"},
		"a directory deeper than any that counts": {files: map[string]string{dir + strings.Repeat("/d", maxDepth+1): ""}, wantErr: "more than 16 levels deep"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config, err := ReadCRIO(host(t, tc.files, tc.links), CRIOPath, dir)
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			if tc.wantErr != "" {
				return
			}
			if diff := cmp.Diff(tc.sources, config.Sources); diff != "" || config.Runtime != tc.want {
				t.Errorf("runtime %q, want %q; sources (-want +got):\n%s", config.Runtime, tc.want, diff)
			}
		})
	}
}

// TestReadCRIOBounds checks that a directory with too many entries is an error, and that no directory reads none.
func TestReadCRIOBounds(t *testing.T) {
	files := map[string]string{}
	for i := range maxFiles {
		files[fmt.Sprintf("%s/%d/x", CRIODir, i)] = ""
	}
	if _, err := ReadCRIO(host(t, files, nil), CRIOPath, CRIODir); err == nil || !strings.Contains(err.Error(), "more than 256 entries") {
		t.Errorf("error %v", err)
	}
	if _, err := ReadCRIO(host(t, map[string]string{"/x": "a = ["}, nil), CRIOPath, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
}

// TestWalk checks that nothing outside of the host's root is walked.
func TestWalk(t *testing.T) {
	outside := host(t, map[string]string{"/secret/x": ""}, nil)
	up := strings.Repeat("../", 30)
	root := host(t, map[string]string{"/d/a/x": "", "/d/b": ""}, map[string]string{"/d/c": outside, "/d/e": up + outside, "/out": outside, "/up": up + outside, "/in": "/d/a"})
	tests := map[string]struct {
		dir  string
		want []string
	}{
		"a directory":         {"/d", []string{"/d", "/d/a", "/d/a/x", "/d/b", "/d/c", "/d/e"}},
		"a link within":       {"/in", []string{"/in", "/in/x"}},
		"a link out":          {"/out", nil},
		"a relative link out": {"/up", nil},
		"a path out":          {"/../../d/a", []string{"/d/a", "/d/a/x"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			err := Walk(root, tc.dir, 100, func(path string, _ fs.DirEntry) error {
				got = append(got, path)
				return nil
			})
			if diff := cmp.Diff(tc.want, got); diff != "" || (err == nil) != (tc.want != nil) {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
