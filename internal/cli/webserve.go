package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/web"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/httpserver"
)

// webShutdown is how long an end waits for the answers under way.
const webShutdown = 2 * time.Second

// watchLists returns the lists that the page is made of, kept current with the rights of this program.
func watchLists(ctx context.Context, from *sources, client dynamic.Interface) (*webLists, error) {
	config, err := from.connection.WatchConfig()
	if err != nil {
		return nil, err
	}
	watcher, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return newWebLists(ctx, client, watcher), nil
}

// serveWeb serves the page of this user until the context ends.
func serveWeb(ctx context.Context, deps Deps, from *sources, reader *webReader, flags *webFlags) error {
	var err error
	if reader.lists, err = watchLists(ctx, from, reader.api.Client); err != nil {
		return fmt.Errorf("web: %w", err)
	}
	reader.verb = verbWatch
	// A page that cannot read anything is not served.
	if _, err := reader.read(ctx); err != nil {
		return fmt.Errorf("web: %w", err)
	}
	listener, err := flags.listen(ctx)
	if err != nil {
		return err
	}
	defer listener.Close()
	access, err := web.NewAccess(listener.Addr())
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	page, err := reader.page(access, "")
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	fmt.Fprintf(deps.Out, "%s\n", access.Address())
	return serveUntil(ctx, listener, nil, page)
}

// serveUsers serves the page to users who sign in until the context ends.
func serveUsers(ctx context.Context, deps Deps, from *sources, flags *webFlags) error {
	config, err := from.connection.Config()
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	own, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	lists, err := watchLists(ctx, from, own)
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	users := &webUsers{from: from, server: rest.AnonymousClientConfig(config), lists: lists}
	listener, err := flags.listen(ctx)
	if err != nil {
		return err
	}
	defer listener.Close()
	scheme := "http"
	secure, err := flags.secure()
	if err != nil {
		return err
	}
	if secure != nil {
		scheme = "https"
	}
	page, err := web.NewSignIn(ctx, web.SignInDeps{
		Who: users.who, Page: users.page, Secure: flags.certFile != "", Source: users.server.Host,
		Log: slog.New(slog.NewTextHandler(deps.Err, nil)), Clock: clock.RealClock{},
		Sessions: flags.sessions,
	})
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	fmt.Fprintf(deps.Out, "%s://%s/\n", scheme, listener.Addr())
	return serveUntil(ctx, listener, secure, page)
}

func (f *webFlags) listen(ctx context.Context) (net.Listener, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", net.JoinHostPort(f.address, strconv.Itoa(f.port)))
	if err != nil {
		return nil, &hintError{fmt.Errorf("web: %w", err), "fix: choose another --port, or leave it out"}
	}
	return listener, nil
}

// secure returns the configuration with the certificate, or nil where there is none.
func (f *webFlags) secure() (*tls.Config, error) {
	if f.certFile == "" {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return nil, &hintError{fmt.Errorf("web: read the certificate: %w", err), "fix: give a certificate and its key as PEM files"}
	}
	// The files are read for each connection: a new certificate needs no restart. While they do not fit, the first one is used.
	read := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if next, err := tls.LoadX509KeyPair(f.certFile, f.keyFile); err == nil {
			return &next, nil
		}
		return &certificate, nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: read}, nil
}

// The limits of the page. Its users can have one address, that of a proxy or of kubectl port-forward, and a browser opens six connections.
// A header can have a token of 16 KiB, or the cookies of all that a machine serves on its loopback address.
const (
	webConnections = 512
	webPerAddress  = 64
	webHeader      = 24 << 10
)

