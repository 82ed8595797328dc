package labelset

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
)

// Labels are a node's labels by their full key.
type Labels map[string]string

// Text returns a line key=value for each label, in the order of the keys. It is the form of Node Feature Discovery's feature
// files.
func (l Labels) Text() []byte {
	var out bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&out, "%s=%s\n", key, l[key])
	}
	return out.Bytes()
}

const (
	// MaxName is the maximum length of a label's value, and of its key after the slash.
	MaxName = 63
	// hashLength is the length of the digest that distinguishes shortened names, with its dash.
	hashLength = 9
)

// Clean makes a label's value of a name that hardware reports: it drops characters that no label may have, turns blanks into
// dashes, and begins and ends with a letter or digit. It does not limit the length; fit and Short do.
func Clean(text string) string {
	var out strings.Builder
	blank := false
	for _, r := range text {
		switch {
		case r == ' ':
			blank = true
		case isAlphanumeric(r) || strings.ContainsRune("-_.", r):
			if blank {
				out.WriteByte('-')
			}
			blank = false
			out.WriteRune(r)
		}
	}
	return strings.TrimFunc(out.String(), isNotAlphanumeric)
}

// fit cuts a clean text to a length.
func fit(text string, length int) string {
	if len(text) <= length {
		return text
	}
	return strings.TrimRightFunc(text[:max(length, 0)], isNotAlphanumeric)
}

// Value returns a text as a label's value: clean, and not too long.
func Value(text string) string { return fit(Clean(text), MaxName) }

// Short is fit for keys: two names that differ stay different.
func Short(text string, length int) string {
	if len(text) <= length {
		return text
	}
	digest := fnv.New32a()
	_, _ = digest.Write([]byte(text))
	return fmt.Sprintf("%s-%08x", fit(text, length-hashLength), digest.Sum32())
}

// Suffixed joins a clean text and a suffix. Where both together are too long, the text is cut.
func Suffixed(text, suffix string) string {
	suffix = fit(suffix, MaxName-1)
	return fit(fit(text, MaxName-len(suffix))+suffix, MaxName)
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func isNotAlphanumeric(r rune) bool { return !isAlphanumeric(r) }
