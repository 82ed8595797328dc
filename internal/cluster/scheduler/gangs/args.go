package gangs

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-gpu/berth/internal/cluster/gangview"
)

// Args are the arguments of the plugin in a KubeSchedulerConfiguration.
type Args struct {
	// TopologyLevels are labels of nodes, the widest first, with the names that gangs can use for them. A node is the narrowest level in
	// any case. The default is zone, block, rack and clique.
	TopologyLevels []LevelArg `json:"topologyLevels,omitempty"`
}

// LevelArg is a level of topology.
type LevelArg struct {
	// Name is what gangs call the level, Key the label of nodes.
	Name string `json:"name"`
	Key  string `json:"key"`
}

// mostLevels bounds the levels.
const mostLevels = 8

// parseArgs reads the arguments of a profile. It returns an error that says what is allowed.
func parseArgs(object runtime.Object) (gangview.Levels, error) {
	var args Args
	if unknown, ok := object.(*runtime.Unknown); ok && len(unknown.Raw) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(unknown.Raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&args); err != nil {
			return nil, fmt.Errorf("arguments of the plugin %s: %w; want an object such as {topologyLevels: [{name: rack, key: topology.kubernetes.io/rack}]}", Name, err)
		}
	} else if object != nil && !ok {
		return nil, fmt.Errorf("arguments of the plugin %s: they are a %T, want an object such as {topologyLevels: [...]}", Name, object)
	}
	if len(args.TopologyLevels) == 0 {
		return gangview.DefaultLevels(), nil
	}
	if len(args.TopologyLevels) > mostLevels {
		return nil, fmt.Errorf("arguments of the plugin %s: %d topologyLevels; want at most %d", Name, len(args.TopologyLevels), mostLevels)
	}
	var levels gangview.Levels
	seen := map[string]bool{}
	for _, l := range args.TopologyLevels {
		if l.Name == "" || len(content.IsLabelKey(l.Key)) > 0 || seen[l.Name] || seen[l.Key] {
			return nil, fmt.Errorf("arguments of the plugin %s: the level {name: %q, key: %q}; want a name and a label key, each once", Name, l.Name, l.Key)
		}
		seen[l.Name], seen[l.Key] = true, true
		levels = append(levels, gangview.Level(l))
	}
	return levels, nil
}
