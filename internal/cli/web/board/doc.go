// Package board computes what the page of berth web shows, from objects of the API server.
//
// It guarantees that the same objects give the same board, in an order that does not depend on theirs, that no name of a pod or a claim is
// in it whose namespace the user may not see, and that a value which is not known is absent. It does no I/O, and must import only api,
// internal/core and the types of Kubernetes.
package board
