package statefile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type content struct {
	Names []string `json:"names"`
}

func fileIn(dir string) File[content] {
	return File[content]{
		Path: filepath.Join(dir, "test.json"), What: "the names", Format: "berth-test", Version: 2, Max: 4096,
		Check: func(c content) error {
			if len(c.Names) > 0 && c.Names[0] == "" {
				return errors.New("a name is empty")
			}
			return nil
		},
	}
}

var hello = content{Names: []string{"<a>", "b"}}

func TestRoundTrip(t *testing.T) {
	f := fileIn(filepath.Join(t.TempDir(), "made"))
	if _, result := f.Load(); result.State != Absent || result.Err != nil {
		t.Fatalf("before the first write: %+v", result)
	}
	if err := f.Save(hello); err != nil {
		t.Fatal(err)
	}
	got, result := f.Load()
	if diff := cmp.Diff(hello, got); diff != "" || result.State != Present || result.Lost() || result.Code() != "" {
		t.Errorf("read %+v (-want +got):\n%s", result, diff)
	}
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if err := Remove(f.Path); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(f.Path)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBootAndNodeVoidContent(t *testing.T) {
	tests := map[string]struct {
		writeBoot string
		readBoot  string
		writeNode string
		readNode  string
		want      State
	}{
		"same boot":            {writeBoot: "1", readBoot: "1", want: Present},
		"another boot":         {writeBoot: "1", readBoot: "2", want: OtherBoot},
		"no boot was written":  {readBoot: "2", want: OtherBoot},
		"outlives a boot":      {writeBoot: "1", want: Present},
		"same node":            {writeNode: "n", readNode: "n", want: Present},
		"another node":         {writeNode: "n", readNode: "m", want: OtherNode},
		"node not known yet":   {writeNode: "n", want: Present},
		"no node was written":  {readNode: "n", want: Present},
		"another boot and all": {writeBoot: "1", readBoot: "2", writeNode: "n", readNode: "m", want: OtherBoot},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := fileIn(t.TempDir())
			f.BootID, f.NodeUID = tc.writeBoot, tc.writeNode
			if err := f.Save(hello); err != nil {
				t.Fatal(err)
			}
			f.BootID, f.NodeUID = tc.readBoot, tc.readNode
			got, result := f.Load()
			if result.State != tc.want || result.Err != nil || result.NodeUID != tc.writeNode {
				t.Errorf("got %+v, want state %q of node %q without an error", result, tc.want, tc.writeNode)
			}
			if (len(got.Names) > 0) != (tc.want == Present) {
				t.Errorf("content %v with state %q", got, result.State)
			}
			if _, err := os.Stat(f.Path); err != nil {
				t.Errorf("void content was touched: %v", err)
			}
		})
	}
}

func TestDamageIsKeptAndReported(t *testing.T) {
	good := func(f File[content]) []byte {
		if err := f.Save(hello); err != nil {
			t.Fatal(err)
		}
		blob, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		return blob
	}
	tests := map[string]struct {
		spoil func([]byte) []byte
		state State
		code  string
		say   string
	}{
		"empty": {func([]byte) []byte { return nil }, Damaged, "STATE_DAMAGED", "is damaged"},
		"torn":  {func(b []byte) []byte { return b[:len(b)/2] }, Damaged, "STATE_DAMAGED", "is damaged"},
		"zeros": {func(b []byte) []byte { return make([]byte, len(b)) }, Damaged, "STATE_DAMAGED", "is damaged"},
		"a flipped bit": {func(b []byte) []byte { return bytes.Replace(b, []byte(`"b"`), []byte(`"c"`), 1) },
			Damaged, "STATE_DAMAGED", "checksum"},
		"something behind": {func(b []byte) []byte { return append(b, '{') }, Damaged, "STATE_DAMAGED", "is damaged"},
		"too large": {func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), 5000)...) }, Damaged,
			"STATE_DAMAGED", "more than 4096 bytes"},
		"no state file": {func([]byte) []byte { return []byte(`{"version":1}`) }, Damaged, "STATE_DAMAGED",
			`format is "" and not "berth-test"`},
		"no such version": {func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"version":2`),
				[]byte(`"version":0`), 1)
		}, Damaged, "STATE_DAMAGED", "version 0 does not exist"},
		"a newer version": {func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"version":2`),
				[]byte(`"version":3`), 1)
		}, Newer, "STATE_NEWER", "has version 3 and this Berth reads up to version 2"},
		"newer, other shape": {func([]byte) []byte { return []byte(`{"format":"berth-test","version":9,"shape":1}`) },
			Newer, "STATE_NEWER", "has version 9"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := fileIn(t.TempDir())
			spoiled := tc.spoil(good(f))
			if err := os.WriteFile(f.Path, spoiled, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, result := f.Read(); result.State != tc.state {
				t.Errorf("Read says %+v, want %q", result, tc.state)
			}
			if _, err := os.Stat(f.Path); err != nil {
				t.Errorf("Read touched the file: %v", err)
			}
			got, result := f.Load()
			if result.State != tc.state || result.Code() != tc.code || !result.Lost() || !strings.Contains(result.Err.Error(), tc.say) ||
				!strings.Contains(result.Err.Error(), "it was kept as "+f.Backup()) || len(got.Names) > 0 {
				t.Errorf("got %v, %+v; want state %q and %q", got, result, tc.state, tc.say)
			}
			if kept, err := os.ReadFile(f.Backup()); err != nil || !bytes.Equal(kept, spoiled) {
				t.Errorf("kept %d bytes, %v; want the %d that were there", len(kept), err, len(spoiled))
			}
			// A second damaged file replaces the first, and the message contains that.
			if err := os.WriteFile(f.Path, []byte("second"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, result := f.Load(); !strings.Contains(result.Err.Error(), "in place of an earlier one") {
				t.Errorf("the second damage says %v", result.Err)
			}
			if kept, _ := os.ReadFile(f.Backup()); string(kept) != "second" {
				t.Errorf("kept %q, want the newest", kept)
			}
			if err := f.Save(hello); err != nil {
				t.Fatal(err)
			}
			if _, result := f.Load(); result.State != Present {
				t.Errorf("after a write: %+v", result)
			}
		})
	}
}

