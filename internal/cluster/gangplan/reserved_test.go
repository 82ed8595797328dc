package gangplan

import "testing"

// TestReserved: tools read what the scheduler says of a reservation.
func TestReserved(t *testing.T) {
	const at, later = "2026-11-24T12:05:00Z", "2026-11-24T12:05:30Z"
	tests := map[string]struct {
		reserved Reserved
		text     string
	}{
		"no start": {Reserved{Gang: "ml/train", Priority: 5, Until: at}, "reserved for gang ml/train until 2026-11-24T12:05:00Z, except for pods of a priority above 5"},
		"a start": {Reserved{Gang: "ml/serve[serve-0]", Priority: -10, Until: later, Before: at},
			"reserved for gang ml/serve[serve-0] until 2026-11-24T12:05:30Z, except for pods of a priority above -10 and pods that end before 2026-11-24T12:05:00Z"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.reserved.String(); got != test.text {
				t.Errorf("got %q; want %q", got, test.text)
			}
			got, found := ReservedIn("0/4 nodes are available: 1 Insufficient cpu, 3 nvidia.com/gpu is " + test.text + ". preemption: 0/4 nodes are available.")
			if !found || got != test.reserved {
				t.Errorf("read %+v, %v; want %+v", got, found, test.reserved)
			}
		})
	}
	for _, text := range []string{
		"", "0/4 nodes are available: 4 nvidia.com/gpu is held for gang ml/train.",
		"places on 4 nodes are reserved for it until 2026-11-24T12:05:00Z, and it starts at the latest at 2026-11-24T12:04:30Z",
		"reserved for gang ml/train until tomorrow, except for pods of a priority above 5",
		"reserved for gang ml/train until 2026-11-24T12:05:00Z, except for pods of a priority above 9999999999",
	} {
		if got, found := ReservedIn(text); found {
			t.Errorf("%q: read %+v", text, got)
		}
	}
}
