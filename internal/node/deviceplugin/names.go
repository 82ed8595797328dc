package deviceplugin

import (
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	kubeletSocket = "kubelet.sock"
	socketPrefix  = "berth-"
	socketSuffix  = ".sock"
	// bindPrefix marks a socket that is bound and does not listen yet.
	bindPrefix = "."

	// maxSocketPath is the size of sun_path without the final zero.
	maxSocketPath = 107
	// instanceLength is the length of nanoseconds since 1970 in base 36, until the year 2120.
	instanceLength = 12
	// attemptLength allows 1.6 million registrations.
	attemptLength = 5
	// minPart is the least length that the resource's part of the name needs: a shortened name with its hash.
	minPart = 12
)

// pluginDir is the folder of the device plugins' sockets, which is fixed beneath the
// kubelet's directory.
func pluginDir(kubeletDir string) string { return filepath.Join(kubeletDir, "device-plugins") }

// socketName are the parts of a socket's name: berth-<part>-<instance>[.<attempt>].sock.
type socketName struct {
	part     string
	instance string
	attempt  int
}

func (n socketName) String() string {
	name := socketPrefix + n.part + "-" + n.instance
	if n.attempt > 1 {
		name += "." + strconv.FormatInt(int64(n.attempt), 36)
	}
	return name + socketSuffix
}

// parseSocketName is the inverse of String.
func parseSocketName(text string) (socketName, bool) {
	body, ok := strings.CutPrefix(text, socketPrefix)
	if !ok {
		return socketName{}, false
	}
	body, ok = strings.CutSuffix(body, socketSuffix)
	dash := strings.LastIndexByte(body, '-')
	if !ok || dash < 1 || body[dash-1] == '.' {
		return socketName{}, false
	}
	name := socketName{part: body[:dash], attempt: 1}
	instance, attempt, numbered := strings.Cut(body[dash+1:], ".")
	name.instance = instance
	if numbered {
		n, err := strconv.ParseInt(attempt, 36, 32)
		if err != nil {
			return socketName{}, false
		}
		name.attempt = int(n)
	}
	return name, isInstance(instance) && name.String() == text
}

func isInstance(text string) bool {
	return text != "" && len(text) <= instanceLength && strings.Trim(text, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// resourcePart is the resource's part of a socket name: the name without the domain of the default resource,
// or with the slash of another domain as @. A name that is too long for dir is shortened and ends in a hash.
func resourcePart(dir, resource string) (string, error) {
	rest := len(bindPrefix) + len(socketName{instance: strings.Repeat("0", instanceLength)}.String()) + attemptLength
	available := maxSocketPath - len(dir) - 1 - rest
	if available < minPart {
		return "", fmt.Errorf("name socket of %s: the path of directory %s is %d bytes too long for a Unix socket (%d in all); use a shorter path", resource, dir, minPart-available, maxSocketPath)
	}
	domain, _, _ := strings.Cut(offer.DefaultResource, "/")
	part := strings.ReplaceAll(strings.TrimPrefix(resource, domain+"/"), "/", "@")
	if len(part) > available {
		hash := fnv.New32a()
		hash.Write([]byte(part))
		part = fmt.Sprintf("%s~%08x", part[:available-9], hash.Sum32())
	}
	return part, nil
}

// nextInstance returns an instance that comes after all in names: from the time, or, when a clock was set back, from the highest one.
func nextInstance(now time.Time, names []string) string {
	next := uint64(max(now.UnixNano(), 0))
	for _, text := range names {
		if name, ok := parseSocketName(text); ok {
			if n, err := strconv.ParseUint(name.instance, 36, 64); err == nil && n >= next && len(name.instance) == instanceLength {
				next = n + 1
			}
		}
	}
	text := strconv.FormatUint(next, 36)
	return strings.Repeat("0", max(0, instanceLength-len(text))) + text
}
