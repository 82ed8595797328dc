// Package e2e holds the end-to-end tests: each runs on the real cluster of the sandbox, with simulated hardware below
// everything.
package e2e
