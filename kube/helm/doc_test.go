// Package helm_test renders the chart with Helm itself, and compares the result with charts/testdata. This module builds Helm; nothing
// imports it.
package helm_test
