package command

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/spf13/cobra"
)

func registryCommand() *cobra.Command {
	var address, user, password string
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Run an empty registry in memory on a loopback address, to try push and pull",
		Example: `  berth-images registry --address 127.0.0.1:5000 &
  berth-images push 127.0.0.1:5000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			listener, err := listenLoopback(address)
			if err != nil {
				return err
			}
			cmd.PrintErrf("serving a registry on %s until it is interrupted; what is pushed to it is lost then\n", listener.Addr())
			return serve(cmd.Context(), listener, withPassword(user, password, newRegistry()))
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1:5000", "loopback address and port")
	cmd.Flags().StringVar(&user, "user", "", "ask for this user and --password (default: ask for none)")
	cmd.Flags().StringVar(&password, "password", "", "the user's password; for tests only, since others on this machine see the command line")
	cmd.MarkFlagsRequiredTogether("user", "password")
	return cmd
}

func newRegistry() http.Handler {
	return registry.New(registry.WithReferrersSupport(true), registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
}

// listenLoopback listens on an address and refuses one that other machines reach.
func listenLoopback(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address %q: want an address and a port, such as 127.0.0.1:5000: %w", address, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("address %q is not a loopback address: the registry is for tries on one machine; use one such as 127.0.0.1:5000", address)
	}
	return net.Listen("tcp", address)
}

// serve serves until the context ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve registry: %w", err)
	}
	return nil
}

// withPassword refuses requests without the user and the password; it changes nothing if user is empty.
func withPassword(user, password string, next http.Handler) http.Handler {
	if user == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gotUser, gotPassword, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(gotUser), []byte(user))&subtle.ConstantTimeCompare([]byte(gotPassword), []byte(password)) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"user and password are needed"}]}`, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
