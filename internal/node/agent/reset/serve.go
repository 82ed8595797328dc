package reset

import (
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/httpserver"
)

// ServeHTTP serves the command: POST with the parameters gpu and wait. The response is a line of JSON for each step,
// and a last one with the result. Before Run the command is refused, since the holders are not known.
func (r *Resetter) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if !r.ready.Is() {
		http.Error(w, "the agent has not yet compared the ledger with the node; try again in a moment", http.StatusServiceUnavailable)
		return
	}
	wait := time.Duration(0)
	if text := request.FormValue("wait"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > maxWait {
			http.Error(w, fmt.Sprintf("wait %q: want a duration up to %s, as in 5m", text, maxWait), http.StatusBadRequest)
			return
		}
	}
	reference := request.FormValue("gpu")
	if reference == "" {
		http.Error(w, "no GPU named; give its index, UUID or PCI bus ID", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := httpserver.NewLines(w)
	send := func(line v1alpha1.GPUResetLine) {
		_ = lines.Write(line) // The client may have disconnected; a reset that has begun continues.
	}
	var steps []v1alpha1.GPUResetStep
	result, err := r.reset(request.Context(), reference, wait, func(message string) {
		step := v1alpha1.GPUResetStep{Time: metav1.NewTime(r.deps.Clock.Now()), Message: message}
		steps = append(steps, step)
		send(v1alpha1.GPUResetLine{Step: &step})
	})
	result.Steps, result.Done = steps, err == nil
	if err != nil {
		result.Error = err.Error()
	}
	send(v1alpha1.GPUResetLine{Result: &result})
}
