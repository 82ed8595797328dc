// Package httpserver makes every HTTP server of Berth's programs, and bounds what its clients can make it keep.
//
// It guarantees, whatever clients do, that
//   - a request's line and headers are at most [HeaderBytes] and arrive within 2 s, as does a TLS handshake; a request is read, answered
//     and followed by the next one within the server's times, or its connection ends;
//   - there are at most so many connections, in all and from one address. One more closes the connection that has been silent for longest,
//     and one in the middle of a request only if all are: who holds connections cannot keep others out;
//   - what the kernel keeps for a connection is bounded too, and goes with it.
//
// It speaks HTTP/1.1 only: HTTP/2 has many requests on one connection. A request that takes longer than the server's times, such as a
// stream, moves its own deadlines (http.ResponseController). It holds no state but the connections. It must not import other packages of
// Berth; every group may import it.
package httpserver
