package term

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestLayout(t *testing.T) {
	columns := []Column{{Head: "INDEX", Right: true}, {Head: "HELD BY", Least: 9}, {Head: "POWER", Drop: 1}, {Head: "MODEL", Drop: 2}}
	rows := [][]Cell{
		{{Text: "0"}, {Text: "default/training"}, {Text: "700 W", Colour: Warn}, {Text: "NVIDIA H100"}},
		{{Text: "1"}, {Text: "-", Colour: Bad}},
	}
	tests := map[string]struct {
		out  Output
		want string
	}{
		"no limit": {Output{}, "INDEX   HELD BY            POWER   MODEL\n" +
			"    0   default/training   700 W   NVIDIA H100\n" +
			"    1   -\n"},
		"shortened": {Output{Columns: 42}, "INDEX   HELD BY        POWER   MODEL\n" +
			"    0   default/tra…   700 W   NVIDIA H100\n" +
			"    1   -\n"},
		"without a column": {Output{Columns: 32}, "INDEX   HELD BY            POWER\n" +
			"    0   default/training   700 W\n" +
			"    1   -\n"},
		"cut": {Output{Columns: 10}, "INDEX   H…\n    0   d…\n    1   -\n"},
		"colours": {Output{Colour: true}, "\x1b[1mINDEX\x1b[0m   \x1b[1mHELD BY\x1b[0m            \x1b[1mPOWER\x1b[0m   \x1b[1mMODEL\x1b[0m\n" +
			"    0   default/training   \x1b[33m700 W\x1b[0m   NVIDIA H100\n" +
			"    1   \x1b[31m-\x1b[0m\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := (&Layout{Columns: columns, Rows: rows}).Write(&out, tc.out); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBar(t *testing.T) {
	tests := map[string]struct {
		columns int
		total   int
		parts   []Part
		want    string
	}{
		"empty":                    {8, 10, nil, "░░░░░░░░"},
		"nothing at all":           {8, 0, []Part{{0, '█'}}, "░░░░░░░░"},
		"half":                     {8, 10, []Part{{5, '█'}}, "████░░░░"},
		"full":                     {8, 10, []Part{{10, '█'}}, "████████"},
		"one of many is visible":   {8, 1000, []Part{{1, '█'}}, "█░░░░░░░"},
		"nearly full is not full":  {8, 1000, []Part{{999, '█'}}, "███████░"},
		"two parts":                {8, 8, []Part{{4, '█'}, {1, '╳'}}, "████╳░░░"},
		"a small second part":      {8, 1000, []Part{{500, '█'}, {1, '╳'}}, "████╳░░░"},
		"more than the total":      {8, 10, []Part{{20, '█'}}, "████████"},
		"no space":                 {0, 10, []Part{{5, '█'}}, ""},
		"less space than parts":    {1, 3, []Part{{1, '█'}, {1, '╳'}}, "█"},
		"negative and empty parts": {4, 4, []Part{{-1, '█'}, {0, '╳'}, {2, '█'}}, "██░░"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Bar(tc.columns, tc.total, '░', tc.parts...); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSpark(t *testing.T) {
	if got, want := Spark([]float64{0, 0.5, 1, -1, 2}, 7), "  ▁▅█·█"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Spark([]float64{1, 1, 0, 0}, 3), "█▁▁"; got != want {
		t.Errorf("the last values: got %q, want %q", got, want)
	}
}

func TestOf(t *testing.T) {
	tests := map[string]struct {
		env  map[string]string
		want Output
	}{
		"piped":                 {nil, Output{}},
		"piped, with COLUMNS":   {map[string]string{"COLUMNS": "80"}, Output{Columns: 80}},
		"piped, COLUMNS is odd": {map[string]string{"COLUMNS": "many"}, Output{}},
		"piped, negative":       {map[string]string{"COLUMNS": "-3"}, Output{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if got := Of(file, func(key string) string { return tc.env[key] }); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestOfATerminal: a terminal has colours unless NO_COLOR or TERM says otherwise.
func TestOfATerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here")
	}
	defer terminal.Close()
	tests := map[string]struct {
		env  map[string]string
		want bool
	}{
		"a terminal": {map[string]string{"TERM": "xterm", "COLUMNS": "80"}, true},
		"NO_COLOR":   {map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
		"dumb":       {map[string]string{"TERM": "dumb"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Of(terminal, func(key string) string { return tc.env[key] }); got.Colour != tc.want || got.Columns != 0 {
				t.Errorf("got %+v, want colours %v and the size of the terminal, 0", got, tc.want)
			}
		})
	}
}

// TestLayoutFits: a table has no more columns than the output, whatever its cells.
func TestLayoutFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layout := &Layout{}
		for range rapid.IntRange(1, 6).Draw(t, "columns") {
			layout.Columns = append(layout.Columns, Column{Head: rapid.StringN(0, 9, -1).Draw(t, "head"), Least: rapid.IntRange(0, 9).Draw(t, "least"),
				Drop: rapid.IntRange(0, 3).Draw(t, "drop"), Right: rapid.Bool().Draw(t, "right")})
		}
		for range rapid.IntRange(0, 5).Draw(t, "rows") {
			texts := rapid.SliceOfN(rapid.String(), 0, len(layout.Columns)).Draw(t, "texts")
			layout.Rows = append(layout.Rows, Cells(texts...))
		}
		limit := rapid.IntRange(1, 60).Draw(t, "limit")
		var out strings.Builder
		if err := layout.Write(&out, Output{Columns: limit}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(out.String(), "\n"), "\n") {
			if utf8.RuneCountInString(line) > limit {
				t.Fatalf("more than %d columns: %q", limit, line)
			}
		}
	})
}