// serveUntil serves the page, with TLS where secure is not nil, until the context ends.
func serveUntil(ctx context.Context, listener net.Listener, secure *tls.Config, page http.Handler) error {
	server := httpserver.New(httpserver.Options{
		Handler: page, TLS: secure, HeaderBytes: webHeader, RequestTime: time.Minute, Connections: webConnections, PerAddress: webPerAddress,
	})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("web: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), webShutdown)
	defer cancel()
	return errors.Join(server.Shutdown(end))
}

// page returns the page that shows what the reader reads.
func (r *webReader) page(access *web.Access, user string) (*web.Server, error) {
	return web.New(web.Deps{
		Read: r.read, Reasons: r.reasons, Samples: r.samples, Trace: r.traceText, Access: access, User: user, Source: r.api.REST.Get().URL().Host, Clock: clock.RealClock{},
	})
}

// webUsers are the users of a page to which they sign in.
type webUsers struct {
	from *sources
	// server is the API server without a user.
	server *rest.Config
	lists  *webLists
}

// as returns the API server for the user of a token.
func (u *webUsers) as(token string) *rest.Config {
	config := rest.CopyConfig(u.server)
	config.BearerToken = token
	config.QPS, config.Burst, config.Timeout, config.WarningHandler = webQPS, webBurst, webTimeout, rest.NoWarnings{}
	return config
}

// The requests of a user who is signed in: a page of many namespaces asks about each of them once a minute.
const (
	webQPS     = 200
	webBurst   = 400
	webTimeout = 10 * time.Second
)

// who asks the API server whose token it is.
func (u *webUsers) who(ctx context.Context, token string) (string, error) {
	client, err := dynamic.NewForConfig(u.as(token))
	if err != nil {
		return "", err
	}
	review := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": authenticationv1.SchemeGroupVersion.String(), "kind": "SelfSubjectReview",
	}}
	made, err := client.Resource(authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews")).Create(ctx, review, metav1.CreateOptions{})
	if apierrors.IsUnauthorized(err) {
		return "", web.ErrNoUser
	}
	if err != nil {
		return "", fmt.Errorf("ask the API server whose token it is: %w", err)
	}
	var found authenticationv1.SelfSubjectReview
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, &found); err != nil {
		return "", fmt.Errorf("read whose token it is: %w", err)
	}
	name := found.Status.UserInfo.Username
	if name == "" || name == "system:anonymous" {
		return "", web.ErrNoUser
	}
	return name, nil
}

// page returns the page of a user.
func (u *webUsers) page(ctx context.Context, token, user string) (http.Handler, error) {
	api, err := u.from.apiOf(u.as(token))
	if err != nil {
		return nil, err
	}
	reader := &webReader{api: api, now: time.Now, namespace: namespaceOf(user), ctx: ctx, lists: u.lists, verb: verbList}
	// Never the files of the machine that serves the page: they are not the user's.
	reader.collect = func(ctx context.Context, query trace.Query) (*trace.Trace, error) {
		own := *api
		own.Shows = reader.shows(ctx)
		return joinTrace(ctx, nil, &own, "", query, true)
	}
	return reader.page(nil, user)
}

// namespaceOf returns the namespace of a service account, or nothing for another user.
func namespaceOf(user string) string {
	rest, is := strings.CutPrefix(user, "system:serviceaccount:")
	if !is {
		return ""
	}
	namespace, _, _ := strings.Cut(rest, ":")
	return namespace
}

// samples reads the measurements of a node from its agent.
func (r *webReader) samples(ctx context.Context, node string) (*v1alpha1.GPUSamples, error) {
	object, err := r.api.Client.Resource(v1alpha1.GPUNodes()).Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var found v1alpha1.GPUNode
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &found); err != nil {
		return nil, fmt.Errorf("decode the GPUNode: %w", err)
	}
	return remoteSamples(ctx, r.api, &found)
}

// traceText returns what berth trace prints about a pod, NAMESPACE/NAME, or a GPU's UUID.
func (r *webReader) traceText(ctx context.Context, what string) (string, error) {
	query, err := parseQuery([]string{what}, 0, func() string { return r.namespace })
	if err != nil {
		return "", err
	}
	found, err := untilPublished(ctx, func() (*trace.Trace, error) { return r.collect(ctx, query) })
	if err != nil {
		return "", err
	}
	object := traceObject(found)
	// How many holders are not shown is said of the devices of this trace only.
	concerned := concernedBy(found)
	object.NotRead = slices.DeleteFunc(object.NotRead, func(n v1alpha1.TraceNotRead) bool {
		return n.Kind == trace.GPUNode && n.Field != "" && !concerned[gpu.UUID(n.Field)]
	})
	addWhy(ctx, r.api.Client, object, r.now())
	var text bytes.Buffer
	err = traceTable(&text, object)
	return text.String(), err
}

// concernedBy returns the devices of a trace, with the GPUs of its MIG devices.
func concernedBy(found *trace.Trace) map[gpu.UUID]bool {
	all := map[gpu.UUID]bool{}
	add := func(devices []trace.Device) {
		for i := range devices {
			all[devices[i].UUID], all[devices[i].Parent] = true, true
		}
	}
	add(found.Devices)
	for _, pod := range found.Pods {
		for i := range pod.Containers {
			add(pod.Containers[i].Devices)
		}
	}
	for i := range found.Claims {
		for _, device := range found.Claims[i].Devices {
			all[device.UUID] = true
		}
	}
	return all
}
