package gangplan

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

const (
	// maxQuoted bounds what a sentence quotes of a value.
	maxQuoted = 64
	// maxCount is the largest number of pods that an API can express: minMember is an int32.
	maxCount = 1<<31 - 1

	fixMinimum = "set it to the number of pods that have to start together"
)

// quote returns a value as printable ASCII of bounded length.
func quote(value string) string {
	if len(value) > maxQuoted {
		return strconv.QuoteToASCII(value[:maxQuoted]) + "..."
	}
	return strconv.QuoteToASCII(value)
}

// plain returns a name as it is where it is one of an object or a label value, and quoted otherwise.
func plain(name string) string {
	if name != "" && (len(content.IsDNS1123Subdomain(name)) == 0 || len(content.IsLabelValue(name)) == 0) {
		return name
	}
	return quote(name)
}

// podTitle names a pod; its namespace is the gang's.
func podTitle(pod *corev1.Pod) string { return "pod " + plain(pod.Name) }

// count reads a number of pods: decimal digits, from 1 to maxCount.
func count(text string) (int64, bool) {
	n, ok := digits(text)
	return n, ok && n > 0
}

// noCount says that a value is no number of pods.
func noCount(name, object, value, fix string) string {
	return fmt.Sprintf("%s of %s is %s, not a whole number from 1 to %d: %s", name, object, quote(value), maxCount, fix)
}

// differ says that two objects of a gang have two values of one thing.
func differ(key Key, what, value, object, otherValue, other string) string {
	return fmt.Sprintf("gang %s has two values of %s: %s of %s and %s of %s; set the same one on all", key, what, value, object, otherValue, other)
}

// digits reads a number of decimal digits that an int32 can hold.
func digits(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int64(n), err == nil
}
