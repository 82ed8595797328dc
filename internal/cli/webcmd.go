package cli

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/web"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// webFlags are the flags of berth web.
type webFlags struct {
	address  string
	port     int
	signIn   bool
	certFile string
	keyFile  string
	sessions int
}

func newWebCommand(deps Deps) *cobra.Command {
	var from sources
	var flags webFlags
	var out output
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Serve a page that shows where the GPUs are, what waits, and what is wrong",
		Long: `Serve a page on this machine: a row for each node with a cell for each GPU, the pods that wait
with the reason and the smallest change that would help, and what is wrong with its fix. A GPU
leads to its trace.

It shows what you may read, with the kubeconfig that kubectl uses. The page is for this machine
only: it listens on the loopback address, and the address that is printed has a random token,
which the browser keeps as a cookie until it ends. The page asks nothing of other machines.

With --sign-in it is a page for the users of a cluster, as the chart installs it (web.enabled):
each of them signs in with a token of the cluster, and sees what that user may read. The kubeconfig
or the pod's service account is used to keep the GPUNodes, Nodes and pods current, for all users;
who may see which of them is asked for each user.

With -o json or -o yaml it prints what the page would show, once, and ends.`,
		Example: `  berth web                         open the address that it prints; Ctrl-C ends it
  berth web --port 8899             on this port
  berth web -o json | jq '.problems[].code'
                                    what the page would show
  berth web --sign-in --address 0.0.0.0 --port 8443 --tls-cert-file tls.crt --tls-key-file tls.key
                                    for the users of the cluster`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := flags.check(); err != nil {
				return err
			}
			api, noAPI := from.api()
			if api == nil {
				return &hintError{fmt.Errorf("web: no API server: %s", noAPI), "fix: give --kubeconfig FILE, or set KUBECONFIG"}
			}
			if flags.signIn {
				return serveUsers(cmd.Context(), deps, &from, &flags)
			}
			reader := &webReader{api: api, now: time.Now, namespace: from.connection.Namespace(), ctx: cmd.Context()}
			reader.collect = func(ctx context.Context, query trace.Query) (*trace.Trace, error) {
				return collectTrace(ctx, &from, query, reader.shows(ctx))
			}
			if cmd.Flags().Changed("output") {
				page, err := reader.page(nil, "")
				if err != nil {
					return fmt.Errorf("web: %w", err)
				}
				object, err := page.Board(cmd.Context(), v1alpha1.BoardFilter{})
				if err != nil {
					return fmt.Errorf("web: %w", err)
				}
				return out.print(deps.Out, object, func(io.Writer) error {
					return usagef("-o table: web prints json or yaml; without -o it serves the page")
				})
			}
			return serveWeb(cmd.Context(), deps, &from, reader, &flags)
		},
	}
	from.bindKube(cmd.Flags())
	cmd.Flags().StringVar(&from.agentNamespace, "agent-namespace", evidence.DefaultAgentNamespace, "the namespace of the agents' pods, for reading their metrics through the API server")
	flags.bind(cmd)
	out.bind(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("sign-in", "output")
	return cmd
}

func (f *webFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "address", "127.0.0.1", "the address to listen on; one that is not a loopback address needs --sign-in and TLS")
	cmd.Flags().IntVar(&f.port, "port", 0, "the port to listen on; 0 for any that is free")
	cmd.Flags().BoolVar(&f.signIn, "sign-in", false, "serve each user who signs in with a token of the cluster what that user may read")
	cmd.Flags().IntVar(&f.sessions, "sessions", web.DefaultSessions, "with --sign-in: how many users can be signed in at the same time, each browser and each token counted")
	cmd.Flags().StringVar(&f.certFile, "tls-cert-file", "", "the file with the certificate of the page; it is read again when it changes")
	cmd.Flags().StringVar(&f.keyFile, "tls-key-file", "", "the file with the key of the certificate")
	cmd.MarkFlagsRequiredTogether("tls-cert-file", "tls-key-file")
}

// check returns an error for flags that would show the page, or send tokens, to others.
func (f *webFlags) check() error {
	if f.port < 0 || f.port > 65535 {
		return usagef("--port %d: want 1 to 65535, or 0 for any that is free", f.port)
	}
	if f.sessions < 0 {
		return usagef("--sessions %d: want a number of sessions, or 0 for the default", f.sessions)
	}
	address, err := netip.ParseAddr(f.address)
	switch {
	case err != nil:
		return usagef("--address %s: want an IP address, such as 127.0.0.1, or 0.0.0.0 for all addresses of this machine", f.address)
	case f.certFile != "" && !f.signIn:
		return usagef("--tls-cert-file is for --sign-in: without it the page is for this machine only")
	case address.IsLoopback():
		return nil
	case !f.signIn:
		return usagef("--address %s: everybody who reaches this machine would see what you may read; add --sign-in, or leave it out", f.address)
	case f.certFile == "":
		return usagef("--address %s: tokens would cross the network as plain text; add --tls-cert-file and --tls-key-file, or listen on 127.0.0.1", f.address)
	}
	return nil
}