// TestNoFile: what is no regular file is kept like a damaged one, and the next write succeeds. A link is not followed.
func TestNoFile(t *testing.T) {
	for name, put := range map[string]func(string) error{
		"a pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a socket": func(path string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) },
		"a folder": func(path string) error { return os.MkdirAll(filepath.Join(path, "with", "content"), 0o700) },
		"a loop":   func(path string) error { return os.Symlink(path, path) },
		"a link to a state file": func(path string) error {
			other := fileIn(filepath.Dir(path))
			other.Path += ".other"
			return errors.Join(other.Save(hello), os.Symlink(other.Path, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fileIn(t.TempDir())
			if err := put(f.Path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(f.Path)
			got, result := f.Load()
			if result.State != Damaged || result.Code() != "STATE_DAMAGED" || !strings.Contains(result.Err.Error(), "it is not a regular file") || len(got.Names) > 0 {
				t.Errorf("got %v, %+v", got, result)
			}
			if kept, err := os.Lstat(f.Backup()); err != nil || kept.Mode() != before.Mode() {
				t.Errorf("kept %v, %v", kept, err)
			}
			if err := f.Save(hello); err != nil {
				t.Error(err)
			}
			if got, result := f.Load(); result.State != Present || !cmp.Equal(got, hello) {
				t.Errorf("after a write: %v, %+v", got, result)
			}
		})
	}
}

// TestOpenRegular: what is no regular file does not keep a lock from being taken.
func TestOpenRegular(t *testing.T) {
	for name, put := range map[string]func(string) error{
		"nothing":  func(string) error { return nil },
		"a file":   func(path string) error { return os.WriteFile(path, []byte("7"), 0o600) },
		"a pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.MkdirAll(filepath.Join(path, "with"), 0o700) },
		"a link":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"itself":   func(path string) error { return os.Symlink(path, path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "lock")
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			file, err := OpenRegular(root, "lock")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
				t.Errorf("the lock is %v, %v", info, err)
			}
			if content, err := os.ReadFile(path); err != nil || string(content) != map[string]string{"a file": "7"}[name] {
				t.Errorf("it has %q, %v", content, err)
			}
		})
	}
}

// TestUnreadable: a file that the disk cannot read, as one in a place that is no folder, is not moved.
func TestUnreadable(t *testing.T) {
	f := fileIn(t.TempDir())
	blocked := f.Path
	f.Path = filepath.Join(blocked, "test.json")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, result := f.Load(); result.State != Unreadable || result.Code() != "STATE_UNREADABLE" || !result.Lost() {
		t.Errorf("got %+v, want it to be unreadable", result)
	}
	// An error that repeats is the same error.
	if first, second := f.Save(hello), f.Save(hello); first == nil || first.Error() != second.Error() {
		t.Errorf("errors %v and %v", first, second)
	}
}

