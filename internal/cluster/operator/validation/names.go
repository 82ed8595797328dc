package validation

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// The names of what belongs to a node. The pod's name begins with podPrefix, and goes on with the operation's.
const (
	operationPrefix = "validate-"
	podPrefix       = "berth-"
)

// mostName is how long a name can be.
const mostName = 253

// operationName returns the name of the operation of a node. The name of a node can be as long as a name can be at all: then its end is
// replaced by a hash.
func operationName(node string) string {
	most := mostName - len(podPrefix) - len(operationPrefix)
	if len(node) > most {
		sum := sha256.Sum256([]byte(node))
		hash := hex.EncodeToString(sum[:8])
		// A label of a name may not end in one of these.
		node = strings.TrimRight(node[:most-len(hash)-1], "-.") + "-" + hash
	}
	return operationPrefix + node
}

// podName returns the name of the pod, and of its ResourceClaim.
func podName(node string) string { return podPrefix + operationName(node) }
