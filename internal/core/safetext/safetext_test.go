package safetext

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty":                     {"", ""},
		"a name":                    {"nv-hostengine\n", "nv-hostengine"},
		"of another language":       {"größe 日本", "größe 日本"},
		"blanks":                    {" \t a \n\r\n b ", "a b"},
		"a blank that does not end": {"a\u00a0b\u2028c\u2029d\u0085e", "a b c d e"},
		"ASCII control characters":  {"a\x1b[2Jb\nc\x7f\x00d", "a [2Jb c d"},
		"C1 control characters":     {"a\u009b2Jb", "a 2Jb"},
		"another writing direction": {"a\u202eb\u200f\u2066", "ab"},
		"no width":                  {"a\u200bb\ufeffc\u00add", "abcd"},
		"not UTF-8":                 {"a\xffb\xe2\x82", "ab"},
		"stands for not UTF-8":      {"a\ufffdb", "ab"},
		"surrogates":                {"a\xed\xa0\x80b", "ab"},
		"tags":                      {"a\U000e0041b", "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Line(tc.text); got != tc.want {
				t.Errorf("Line(%q) = %q, want %q", tc.text, got, tc.want)
			}
		})
	}
}

func TestFirstAndLast(t *testing.T) {
	for name, tc := range map[string]struct {
		text        string
		most        int
		first, last string
	}{
		"empty":              {"", 3, "", ""},
		"shorter":            {"ab", 3, "ab", "ab"},
		"as long":            {"abc", 3, "abc", "abc"},
		"longer":             {"abcd", 3, "abc", "bcd"},
		"nothing":            {"abcd", 0, "", ""},
		"within a character": {"aäbäc", 2, "a", "c"},
		"one wide character": {"日", 2, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := First(tc.text, tc.most); got != tc.first {
				t.Errorf("First = %q, want %q", got, tc.first)
			}
			if got := Last(tc.text, tc.most); got != tc.last {
				t.Errorf("Last = %q, want %q", got, tc.last)
			}
		})
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\x1b[2Jb\nc\x7f", 3)
	f.Add("a\xff\u202e日\u2028", 5)
	f.Fuzz(func(t *testing.T, text string, most int) {
		line := Line(text)
		if !utf8.ValidString(line) || strings.ContainsFunc(line, Unsafe) || strings.ContainsFunc(line, func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }) {
			t.Errorf("Line(%q) = %q", text, line)
		}
		if Line(line) != line || len(line) > len(text) {
			t.Errorf("Line(%q) = %q, and %q of that", text, line, Line(line))
		}
		if most < 0 {
			return
		}
		first, last := First(line, most), Last(line, most)
		if len(first) > most || len(last) > most || !utf8.ValidString(first+last) || !strings.HasPrefix(line, first) || !strings.HasSuffix(line, last) {
			t.Errorf("First and Last %d of %q are %q and %q", most, line, first, last)
		}
		if len(line) > most && (len(first) <= most-utf8.UTFMax || len(last) <= most-utf8.UTFMax) {
			t.Errorf("First and Last %d of %q are %q and %q, which is too short", most, line, first, last)
		}
	})
}
