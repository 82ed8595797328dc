package offer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCheckResource(t *testing.T) {
	tests := map[string]struct{ name, want string }{
		"whole GPU":           {name: "nvidia.com/gpu"},
		"shared":              {name: "nvidia.com/gpu.shared"},
		"attribute":           {name: "nvidia.com/mig-1g.5gb.me.all"},
		"negative attribute":  {name: "nvidia.com/mig-1g.24gb-me"},
		"longest":             {name: "nvidia.com/" + strings.Repeat("a", 52)},
		"too long":            {name: "nvidia.com/" + strings.Repeat("a", 53), want: "it has 64 characters"},
		"no domain":           {name: "gpu", want: "a domain, a slash and a name"},
		"two slashes":         {name: "nvidia.com/gpu/a", want: "a domain, a slash and a name"},
		"empty":               {want: "a domain, a slash and a name"},
		"empty domain":        {name: "/gpu", want: `the domain ""`},
		"empty name":          {name: "nvidia.com/", want: `the part ""`},
		"capitals":            {name: "nvidia.com/GPU", want: `the part "GPU"`},
		"plus":                {name: "nvidia.com/mig-1g.5gb+me", want: `the part "mig-1g.5gb+me"`},
		"underscore":          {name: "nvidia.com/gpu_a", want: `the part "gpu_a"`},
		"dash at the end":     {name: "nvidia.com/mig-", want: `the part "mig-"`},
		"dash before a dot":   {name: "nvidia.com/a-.b", want: `the part "a-.b"`},
		"dot at the end":      {name: "nvidia.com/gpu.", want: `the part "gpu."`},
		"dash in front":       {name: "-nvidia.com/gpu", want: `the domain "-nvidia.com"`},
		"Kubernetes":          {name: "kubernetes.io/gpu", want: "reserved by Kubernetes"},
		"below Kubernetes":    {name: "a.kubernetes.io/gpu", want: "reserved by Kubernetes"},
		"looks like a quota":  {name: "requests.nvidia.com/gpu", want: "reserved for quotas"},
		"looks a bit like it": {name: "requests-nvidia.com/gpu"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := CheckResource(test.name)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("CheckResource(%q) = %q, want %q in it", test.name, got, test.want)
			}
		})
	}
}

func TestProfileNames(t *testing.T) {
	tests := map[string]struct {
		resource string
		partial  bool
	}{
		"1g.5gb":        {"nvidia.com/mig-1g.5gb", false},
		"1g.10gb+me":    {"nvidia.com/mig-1g.10gb.me", false},
		"1g.5gb+me.all": {"nvidia.com/mig-1g.5gb.me.all", false},
		"1g.24gb+gfx":   {"nvidia.com/mig-1g.24gb.gfx", false},
		"1g.24gb-me":    {"nvidia.com/mig-1g.24gb-me", false},
		"7g.80gb":       {"nvidia.com/mig-7g.80gb", false},
		"1c.3g.20gb":    {"nvidia.com/mig-1c.3g.20gb", true},
		"12c.3g.20gb":   {"nvidia.com/mig-12c.3g.20gb", true},
		"abc.1g":        {"nvidia.com/mig-abc.1g", false},
		"c.1g":          {"nvidia.com/mig-c.1g", false},
	}
	for profile, test := range tests {
		if got := MIGResource(profile); got != test.resource {
			t.Errorf("MIGResource(%q) = %q, want %q", profile, got, test.resource)
		}
		if got := isPartial(profile); got != test.partial {
			t.Errorf("isPartial(%q) = %v, want %v", profile, got, test.partial)
		}
	}
}

// matchTwin is the definition of a pattern, by trying all lengths.
func matchTwin(pattern, text string) bool {
	if pattern == "" {
		return text == ""
	}
	if pattern[0] == '*' {
		return matchTwin(pattern[1:], text) || text != "" && matchTwin(pattern, text[1:])
	}
	return text != "" && pattern[0] == text[0] && matchTwin(pattern[1:], text[1:])
}

func TestMatchPatternLikeTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringOfN(rapid.RuneFrom([]rune("ab*")), 0, 8, -1).Draw(t, "pattern")
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 10, -1).Draw(t, "text")
		if got, want := matchPattern(pattern, text), matchTwin(pattern, text); got != want {
			t.Fatalf("matchPattern(%q, %q) = %v, want %v", pattern, text, got, want)
		}
	})
}

func FuzzMatchPattern(f *testing.F) {
	f.Add("*A100*", "NVIDIA A100-SXM4-40GB")
	f.Add("a*a", "a")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 12 || len(text) > 16 {
			return
		}
		if got, want := matchPattern(pattern, text), matchTwin(pattern, text); got != want {
			t.Errorf("matchPattern(%q, %q) = %v, want %v", pattern, text, got, want)
		}
	})
}
