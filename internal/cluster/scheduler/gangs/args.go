package gangs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// Args are the arguments of the plugin in a KubeSchedulerConfiguration.
type Args struct {
	// TopologyLevels are labels of nodes, the widest first, with the names that gangs can use for them. A node is the narrowest level in
	// any case. The default is zone, block, rack and clique.
	TopologyLevels []LevelArg `json:"topologyLevels,omitempty"`
	// ReserveAfterSeconds is how long a gang that does not fit waits before places are reserved for it, if it is the first one in line:
	// only pods that end before it starts can use these then. The default is 60; -1 turns reservations off.
	ReserveAfterSeconds *int64 `json:"reserveAfterSeconds,omitempty"`
}

// settings are the arguments that were read.
type settings struct {
	levels gangplan.Levels
	// reserveAfter is 0 for the default, and negative where nothing is reserved.
	reserveAfter time.Duration
}

// LevelArg is a level of topology.
type LevelArg struct {
	// Name is what gangs call the level, Key the label of nodes.
	Name string `json:"name"`
	Key  string `json:"key"`
}

const (
	// mostLevels bounds the levels, mostReserveAfter the time until a reservation: a day.
	mostLevels       = 8
	mostReserveAfter = 24 * 60 * 60
)

// parseArgs reads the arguments of a profile. It returns an error that says what is allowed.
func parseArgs(object runtime.Object) (settings, error) {
	var args Args
	if unknown, ok := object.(*runtime.Unknown); ok && len(unknown.Raw) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(unknown.Raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&args); err != nil {
			return settings{}, fmt.Errorf("arguments of the plugin %s: %w; want an object such as {topologyLevels: [{name: rack, key: topology.kubernetes.io/rack}]}", Name, err)
		}
	} else if object != nil && !ok {
		return settings{}, fmt.Errorf("arguments of the plugin %s: they are a %T, want an object such as {topologyLevels: [...], reserveAfterSeconds: 60}", Name, object)
	}
	var s settings
	var err error
	if s.reserveAfter, err = args.reserveAfter(); err != nil {
		return settings{}, err
	}
	if len(args.TopologyLevels) == 0 {
		s.levels = gangplan.DefaultLevels()
		return s, nil
	}
	if len(args.TopologyLevels) > mostLevels {
		return settings{}, fmt.Errorf("arguments of the plugin %s: %d topologyLevels; want at most %d", Name, len(args.TopologyLevels), mostLevels)
	}
	seen := map[string]bool{}
	for _, l := range args.TopologyLevels {
		if l.Name == "" || len(content.IsLabelKey(l.Key)) > 0 || seen[l.Name] || seen[l.Key] {
			return settings{}, fmt.Errorf("arguments of the plugin %s: the level {name: %q, key: %q}; want a name and a label key, each once", Name, l.Name, l.Key)
		}
		seen[l.Name], seen[l.Key] = true, true
		s.levels = append(s.levels, gangplan.Level(l))
	}
	return s, nil
}

// reserveAfter returns the time until a gang gets a reservation: 0 for the default, and negative for never.
func (a *Args) reserveAfter() (time.Duration, error) {
	switch after := a.ReserveAfterSeconds; {
	case after == nil:
		return 0, nil
	case *after == -1:
		return -1, nil
	case *after < 0 || *after > mostReserveAfter:
		return 0, fmt.Errorf("arguments of the plugin %s: reserveAfterSeconds %d; want 0 to %d, or -1 for no reservations", Name, *after, mostReserveAfter)
	default:
		return max(time.Nanosecond, time.Duration(*after)*time.Second), nil
	}
}
