package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	// maxResourceName is the longest resource name, including the domain, that NVIDIA's device plugin accepts; the API
	// accepts longer domains.
	maxResourceName = 63
	// sharedSuffix is what renameByDefault adds to a resource name.
	sharedSuffix = ".shared"
)

// The forms of names, as nvidia-smi -L and nvidia-smi mig print them.
var (
	gpuUUID   = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	migUUID   = regexp.MustCompile(`^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	oldUUID   = regexp.MustCompile(`^MIG-GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9]+/[0-9]+$`)
	gpuIndex  = regexp.MustCompile(`^(0|[1-9][0-9]{0,3})$`)
	migIndex  = regexp.MustCompile(`^(0|[1-9][0-9]{0,3}):(0|[1-9][0-9]{0,3})$`)
	profile   = regexp.MustCompile(`^([1-9]c\.)?[1-9][0-9]?g\.[1-9][0-9]{0,3}gb((?:\+(?:me\.all|[a-z]+))*(?:-[a-z]+)*)$`)
	inPattern = regexp.MustCompile(`^[0-9a-z.+*-]+$`)
	deviceID  = regexp.MustCompile(`^0[xX][0-9a-fA-F]{8}(:0[xX][0-9a-fA-F]{8})?$`)
)

const (
	profileForm = "write it as nvidia-smi mig -lgip prints it, such as 1g.10gb or 1g.10gb+me"
	uuidForm    = "write it as nvidia-smi -L prints it"
)

func (d *decoder) checkResource(field, name string) {
	if len(name) > maxResourceName {
		d.reject(field, fmt.Sprintf("%q has %d characters, at most %d are allowed", name, len(name), maxResourceName), "shorten it")
		return
	}
	if wrong := validation.IsQualifiedName(name); len(wrong) > 0 || !strings.Contains(name, "/") {
		d.reject(field, strconv.Quote(name)+" is not a resource name", "write it as domain/name, such as nvidia.com/gpu")
		return
	}
	if why := offer.CheckResource(name); why != "" {
		d.reject(field, strconv.Quote(name)+" is not a resource name: "+why, "write it as domain/name, such as nvidia.com/gpu")
	}
}

// checkProfilePattern checks a profile, or a pattern of profiles with *.
func (d *decoder) checkProfilePattern(field, text string) {
	if !profile.MatchString(text) && (!strings.Contains(text, "*") || !inPattern.MatchString(text)) {
		d.reject(field, strconv.Quote(text)+" is not the name of a MIG profile", profileForm)
	}
}

// profileOfResource converts the part of a resource name after mig- to the profile: a resource name has no +, so
// 1g.10gb.me means 1g.10gb+me.
func profileOfResource(name string) (string, bool) {
	size, attributes, ok := strings.Cut(name, "gb")
	if !ok || strings.Contains(name, "+") {
		return "", false
	}
	added, removed, _ := strings.Cut(attributes, "-")
	added = strings.ReplaceAll(added, ".", "+")
	added = strings.ReplaceAll(added, "+me+all", "+me.all")
	if removed != "" {
		removed = "-" + removed
	}
	found := size + "gb" + added + removed
	return found, profile.MatchString(found)
}

// matches reports whether text matches the pattern, in which * matches anything.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	first, last := parts[0], parts[len(parts)-1]
	if !strings.HasPrefix(text, first) || !strings.HasSuffix(text[len(first):], last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, ok := strings.Cut(text, part)
		if !ok {
			return false
		}
		text = rest
	}
	return true
}