// TestSameError: an error does not have the random name of a temporary file.
func TestSameError(t *testing.T) {
	f := fileIn(t.TempDir())
	if err := os.MkdirAll(filepath.Join(f.Path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if first, second := f.Save(hello), f.Save(hello); first == nil || first.Error() != second.Error() {
		t.Errorf("errors %v and %v", first, second)
	}
}

func TestRetry(t *testing.T) {
	var r Retry
	var got []time.Duration
	for range 8 {
		got = append(got, r.Next()/time.Second)
	}
	r.Reset()
	if want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}; !cmp.Equal(got, want) || r.Next() != time.Second {
		t.Errorf("pauses of %v seconds, want %v", got, want)
	}
}

// TestDamageThatCannotBeKept checks that the message warns that the next write destroys it.
func TestDamageThatCannotBeKept(t *testing.T) {
	f := fileIn(t.TempDir())
	if err := os.WriteFile(f.Path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(f.Backup(), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, result := f.Load(); result.State != Damaged || !strings.Contains(result.Err.Error(), "will be overwritten") {
		t.Errorf("got %+v", result)
	}
}

func TestRefusesToWriteWhatItCouldNotRead(t *testing.T) {
	f := fileIn(t.TempDir())
	if err := f.Save(hello); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]content{
		"too large": {Names: []string{strings.Repeat("x", 4096)}}, "no sense": {Names: []string{""}},
	} {
		if err := f.Save(bad); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if got, result := f.Load(); result.State != Present || !cmp.Equal(got, hello) {
		t.Errorf("got %v, %+v; want the content from before", got, result)
	}
}

// TestKillAtEachStep checks that, after a writer was killed at any step, the next reader gets the old content or the
// new one.
func TestKillAtEachStep(t *testing.T) {
	next := content{Names: []string{"next"}}
	for _, first := range []bool{true, false} {
		for _, step := range []Step{StepCreated, StepTorn, StepWritten, StepRenamed} {
			name := string(step)
			if first {
				name += ", first write"
			}
			t.Run(name, func(t *testing.T) {
				f := fileIn(t.TempDir())
				want, state := hello, Present
				if first {
					want, state = content{}, Absent
				} else if err := f.Save(hello); err != nil {
					t.Fatal(err)
				}
				if step == StepRenamed {
					want, state = next, Present
				}
				dying, reached := f, false
				dying.Fault = func(at Step) error {
					if at != step {
						return nil
					}
					reached = true
					return errors.New("killed")
				}
				if err := dying.Save(next); err == nil || !reached {
					t.Fatalf("the write was not stopped: %v", err)
				}
				got, result := f.Load()
				if result.State != state || !cmp.Equal(got, want) {
					t.Errorf("got %v, %+v; want %v, %q", got, result, want, state)
				}
				// The next writer continues, and removes old files of the killed one.
				for _, left := range leftovers(f.Path) {
					long := time.Now().Add(-time.Hour)
					if err := os.Chtimes(left, long, long); err != nil {
						t.Fatal(err)
					}
				}
				if err := f.Save(next); err != nil {
					t.Fatal(err)
				}
				if entries, _ := os.ReadDir(filepath.Dir(f.Path)); len(entries) != 1 {
					t.Errorf("left behind: %v", entries)
				}
			})
		}
	}
}

// TestRunningWriterIsLeftAlone checks that the file of a write in progress is kept, because during an upgrade another
// agent may be writing.
func TestRunningWriterIsLeftAlone(t *testing.T) {
	f := fileIn(t.TempDir())
	other := filepath.Join(filepath.Dir(f.Path), ".test.json123")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(hello); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("the other writer's file: %v", err)
	}
}

// FuzzRead checks that any content results in a state or an error, and that accepted content is written back unchanged.
func FuzzRead(f *testing.F) {
	file := fileIn(f.TempDir())
	if err := file.Save(hello); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(file.Path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"format":"berth-test","version":3}`))
	f.Add([]byte(`{"format":"berth-test","version":2,"crc32c":0,"content":null}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, blob []byte) {
		got, result := file.decode(blob)
		switch result.State {
		case Present:
			again, err := file.encode(got)
			if err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
			if back, result := file.decode(again); result.State != Present || !cmp.Equal(back, got) {
				t.Errorf("read %v, written and read again %v, %+v", got, back, result)
			}
		case Damaged, Newer:
			if result.Err == nil || len(got.Names) > 0 {
				t.Errorf("state %q with error %v and content %v", result.State, result.Err, got)
			}
		default:
			t.Errorf("state %q", result.State)
		}
	})
}
