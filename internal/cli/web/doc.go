// Package web serves the page that shows where the GPUs of a cluster are, what waits, and what is wrong; berth web and the operator
// serve the same one.
//
// It guarantees that the page asks nothing of any other machine, works without its script, and shows no name of a pod that the user may not
// see. Texts that others have written are escaped and bounded. It must not talk to the API server: who serves the page gives it functions
// that do.
package web
