package cdi

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

func TestParseSpec(t *testing.T) {
	for name, test := range map[string]struct{ data, want string }{
		"empty":       {"", "unexpected end of JSON input"},
		"truncated":   {`{"cdiVersion":"0.5.0","kind":"k8s.berth.dev/gpu","devices":[{"na`, "unexpected end of JSON input"},
		"not a spec":  {`{"hello":1}`, "this is not a CDI spec"},
		"wrong type":  {`{"cdiVersion":"0.5.0","kind":"a/b","devices":7}`, "cannot unmarshal"},
		"two of one":  {`{"cdiVersion":"0.5.0","kind":"a/b","devices":[{"name":"0"},{"name":"0"}]}`, `the name "0" of another`},
		"no name":     {`{"cdiVersion":"0.5.0","kind":"a/b","devices":[{}]}`, "has no name"},
		"null inside": {`{"cdiVersion":"0.5.0","kind":"a/b","devices":[{"name":"0","containerEdits":{"deviceNodes":[null],"mounts":[null],"hooks":[null]}}]}`, ""},
		"unknown":     {`{"cdiVersion":"9.9.9","kind":"a/b","fromTheFuture":[1]}`, ""},
		"too large":   {strings.Repeat(" ", maxSpecBytes) + "{}", "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseSpec([]byte(test.data))
			if text := errorText(err); (test.want == "") != (err == nil) || !strings.Contains(text, test.want) {
				t.Errorf("error is %q, want %q", text, test.want)
			}
		})
	}
}

func TestReadSpecErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, FileName)
	if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSpec(dir); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("the error does not name the file: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", file); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSpec(dir); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("a link out of the directory was followed: %v", err)
	}
}

