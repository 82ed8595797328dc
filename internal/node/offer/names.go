package offer

import (
	"fmt"
	"strings"
)

const (
	// maxResourceName is the longest name that the kubelet accepts, including the domain.
	maxResourceName = 63
	migPrefix       = "nvidia.com/mig-"
	sharedSuffix    = ".shared"
)

// MIGResource returns the resource name of a profile. A plus before an attribute becomes a dot, because a resource name
// has no plus; a minus is kept.
func MIGResource(profile string) string {
	return migPrefix + strings.ReplaceAll(profile, "+", ".")
}

// isPartial reports whether a profile has a compute instance smaller than its GPU instance: 1c.3g.20gb is one of the
// three slices of a 3g.20gb.
func isPartial(profile string) bool {
	slices, _, ok := strings.Cut(profile, "c.")
	return ok && slices != "" && strings.Trim(slices, "0123456789") == ""
}

// CheckResource returns why the kubelet would refuse a resource name, or an empty string.
func CheckResource(name string) string {
	domain, rest, ok := strings.Cut(name, "/")
	switch {
	case len(name) > maxResourceName:
		return fmt.Sprintf("it has %d characters, at most %d are allowed including domain and slash", len(name), maxResourceName)
	case !ok || strings.Contains(rest, "/"):
		return "it must be a domain, a slash and a name, as in " + DefaultResource
	case !isSubdomain(domain):
		return fmt.Sprintf("the domain %q must be lower-case letters, digits, dashes and dots, each part with a letter or digit at both ends",
			domain)
	case !isSubdomain(rest):
		return fmt.Sprintf("the part %q after the slash must be lower-case letters, digits, dashes and dots, each part with a letter or digit at both ends",
			rest)
	case strings.HasSuffix(domain, "kubernetes.io"):
		return "domains that end with kubernetes.io are reserved by Kubernetes"
	case strings.HasPrefix(name, "requests."):
		return `names that begin with "requests." are reserved for quotas`
	}
	return ""
}

// isSubdomain reports whether text is a DNS-1123 subdomain.
func isSubdomain(text string) bool {
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return false
		}
	}
	return true
}
