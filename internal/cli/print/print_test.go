package print

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

type holder struct {
	Pod string `json:"pod"`
}

type row struct {
	Node    string   `json:"node"`
	UUID    string   `json:"uuid"`
	Bytes   int64    `json:"bytes"`
	Use     *float64 `json:"use,omitempty"`
	Holders []holder `json:"holders,omitempty"`
}

type list struct {
	Kind  string `json:"kind"`
	Items []row  `json:"items"`
}

func rows() *list {
	half, most := 0.5, 0.87
	return &list{Kind: "List", Items: []row{
		{Node: "node-10", UUID: "GPU-b", Bytes: 85899345920, Use: &most, Holders: []holder{{"train"}, {"eval"}}},
		{Node: "node-9", UUID: "GPU-a\x1b[31m", Bytes: 1024},
		{Node: "node-9", UUID: "GPU-c", Bytes: 5, Use: &half},
	}}
}

// run parses flags and prints the rows, or the table or an error.
func run(offer Offer, object *list, args ...string) string {
	var flags Flags
	set := pflag.NewFlagSet("berth", pflag.ContinueOnError)
	flags.AddTo(set, offer)
	if err := set.Parse(args); err != nil {
		return "parse: " + err.Error()
	}
	if err := flags.Validate(); err != nil {
		return "error: " + err.Error()
	}
	var text strings.Builder
	items := Of(object.Items, func(r *row) string { return "gpu/" + r.UUID })
	err := flags.Print(&text, object, items, func(w io.Writer) error {
		var cells [][]string
		for _, one := range object.Items {
			cells = append(cells, []string{one.Node, one.UUID})
		}
		return flags.Table(w, []string{"NODE", "UUID"}, cells)
	})
	if err != nil {
		return text.String() + "error: " + err.Error()
	}
	return text.String()
}

