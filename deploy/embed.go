// Package deploy holds the manifests as people apply them, so that the sandbox gives its agents the very same
// rights. It must not import anything but the standard library.
package deploy

import _ "embed"

//go:embed agent.yaml
var agent string

//go:embed mps.yaml
var mps string

//go:embed policies.yaml
var policies string

//go:embed options/config-map.yaml
var configMap string

//go:embed options/dra.yaml
var dra string

//go:embed options/node-feature.yaml
var nodeFeature string

//go:embed options/taint-unhealthy.yaml
var taintUnhealthy string

// Agent is the agent's DaemonSet with its account, rights and policies, in YAML.
func Agent() []byte { return []byte(agent) }

// MPS is the DaemonSet of the supervisor of MPS daemons, in YAML.
func MPS() []byte { return []byte(mps) }

// Policies are the policies that do not concern the agent's own writes, in YAML.
func Policies() []byte { return []byte(policies) }

// Options are the files of rights that only an option needs, each in YAML.
func Options() [][]byte {
	return [][]byte{[]byte(configMap), []byte(dra), []byte(nodeFeature), []byte(taintUnhealthy)}
}
