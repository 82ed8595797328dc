package evidence

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"sigs.k8s.io/yaml"
)

const (
	maxCDISpec  = 4 << 20
	maxCDIFiles = 256
)

// cdiSpecs reads every spec of every vendor, because the runtime resolves names from all of them.
func (c *collector) cdiSpecs() {
	found := 0
	for _, dir := range c.places.CDIDirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				c.unread(trace.CDISpec, dir, why(err))
			}
			continue
		}
		for _, entry := range entries[:min(len(entries), maxCDIFiles)] {
			if extension := filepath.Ext(entry.Name()); extension == ".json" || extension == ".yaml" {
				found++
				c.cdiSpec(filepath.Join(dir, entry.Name()))
			}
		}
	}
	if found == 0 {
		c.unread(trace.CDISpec, strings.Join(c.places.CDIDirs, ", "), "no CDI spec")
	}
}

func (c *collector) cdiSpec(path string) {
	spec, err := readSpec(path)
	if err != nil {
		c.unread(trace.CDISpec, path, why(err))
		return
	}
	source := trace.Source{Kind: trace.CDISpec, Path: path}
	c.read(source)
	for _, device := range spec.Devices {
		fact := trace.CDIFact{Source: source, Name: spec.Kind + "=" + device.Name, Nodes: specNodes(device.Nodes)}
		for _, entry := range device.Env {
			name, value, _ := strings.Cut(entry, "=")
			fact.Env = append(fact.Env, trace.EnvVar{Name: name, Value: value})
		}
		c.local.CDI = append(c.local.CDI, fact)
	}
}

func readSpec(path string) (*cdi.Spec, error) {
	blob, err := readFile(path, maxCDISpec)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(path) == ".yaml" {
		if blob, err = yaml.YAMLToJSON(blob); err != nil {
			return nil, err
		}
	}
	return cdi.ParseSpec(blob)
}

// specNodes leaves the numbers unknown where a spec contains none: the runtime then uses those of the host's node.
func specNodes(nodes []gpu.DeviceNode) []trace.Node {
	var out []trace.Node
	for _, node := range nodes {
		made := trace.Node{Path: node.Path, Major: int64(node.Major), Minor: int64(node.Minor)}
		if node.Major == 0 && node.Minor == 0 {
			made.Major, made.Minor = trace.Unknown, trace.Unknown
		}
		out = append(out, made)
	}
	return out
}
