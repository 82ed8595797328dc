package gate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/core/safetext"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

// podFailed is the code of a validation pod that has ended without a result.
const podFailed = "VALIDATE_POD_FAILED"

// maxMessage bounds the text of a result, in bytes.
const maxMessage = 1024

// codes are the codes that a result may have.
var codes = regexp.MustCompile(`^VALIDATE_[A-Z_]{1,40}$`)

// judgeValidation returns how the newest validation pod of a key ended; nil while it runs, and without one. Seen is true when there is one.
// The pods are sorted by their age.
func judgeValidation(pods []podwatch.Validation, key string) (outcome *gate.Outcome, seen bool) {
	for i := len(pods) - 1; i >= 0; i-- {
		if pods[i].Key != key || key == "" {
			continue
		}
		failed, ended := judgePod(&pods[i])
		if !ended {
			return nil, true
		}
		return &gate.Outcome{Key: key, Failed: failed}, true
	}
	return nil, false
}

// judgePod returns why a pod failed, and whether its result is known: that of one failed container is enough.
func judgePod(pod *podwatch.Validation) (failed *gate.Stop, ended bool) {
	for _, c := range pod.Containers {
		if failed := containerStop(pod.Name, c); failed != nil {
			return failed, true
		}
	}
	if pod.Refused != "" {
		return &gate.Stop{Code: podFailed, Message: fmt.Sprintf("pod %s: %s", pod.Name, bounded(pod.Refused))}, true
	}
	return nil, pod.Ended && pod.Of > 0 && len(pod.Containers) == pod.Of
}

// containerStop returns why a container failed; nil for one that passed.
func containerStop(pod string, c podwatch.Result) *gate.Stop {
	var result v1alpha1.ValidationResult
	err := json.Unmarshal([]byte(c.Message), &result)
	valid := err == nil && result.Kind == v1alpha1.KindValidationResult && result.APIVersion == v1alpha1.ValidationAPIVersion
	switch {
	case valid && result.Passed && c.Exit == 0:
		return nil
	case valid && !result.Passed && codes.MatchString(result.Code):
		return &gate.Stop{Code: result.Code, Message: fmt.Sprintf("%s: %s", cmp.Or(bounded(result.Resource), c.Name), bounded(result.Evidence))}
	case valid:
		return &gate.Stop{Code: podFailed, Message: fmt.Sprintf("container %s of pod %s has exited with %d, and its result is that it passed: %t", c.Name, pod, c.Exit, result.Passed)}
	}
	return &gate.Stop{Code: podFailed, Message: fmt.Sprintf("container %s of pod %s has exited with %d without a result: %s", c.Name, pod, c.Exit, bounded(c.Message))}
}

// bounded returns the beginning of what a container writes, as one line.
func bounded(text string) string { return safetext.Line(safetext.First(text, maxMessage)) }