func TestInjectedUnknown(t *testing.T) {
	spec, err := ParseSpec([]byte(`{"cdiVersion":"0.5.0","kind":"k8s.berth.dev/gpu","devices":[{"name":"0"}],"containerEdits":{"env":["A=1"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := spec.injected("0", "1"); err == nil || !strings.Contains(err.Error(), "find CDI device 1") {
		t.Errorf("error is %v", err)
	}
	if _, ok := spec.device(QualifiedName("0")); !ok {
		t.Error("a qualified name is not found")
	}
	if edits, err := spec.injected(); err != nil || len(edits.Env) != 0 {
		t.Errorf("without a requested device: %v %v", edits, err)
	}
}

func FuzzParseSpec(f *testing.F) {
	for name, common := range map[string]string{"extras-spec": "extras-common", "mig": "common", "sim-l40sx8": "sim-common"} {
		data := []byte(expand(f, readText(f, name), readText(f, common)))
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Add([]byte(`{"cdiVersion":"0.5.0","kind":"a/b","devices":[{"name":"0","containerEdits":{"deviceNodes":[null,{"major":-1}],"env":["","=","A"]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := ParseSpec(data)
		if err != nil {
			return
		}
		_ = spec.Describe()
		for _, d := range spec.Devices {
			if _, err := spec.injected(d.Name, d.Name); err != nil {
				t.Errorf("device %q of the spec is not found: %v", d.Name, err)
			}
		}
	})
}

// TestAnySnapshot checks that, for any inventory, the CDI library accepts the spec, and that it has exactly the GPUs
// with a node, by their UUID, each with that node alone.
func TestAnySnapshot(t *testing.T) {
	m := newMachine(t, 0)
	nodes := map[int]gpu.DeviceNode{}
	for i := range 6 {
		nodes[i] = m.node(fmt.Sprintf("nvidia%d", i), 195, uint32(i))
	}
	w := m.searching(func(string, search) (*specs.ContainerEdits, error) { return &specs.ContainerEdits{}, nil })
	states := []gpu.State{"", gpu.Healthy, gpu.Unhealthy, gpu.Gone}
	rapid.Check(t, func(r *rapid.T) {
		snapshot := &gpu.Snapshot{Vendors: m.snapshot.Vendors}
		want := map[string]string{}
		for i := range rapid.IntRange(0, 6).Draw(r, "gpus") {
			g := gpu.GPU{
				Vendor: gpu.NVIDIA,
				UUID:   uuid(i),
				Index:  rapid.IntRange(0, 6).Draw(r, "index"), // it may be another GPU's
				Health: gpu.Health{State: rapid.SampledFrom(states).Draw(r, "state")},
			}
			switch rapid.SampledFrom([]string{"there", "missing", "unknown", "badname"}).Draw(r, "node") {
			case "there":
				g.Nodes = []gpu.DeviceNode{nodes[i]}
				want[string(g.UUID)] = nodes[i].Path
			case "missing":
				g.Nodes = []gpu.DeviceNode{{Path: "/dev/nvidia99", HostPath: m.path("dev/nvidia99"), Major: 195, Minor: 99}}
			case "badname":
				g.UUID = gpu.UUID(rapid.SampledFrom([]string{"", "GPU-", "GPU/1", "-1", "a b"}).Draw(r, "uuid"))
				g.Nodes = []gpu.DeviceNode{nodes[i]}
			}
			snapshot.GPUs = append(snapshot.GPUs, g)
		}
		data, err := w.Render(t.Context(), snapshot, Extras{})
		if err != nil {
			if len(want) > 0 {
				r.Fatalf("render: %v", err)
			}
			return
		}
		again, _ := w.Render(t.Context(), snapshot, Extras{})
		if string(data) != string(again) {
			r.Fatal("two renderings differ")
		}
		file := filepath.Join(m.dir, FileName)
		m.check(os.MkdirAll(m.dir, 0o755))
		m.check(os.WriteFile(file, data, 0o644))
		if _, err := cdilib.ReadSpec(file, 0); err != nil {
			r.Fatalf("the CDI library refuses it: %v\n%s", err, data)
		}
		spec, err := ReadSpec(m.dir)
		if err != nil {
			r.Fatal(err)
		}
		got := map[string]string{}
		for _, d := range spec.Devices {
			if strings.HasPrefix(d.Name, "GPU-") {
				got[d.Name] = d.Nodes[0].Path
			}
			if d.Name != All && len(d.Nodes) != 1 {
				r.Fatalf("device %s has nodes %v", d.Name, d.Nodes)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			r.Fatalf("GPUs by UUID (-want +got):\n%s", diff)
		}
		all, _ := spec.device(All)
		for _, node := range want {
			if !slices.ContainsFunc(all.Nodes, func(n gpu.DeviceNode) bool { return n.Path == node }) {
				r.Fatalf("%s is not in all: %v", node, all.Nodes)
			}
		}
	})
}

func BenchmarkSyncUnchanged(b *testing.B) {
	m := newMachine(b, 8)
	w := m.writer()
	m.sync(w)
	b.ReportAllocs()
	for b.Loop() {
		if m.sync(w) {
			b.Fatal("written")
		}
	}
}

func BenchmarkFirstRender(b *testing.B) {
	m := newMachine(b, 8)
	b.ReportAllocs()
	for b.Loop() {
		m.render(m.writer())
	}
}

func BenchmarkReadSpec(b *testing.B) {
	m := newMachine(b, 8)
	m.sync(m.writer())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadSpec(m.dir); err != nil {
			b.Fatal(err)
		}
	}
}

// TestReaderKeepsMajors checks the conversion of numbers: a spec of another program may have any.
func TestReaderKeepsMajors(t *testing.T) {
	for number, want := range map[int64]int{-1: 0, 0: 1, 195: 1, 1<<20 - 1: 1, 1 << 20: 0, 1 << 40: 0} {
		data, _ := json.Marshal(specs.Spec{Version: "0.5.0", Kind: Kind, Devices: []specs.Device{{Name: "0",
			ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/x", Major: number}}}}}})
		spec, err := ParseSpec(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(spec.Devices[0].Nodes); got != want {
			t.Errorf("major %d: %d nodes, want %d", number, got, want)
		}
	}
}

// injected returns the edits of a container that requests these devices: the common edits, then the devices' own in the
// order of the request. As in a container, a path exists once and the later edit takes precedence. An error names the
// first device that the spec does not have.
func (s *Spec) injected(names ...string) (Edits, error) {
	if len(names) == 0 {
		return Edits{}, nil
	}
	all := s.Common
	for _, name := range names {
		device, ok := s.device(name)
		if !ok {
			return Edits{}, fmt.Errorf("find CDI device %s: %s has no such device", name, s.source())
		}
		all.Nodes = slices.Concat(all.Nodes, device.Nodes)
		all.Mounts = slices.Concat(all.Mounts, device.Mounts)
		all.Env = slices.Concat(all.Env, device.Env)
		all.Hooks = slices.Concat(all.Hooks, device.Hooks)
	}
	all.Nodes = lastOfEach(all.Nodes, func(n gpu.DeviceNode) string { return n.Path })
	all.Mounts = lastOfEach(all.Mounts, func(m Mount) string { return m.ContainerPath })
	all.Env = lastOfEach(all.Env, func(v string) string { name, _, _ := strings.Cut(v, "="); return name })
	return all, nil
}

// lastOfEach returns a new slice with the last of the items of each key.
func lastOfEach[T any](items []T, key func(T) string) []T {
	last := make(map[string]int, len(items))
	for i, item := range items {
		last[key(item)] = i
	}
	var kept []T
	for i, item := range items {
		if last[key(item)] == i {
			kept = append(kept, item)
		}
	}
	return kept
}
