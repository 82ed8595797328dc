// Package values has the types of the Helm chart's values, and the checks that Helm's schema cannot make.
//
// It guarantees that a file without a problem is one that the chart renders, and that a problem names the key, its line and the fix. It
// must not write a file, and must not ask the API server.
package values
