// Package nodeop decides which of several operations on one node may act, and when a failed one is attempted again.
//
// It guarantees that at most one operation of a node is active, the same one for each observer that knows the same operations in any
// order. It must not import anything but the standard library.
package nodeop

import (
	"slices"
	"strings"
	"time"
)

// Operation is one operation on a node.
type Operation struct {
	Name string
	// Created is when the operation was created; the API server's times have whole seconds.
	Created time.Time
}

// Active returns the operation of a node that may act: the oldest, and of several of the same second the first by name. It is false when
// there is none. An operation that is being deleted counts until it is gone, since it still restores what it changed.
func Active(all []Operation) (Operation, bool) {
	if len(all) == 0 {
		return Operation{}, false
	}
	return slices.MinFunc(all, compare), true
}

// WaitsFor returns the name of the operation that another one of the same node waits for: the active one. It is false for the active one
// itself.
func WaitsFor(name string, all []Operation) (string, bool) {
	active, ok := Active(all)
	if !ok || active.Name == name {
		return "", false
	}
	return active.Name, true
}

func compare(a, b Operation) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// The pauses before the second attempt, and the longest one.
const (
	FirstPause = 10 * time.Second
	LastPause  = 5 * time.Minute
)

// Pause returns the time between the failure of an attempt and the next one: it doubles with each attempt. The first attempt is 1.
func Pause(attempt int) time.Duration {
	pause := FirstPause
	for range attempt - 1 {
		if pause *= 2; pause >= LastPause {
			return LastPause
		}
	}
	return pause
}
