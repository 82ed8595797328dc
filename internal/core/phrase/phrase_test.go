package phrase

import "testing"

func TestPhrases(t *testing.T) {
	tests := map[string]struct{ got, want string }{
		"none":            {Count(0, "pod"), "0 pods"},
		"a pod":           {Count(1, "pod"), "1 pod"},
		"two pods":        {Count(2, "pod"), "2 pods"},
		"no name":         {And(nil), ""},
		"a name":          {And([]string{"a"}), "a"},
		"two names":       {And([]string{"a", "b"}), "a and b"},
		"three names":     {And([]string{"a", "b", "c"}), "a, b and c"},
		"some of none":    {Some(nil, 2), ""},
		"as many as fit":  {Some([]string{"a", "b"}, 2), "a, b"},
		"more than fit":   {Some([]string{"a", "b", "c"}, 2), "a, b and 1 more"},
		"many more names": {Some([]string{"a", "b", "c", "d", "e"}, 1), "a and 4 more"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.got != test.want {
				t.Errorf("%q; want %q", test.got, test.want)
			}
		})
	}
}
