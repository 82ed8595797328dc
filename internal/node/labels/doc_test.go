package labels

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// documented are the keys in the first column of the tables of docs/labels.md, as patterns.
func documented(t *testing.T) map[string]*regexp.Regexp {
	t.Helper()
	text, err := os.ReadFile("../../../docs/labels.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]*regexp.Regexp{}
	for row := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(row, "| `")
		if !ok {
			continue
		}
		key, _, _ := strings.Cut(rest, "`")
		if keys[key] != nil {
			t.Errorf("docs/labels.md has %s twice", key)
		}
		pattern := regexp.QuoteMeta(key)
		pattern = strings.ReplaceAll(pattern, "<model>", "[A-Za-z0-9._-]+")
		pattern = strings.ReplaceAll(pattern, "<profile>", `(\d+c\.)?\d+g\.\d+gb([.-][a-z.]+?)?`)
		keys[key] = regexp.MustCompile("^" + pattern + "$")
	}
	return keys
}

// everything has inputs that together have each label.
func everything(t *testing.T) []Input {
	partitioned := with(gpus(h100), func(s *gpu.Snapshot) {
		s.GPUs[0].MIG = gpu.MIG{Capable: true, Enabled: true, Devices: []gpu.MIGDevice{{Partition: gpu.Partition{UUID: "MIG-1", Profile: "1g.10gb+me", MemoryBytes: 10 << 30}, Attributes: gpu.MIGAttributes{Multiprocessors: 16}}}}
	})
	joined := with(gpus(h100, "A", "A"), func(s *gpu.Snapshot) {
		s.Topology.Set(0, 1, gpu.Link{Kind: gpu.LinkNVLink, Count: 1})
		s.GPUs[0].Clique = gpu.Clique{ClusterUUID: "c", ID: 1}
	})
	return []Input{
		newNode(t, "gb200x4").input(offer.Settings{}),
		newNode(t, "mixed").input(offer.Settings{}),
		{Snapshot: partitioned, MIGStrategy: offer.MIGSingle, Timestamp: time.Unix(1, 0)},
		{Snapshot: partitioned, MIGStrategy: offer.MIGMixed},
		{Snapshot: joined, Host: Host{VGPU: &VGPU{Present: true, DriverVersion: "1.2", DriverBranch: "b"}}},
	}
}

// TestDocumentation checks that docs/labels.md has each label that Build returns, and no other.
func TestDocumentation(t *testing.T) {
	keys := documented(t)
	made := map[string]bool{}
	for _, in := range everything(t) {
		for key := range build(in) {
			known := false
			for name, pattern := range keys {
				if pattern.MatchString(key) {
					known, made[name] = true, true
				}
			}
			if !known {
				t.Errorf("docs/labels.md does not have %s", key)
			}
		}
	}
	for name := range keys {
		if !made[name] {
			t.Errorf("docs/labels.md has %s, which Build never returns", name)
		}
	}
	if len(keys) < 40 {
		t.Errorf("only %d keys were read of docs/labels.md; has the form of its tables changed?", len(keys))
	}
}
