// Package pages is how a program on a node reaches the agent of that node: HTTP over a unix
// socket that only root may open.
//
// An agent listens on a socket of its own, agent-INSTANCE.sock, which its probes ask. Besides,
// the name agent.sock leads to one agent of the node, which berth asks. During an upgrade two
// agents run for a moment: the name goes to the new one once it is ready, and an agent takes
// it at any time when nobody answers there.
//
// It guarantees that
//   - a name appears only when its socket accepts connections, and has mode 0600 from the
//     first moment;
//   - a request is served only when the peer's uid is 0, or the uid that the agent runs as,
//     as the kernel says (SO_PEERCRED);
//   - an agent that leaves removes its own names and no others.
//
// It knows nothing of what is served.
package pages
