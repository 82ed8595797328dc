package term

import (
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestTable(t *testing.T) {
	var out strings.Builder
	rows := [][]string{{"a", "long cell", "x"}, {"größer", "b"}, {"\x1b[31mred", "c", "d"}}
	if err := Table(&out, []string{"ONE", "TWO", "THREE"}, rows); err != nil {
		t.Fatal(err)
	}
	want := `ONE           TWO         THREE
a             long cell   x
größer        b
\x1b[31mred   c           d
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTree(t *testing.T) {
	root := &Node{Text: "pod", Note: "spec"}
	one := root.Add("one", "")
	one.Add("leaf", "note")
	one.Add(strings.Repeat("w", maxText), "far")
	root.Add("two", "x").Add("last", "")
	var out strings.Builder
	if err := Tree(&out, []*Node{root, {Text: "other"}}); err != nil {
		t.Fatal(err)
	}
	want := `pod          spec
├─ one
│  ├─ leaf   note
│  └─ ` + strings.Repeat("w", maxText) + `   far
└─ two       x
   └─ last
other
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMatrix(t *testing.T) {
	var out strings.Builder
	if err := Matrix(&out, []string{"GPU0", "GPU1"}, [][]string{{"X", "NV12"}, {"NV12", "X"}}, []string{"NUMA"},
		[][]string{{"0"}, {"1"}}); err != nil {
		t.Fatal(err)
	}
	want := `       GPU0   GPU1   NUMA
GPU0   X      NV12   0
GPU1   NV12   X      1
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNothingReachesTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		for _, r := range Clean(text) {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
				t.Fatalf("%q leaves %q", text, r)
			}
		}
	})
}
