package labelset

import "testing"

func TestNames(t *testing.T) {
	long := "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition-for-the-very-patient"
	for name, test := range map[string]struct{ got, want string }{
		"clean":              {Clean("NVIDIA A100-SXM4-40GB"), "NVIDIA-A100-SXM4-40GB"},
		"runs of blanks":     {Clean(" a   b "), "a-b"},
		"foreign characters": {Clean("(a) ™/é b\t_"), "a-b"},
		"dropped in a run":   {Clean("a / b"), "a-b"},
		"nothing left":       {Clean(" ™ "), ""},
		"fits":               {fit("abc", 3), "abc"},
		"cut":                {fit("ab-c", 3), "ab"},
		"short":              {Short(long, 46), "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-W-6662158d"},
		"not to shorten":     {Short("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 46), "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"},
		"the suffix stays":   {Suffixed(long, "-MIG-1g.24gb-SHARED"), "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstat-MIG-1g.24gb-SHARED"},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %q; want %q", name, test.got, test.want)
		}
	}
}
