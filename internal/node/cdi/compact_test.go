package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/golden"
)

// document is a CDI spec with the bytes of each edit.
type document struct {
	Version string           `json:"cdiVersion"`
	Kind    string           `json:"kind"`
	Devices []documentDevice `json:"devices"`
	Common  documentEdits    `json:"containerEdits"`
}

type documentDevice struct {
	Name  string        `json:"name"`
	Edits documentEdits `json:"containerEdits"`
}

type documentEdits struct {
	Env         []json.RawMessage `json:"env,omitempty"`
	DeviceNodes []json.RawMessage `json:"deviceNodes,omitempty"`
	Hooks       []json.RawMessage `json:"hooks,omitempty"`
	Mounts      []json.RawMessage `json:"mounts,omitempty"`
}

// kinds are the kinds of edits in their order, by the word that compact begins their lines with.
func (e *documentEdits) kinds() (words []string, lists []*[]json.RawMessage) {
	return []string{"env", "node", "hook", "mount"}, []*[]json.RawMessage{&e.Env, &e.DeviceNodes, &e.Hooks, &e.Mounts}
}

// compact prints edits with one line for each.
func (e *documentEdits) compact(t *testing.T) string {
	t.Helper()
	var text bytes.Buffer
	words, lists := e.kinds()
	for i, word := range words {
		for _, edit := range *lists[i] {
			text.WriteString("  " + word + " ")
			if err := json.Compact(&text, edit); err != nil {
				t.Fatal(err)
			}
			text.WriteByte('\n')
		}
	}
	return text.String()
}

// compact prints a spec without its common edits. A device with the edits of an earlier one has one line.
func (d *document) compact(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "cdiVersion %s\nkind %s\n", d.Version, d.Kind)
	earlier := map[string]string{}
	for _, device := range d.Devices {
		edits := device.Edits.compact(t)
		if name, ok := earlier[edits]; ok {
			fmt.Fprintf(&text, "device %s = %s\n", device.Name, name)
			continue
		}
		earlier[edits] = device.Name
		fmt.Fprintf(&text, "device %s\n%s", device.Name, edits)
	}
	return text.String()
}

// expand is the spec that compact printed, with its common edits, as the file has it.
func expand(t testing.TB, text, common string) string {
	t.Helper()
	var d document
	edits := &d.Common
	for line := range strings.Lines(common + text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		words, lists := edits.kinds()
		switch i := slices.Index(words, word); {
		case i >= 0:
			*lists[i] = append(*lists[i], json.RawMessage(rest))
		case word == "cdiVersion":
			d.Version = rest
		case word == "kind":
			d.Kind = rest
		case word == "device":
			name, like, _ := strings.Cut(rest, " = ")
			device := documentDevice{Name: name}
			if i := slices.IndexFunc(d.Devices, func(d documentDevice) bool { return d.Name == like }); i >= 0 {
				device.Edits = d.Devices[i].Edits
			}
			d.Devices = append(d.Devices, device)
			edits = &d.Devices[len(d.Devices)-1].Edits
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	data, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data) + "\n"
}

// readText reads a golden file of testdata.
func readText(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// compareSpec compares a spec with the golden files of its devices and of its common edits, which several machines have, and checks that
// these two files have every byte of it.
func compareSpec(t *testing.T, name, common string, data []byte) {
	t.Helper()
	var d document
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		t.Fatal(err)
	}
	devices, edits := d.compact(t), d.Common.compact(t)
	golden.File(t, "testdata/"+name+".txt", devices)
	golden.File(t, "testdata/"+common+".txt", edits)
	if got := expand(t, devices, edits); got != string(data) {
		t.Errorf("the golden files expand to\n%s\nwant\n%s", got, data)
	}
}