func TestPrint(t *testing.T) {
	all := Offer{List: "items", Field: "uuid", Named: true, Wide: true}
	bare := Offer{}
	const formats = "table, wide, name, json, yaml, jsonpath=TEMPLATE, go-template=TEMPLATE or custom-columns=HEAD:PATH,..."
	tests := map[string]struct {
		offer Offer
		args  []string
		want  string
	}{
		"a table":             {all, nil, "NODE      UUID\nnode-10   GPU-b\nnode-9    GPU-a\\x1b[31m\nnode-9    GPU-c\n"},
		"without a header":    {all, []string{"--no-headers"}, "node-10   GPU-b\nnode-9    GPU-a\\x1b[31m\nnode-9    GPU-c\n"},
		"names":               {all, []string{"-o", "name"}, "gpu/GPU-b\ngpu/GPU-a\\x1b[31m\ngpu/GPU-c\n"},
		"columns":             {all, []string{"-o", "custom-columns=GPU:.uuid,USE:{.use},BY:.holders[*].pod,HELD:holders"}, "GPU             USE      BY           HELD\nGPU-b           0.87     train,eval   [{\"pod\":\"train\"},{\"pod\":\"eval\"}]\nGPU-a\\x1b[31m   <none>   <none>       <none>\nGPU-c           0.5      <none>       <none>\n"},
		"columns alone":       {all, []string{"-o=custom-columns=GPU:.uuid", "--no-headers", "--sort-by=uuid"}, "GPU-a\\x1b[31m\nGPU-b\nGPU-c\n"},
		"a path":              {all, []string{"-o", "jsonpath={.items[*].bytes}"}, "85899345920 1024 5\n"},
		"a bare path":         {all, []string{"-o", "jsonpath=.items[0].uuid"}, "GPU-b\n"},
		"a template":          {all, []string{"-o", `jsonpath={range .items[?(@.use)]}{.uuid}{"\t"}{.use}{"\n"}{end}`}, "GPU-b\t0.87\nGPU-c\t0.5\n"},
		"nothing there":       {all, []string{"-o", "jsonpath={.none}"}, ""},
		"a Go template":       {all, []string{"-o", `go-template={{range .items}}{{.bytes}} {{end}}`}, "85899345920 1024 5 \n"},
		"sorted by text":      {all, []string{"--sort-by", ".node", "--no-headers"}, "node-9    GPU-a\\x1b[31m\nnode-9    GPU-c\nnode-10   GPU-b\n"},
		"sorted by number":    {all, []string{"--sort-by={.bytes}", "-o", "jsonpath={.items[*].bytes}"}, "5 1024 85899345920\n"},
		"absent values last":  {all, []string{"--sort-by=.use", "-o", "jsonpath={.items[*].bytes}"}, "5 85899345920 1024\n"},
		"without rows":        {bare, []string{"-o", "jsonpath={.kind}"}, "List\n"},
		"YAML":                {Offer{NoTable: true, List: "items", Field: "uuid"}, []string{"-o", "jsonpath={.kind}"}, "List\n"},
		"no such format":      {all, []string{"-o", "xml"}, "error: -o xml: want " + formats},
		"no rows, no columns": {bare, []string{"-o", "custom-columns=A:.b"}, "error: -o custom-columns=A:.b: want table, json, yaml, jsonpath=TEMPLATE or go-template=TEMPLATE"},
		"no rows, no sorting": {bare, []string{"--sort-by=.a"}, "parse: unknown flag: --sort-by"},
		"no expression":       {all, []string{"-o", "jsonpath"}, "error: -o jsonpath: the expression is missing, for example: -o jsonpath='{.items[*].uuid}'"},
		"too much":            {all, []string{"-o", "json=.a"}, `error: -o json=.a: json takes no expression; leave out "=.a"`},
		"no such field": {all, []string{"--sort-by=.uid"},
			"error: --sort-by .uid: no row has a value there; the fields of the rows are .bytes, .holders, .node, .use, .uuid"},
		"a bracket": {all, []string{"-o", "jsonpath=ä {.items[*.uuid}"},
			"error: -o jsonpath=ä {.items[*.uuid}: the [ at character 10 is not closed; for example: -o jsonpath='{.items[*].uuid}'"},
		"a brace": {all, []string{"-o", "jsonpath={.items[*]"},
			"error: -o jsonpath={.items[*]: the { at character 1 is not closed; for example: -o jsonpath='{.items[*].uuid}'"},
		"a quote": {all, []string{"-o", `jsonpath={.kind}{"\n}`},
			`error: -o jsonpath={.kind}{"\n}: the " at character 9 is not closed; for example: -o jsonpath='{.items[*].uuid}'`},
		"a character": {all, []string{"-o", "jsonpath={.kind}{.items[0]#}"},
			"error: -o jsonpath={.kind}{.items[0]#}: {.items[0]#} at character 8: unrecognized character in action: U+0023 '#'; for example: -o jsonpath='{.items[*].uuid}'"},
		"an index": {all, []string{"-o", "custom-columns=A:.uuid,B:.items[x]"},
			"error: -o custom-columns=A:.uuid,B:.items[x]: the column B at character 9: in the path .items[x], {.items[x]} at character 1: invalid array index x; for example: -o custom-columns=UUID:.uuid"},
		"a bracket in a path": {all, []string{"--sort-by=.holders[0"}, "error: --sort-by .holders[0: the [ at character 9 is not closed; for example: --sort-by=.uuid"},
		"braces in a path":    {all, []string{"--sort-by={.a}{.b}"}, "error: --sort-by {.a}{.b}: the } at character 4 cannot be in a path; for example: --sort-by=.uuid"},
		"an empty path":       {all, []string{"-o", "custom-columns=A:"}, "error: -o custom-columns=A:: the column A at character 1: in the path , the path at character 1 is empty; for example: -o custom-columns=UUID:.uuid"},
		"a column without path": {all, []string{"-o", "custom-columns=A:.a,uuid"},
			"error: -o custom-columns=A:.a,uuid: the column uuid at character 6 has no path: want HEAD:PATH; for example: -o custom-columns=UUID:.uuid"},
		"an empty column": {all, []string{"-o", "custom-columns=A:.a,"},
			"error: -o custom-columns=A:.a,: the column at character 6 is empty; for example: -o custom-columns=UUID:.uuid"},
		"a Go template that does not end": {all, []string{"-o", "go-template={{.kind}} {{.a"},
			`error: -o go-template={{.kind}} {{.a: the {{ at character 11 is not closed; for example: -o go-template='{{range .items}}{{.uuid}}{{"\n"}}{{end}}'`},
		"a Go template without end": {bare, []string{"-o", "go-template={{range .items}}{{.uuid}}"},
			"error: -o go-template={{range .items}}{{.uuid}}: an {{end}} is missing at character 26, the end; for example: -o go-template='{{.kind}}'"},
		"a wrong Go template": {bare, []string{"-o", "go-template={{.kind}} {{nope .a}}{{.b}}"},
			`error: -o go-template={{.kind}} {{nope .a}}{{.b}}: {{nope .a}} at character 11: function "nope" not defined; for example: -o go-template='{{.kind}}'`},
		"a Go template that does not fit": {bare, []string{"-o", "go-template={{.kind.x}}"},
			`error: -o go-template={{.kind.x}}: at <.kind.x>: can't evaluate field x in type interface {}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, run(tc.offer, rows(), tc.args...)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestNoRows: without rows, sorting is no error.
func TestNoRows(t *testing.T) {
	if got := run(Offer{List: "items", Field: "uuid"}, &list{Items: []row{}}, "--sort-by=.none", "-o", "custom-columns=A:.a"); got != "A\n" {
		t.Errorf("got %q", got)
	}
}

func TestCompareText(t *testing.T) {
	ordered := []string{"", "10", "a", "a1", "a01b", "a2", "a10", "b"}
	for i := range ordered {
		for k := range ordered {
			got := compareText(ordered[i], ordered[k])
			if want := min(1, max(-1, i-k)); got != want {
				t.Errorf("%q and %q: %d, want %d", ordered[i], ordered[k], got, want)
			}
		}
	}
}

func FuzzExpressions(f *testing.F) {
	for _, text := range []string{"{.items[*].uuid}", "{range .items[?(@.use>0.5)]}{.uuid}{end}", ".items[0", `{"\n"}`, "{..bytes}", "{.items[0,1]['uuid']}", "{end}", "{range}", "a:.b,c:.d", "{{range .items}}{{.uuid}}{{end}}", "{{"} {
		f.Add(text)
	}
	object := rows()
	f.Fuzz(func(t *testing.T, text string) {
		for _, format := range []string{JSONPath, CustomColumns, GoTemplate} {
			if format == GoTemplate && strings.Contains(text, "range") {
				continue // a template may count for as long as it likes
			}
			_ = run(Offer{List: "items", Field: "uuid"}, object, "-o", format+"="+text)
		}
		_ = run(Offer{List: "items", Field: "uuid"}, object, "--sort-by="+text)
	})
}
