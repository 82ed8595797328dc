// Package safetext cleans texts that others write, such as the names of processes, the output of programs and the messages of pods, before
// they are logged, stored or shown.
//
// It guarantees that a cleaned text is one line of valid UTF-8 that cannot move the cursor, colour the screen or change the writing
// direction of a terminal. It must not import anything but the standard library.
package safetext

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Unsafe reports whether a character can change how a text is shown: control characters, characters of format such as those that change
// the writing direction, and the character that stands for invalid UTF-8.
func Unsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError
}

// Line returns a text as one line. Each run of blanks, line breaks and control characters is one blank, none is at the beginning or the
// end, and the other unsafe characters are left out.
func Line(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r):
			return ' '
		case Unsafe(r):
			return -1
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

// First returns the beginning of a text, at most so many bytes, without a part of a character.
func First(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// Last returns the end of a text, at most so many bytes, without a part of a character.
func Last(text string, most int) string {
	from := max(0, len(text)-most)
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	return text[from:]
}
