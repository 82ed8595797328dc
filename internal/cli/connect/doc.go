// Package connect has kubectl's flags about the connection to an API server, and what clientcmd makes of them.
//
// It guarantees that the flags mean what they mean in kubectl, that their errors name the flag to correct, and that a request ends
// within 10 seconds unless the user says otherwise. k8s.io/cli-runtime has the same flags, but must not be linked: docs/dependencies.md
// says why. It must not import any package of Berth but internal/cli/usage.
package connect
