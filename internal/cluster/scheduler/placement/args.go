package placement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Args are the arguments of the plugin in a KubeSchedulerConfiguration.
type Args struct {
	// Policy is pack (the default), spread or latency.
	Policy string `json:"policy,omitempty"`
}

// parseArgs reads the arguments of a profile. It returns an error that says what is allowed.
func parseArgs(object runtime.Object) (Args, error) {
	args := Args{Policy: fleet.PolicyPack}
	if object == nil {
		return args, nil
	}
	unknown, ok := object.(*runtime.Unknown)
	if !ok {
		return args, fmt.Errorf("arguments of the plugin %s: they are a %T, want an object such as {policy: pack}", Name, object)
	}
	if len(unknown.Raw) == 0 || bytes.Equal(bytes.TrimSpace(unknown.Raw), []byte("null")) {
		return args, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(unknown.Raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&args); err != nil {
		return args, fmt.Errorf("arguments of the plugin %s: %w; want an object such as {policy: pack}", Name, err)
	}
	if args.Policy == "" {
		args.Policy = fleet.PolicyPack
	}
	if !slices.Contains(fleet.PolicyNames(), args.Policy) {
		return args, fmt.Errorf("arguments of the plugin %s: policy %q is unknown; want one of %s", Name, args.Policy, strings.Join(fleet.PolicyNames(), ", "))
	}
	return args, nil
}
