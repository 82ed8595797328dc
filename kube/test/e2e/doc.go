// Package e2e contains the end-to-end tests. They run on the real cluster of the sandbox, with simulated hardware.
package e2e
