// Package pages connects programs on a node with the node's agent: HTTP over a Unix socket that only root may open.
//
// An agent listens on its own socket, agent-INSTANCE.sock, which its probes use. In addition, the name agent.sock
// refers to one agent of the node, which berth uses. During an upgrade two agents run for a short time: the new one
// takes over the name when it is ready, and an agent takes it over at any time when no process accepts connections
// there.
//
// It guarantees that
//   - a name appears only when its socket accepts connections, and has mode 0600 from the
//     first moment;
//   - a request is served only when the peer's uid is 0, or the uid that the agent runs as,
//     according to the kernel (SO_PEERCRED);
//   - an agent that ends removes only its own names.
//
// It does not depend on the content that is served.
package pages
