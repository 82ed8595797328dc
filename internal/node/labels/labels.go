package labels

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

// Text is a line key=value for each label, in the order of the keys. It is the form of Node Feature
// Discovery's feature files.
func (l Labels) Text() []byte {
	var out bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&out, "%s=%s\n", key, l[key])
	}
	return out.Bytes()
}

const (
	// nvidiaDomain is the domain of GPU feature discovery's labels.
	nvidiaDomain = "nvidia.com/"
	// berthDomain is the one of labels that it does not have.
	berthDomain = "berth.dev/"
	// modelDomain is the one of labels by model: the name after the slash has room for a model only because
	// the word is in front of it.
	modelDomain = "model.berth.dev/"
)

const (
	// maxName is how long a label's value may be, and its key after the slash.
	maxName = 63
	// hashLength is the length of the digest that tells shortened names apart, with its dash.
	hashLength = 9
)

// clean makes a label's value of what hardware calls itself: what no label may have is dropped, blanks become
// dashes, and both ends are letters or digits. It is as long as it is; fit and short make it shorter.
func clean(text string) string {
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

// short is fit for keys: two names that differ stay different.
func short(text string, length int) string {
	if len(text) <= length {
		return text
	}
	digest := fnv.New32a()
	_, _ = digest.Write([]byte(text))
	return fmt.Sprintf("%s-%08x", fit(text, length-hashLength), digest.Sum32())
}

// suffixed joins a clean text and a suffix. Where both are too long the text gives way.
func suffixed(text, suffix string) string {
	suffix = fit(suffix, maxName-1)
	return fit(fit(text, maxName-len(suffix))+suffix, maxName)
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func isNotAlphanumeric(r rune) bool { return !isAlphanumeric(r) }
