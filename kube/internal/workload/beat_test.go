package workload

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fewLines accepts some lines and then fails, which ends the program.
type fewLines struct {
	lines []string
	most  int
}

func (f *fewLines) Write(line []byte) (int, error) {
	if len(f.lines) == f.most {
		return 0, errors.New("no more")
	}
	f.lines = append(f.lines, string(line))
	return len(line), nil
}

func TestBeat(t *testing.T) {
	dir := t.TempDir()
	// A regular file is not a device, so it is not opened.
	if err := os.WriteFile(filepath.Join(dir, "nvidia0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out := &fewLines{most: 3}
	if err := beat(dir, out); err == nil {
		t.Error("beat continued although its lines could not be written")
	}
	if want := []string{"1 \n", "2 \n", "3 \n"}; !slices.Equal(out.lines, want) {
		t.Errorf("beat printed %q, want %q", out.lines, want)
	}
}
