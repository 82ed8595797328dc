package controlplane

import (
	"slices"
	"testing"
)

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		options Options
		want    []string
	}{
		"ordered":  {options: Options{Lists: Ordered}, want: []string{"--feature-gates=WatchList=false"}},
		"streamed": {options: Options{Lists: Streamed}, want: []string{"--feature-gates=WatchList=true"}},
		"gates": {options: Options{Gates: []string{"GenericWorkload", "Other"}},
			want: []string{"--feature-gates=WatchList=false,GenericWorkload=true,Other=true", "--runtime-config=scheduling.k8s.io/v1beta1=true"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.options.flags(); !slices.Equal(got, tc.want) {
				t.Errorf("flags %q, want %q", got, tc.want)
			}
		})
	}
}
