package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/sublet-dev/agent/server"
)

// listenFlags are about the HTTP server, with the kubelet's names where it has them.
type listenFlags struct {
	addr, https      string
	tlsCert, tlsKey  string
	clientCA, tokens string
	inCluster        bool // the cluster decides about the clients of https
}

func (f *listenFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.addr, "listen", "127.0.0.1:10255", "host:port or unix:///path of /healthz, /pods, /problems, /conditions, /metrics, /stats/summary, /gc; empty: none. Default with -config: its healthzBindAddress and healthzPort")
	fs.StringVar(&f.https, "listen-https", "", "host:port of the kubelet's API, by TLS: logs, exec, attach, port-forward and all of -listen. Default with -kubeconfig: "+kubeletAddr+", where the cluster decides what clients may do. Without it, clients that are authenticated may use all of it")
	fs.StringVar(&f.tlsCert, "tls-cert-file", "", "certificate of -listen-https or, without it, of -listen, which then can be an address that other machines reach; PEM. Default with -kubeconfig: one that the cluster signs")
	fs.StringVar(&f.tlsKey, "tls-private-key-file", "", "private key of -tls-cert-file, PEM")
	fs.StringVar(&f.clientCA, "client-ca-file", "", "CA certificates, PEM: clients with a certificate that one of them signed are authenticated")
	fs.StringVar(&f.tokens, "token-auth-file", "", "file with one bearer token: clients that send it are authenticated. It is read for each request, so that it can be replaced")
}

// check checks the flags. -kube-api may use the certificate, too.
func (f *listenFlags) check(kubeAPI bool, fail func(bad bool, format string, args ...any)) {
	isTLS, authenticates := f.tlsCert != "" || f.tlsKey != "", f.clientCA != "" || f.tokens != ""
	if f.https != "" {
		_, _, err := net.SplitHostPort(f.https)
		fail(err != nil, "-listen-https %q: must be host:port", f.https)
		fail(!isTLS && !f.inCluster, "-listen-https %q: give -tls-cert-file and -tls-private-key-file", f.https)
		fail(f.inCluster && f.tokens != "", "-token-auth-file: tokens of clients are reviewed by the cluster of -kubeconfig; remove it")
		fail(!authenticates && !f.inCluster, "-listen-https %q: give -client-ca-file or -token-auth-file, so that not every client can enter containers", f.https)
		isTLS, authenticates = false, false // of -listen
	}
	socket, isSocket := strings.CutPrefix(f.addr, "unix://")
	fail((f.tlsCert == "") != (f.tlsKey == ""), "-tls-cert-file and -tls-private-key-file: give both or none")
	fail(authenticates && !isTLS, "-client-ca-file and -token-auth-file need -tls-cert-file and -tls-private-key-file: a token is not sent in plain text")
	switch {
	case f.addr == "":
		fail(isTLS && !kubeAPI || authenticates, "-tls-cert-file, -client-ca-file and -token-auth-file have no effect without -listen or -listen-https")
	case isSocket:
		fail(!strings.HasPrefix(socket, "/"), "-listen %q: must be unix:///path", f.addr)
		fail(isTLS || authenticates, "-listen %q: TLS is for host:port; only the user of the agent can connect to a socket", f.addr)
	default:
		_, _, err := net.SplitHostPort(f.addr)
		fail(err != nil, "-listen %q: must be host:port or unix:///path", f.addr)
		const reach = "-listen %q: other machines can reach this address; "
		exposed := err == nil && !isLoopback(f.addr)
		fail(exposed && !isTLS, reach+"give -tls-cert-file and -tls-private-key-file, and -client-ca-file or -token-auth-file, or listen on 127.0.0.1 or unix:///path", f.addr)
		fail(exposed && isTLS && !authenticates, reach+"give -client-ca-file or -token-auth-file, so that not every client can read the pods", f.addr)
	}
}

// kubeletAddr is where an API server expects the kubelet's API of its nodes.
const kubeletAddr = ":10250"

// joinCluster sets the defaults for a node of a cluster.
func (f *listenFlags) joinCluster(fs *flag.FlagSet) {
	f.inCluster = true
	given := false
	fs.Visit(func(g *flag.Flag) { given = given || g.Name == "listen-https" })
	if !given {
		f.https = kubeletAddr
	}
}

// isLoopback reports whether only this machine can reach a host:port.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip, errIP := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || errIP == nil && ip.IsLoopback())
}

// configure sets address, TLS and authentication of the server of -listen.
func (f *listenFlags) configure(cfg *server.Config) error {
	cfg.Addr = f.addr
	if f.tlsCert == "" || f.https != "" {
		return nil
	}
	return f.configureTLS(cfg)
}

// configureHTTPS makes cfg that of the kubelet's API.
func (f *listenFlags) configureHTTPS(cfg *server.Config) error {
	cfg.Addr = f.https
	cfg.Authorizer = server.AuthorizerFunc(func(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
		return true, nil
	})
	return f.configureTLS(cfg)
}

// configureTLS sets TLS, if the certificate is given, and authentication. It reads the
// files once, so that a mistake in them is an error at the start.
func (f *listenFlags) configureTLS(cfg *server.Config) error {
	if f.tlsCert != "" {
		certs, err := server.CertificateFiles{Cert: f.tlsCert, Key: f.tlsKey, Logger: cfg.Logger}.TLS()
		if err != nil {
			return fmt.Errorf("-tls-cert-file, -tls-private-key-file: %w", err)
		}
		cfg.TLS = certs
	}
	cfg.AllowNonLoopback = !isLoopback(cfg.Addr)
	if f.clientCA != "" {
		clients := &server.ClientCertificates{CAFile: f.clientCA, Logger: cfg.Logger}
		if err := clients.Check(); err != nil {
			return fmt.Errorf("-client-ca-file: %w", err)
		}
		cfg.Authenticators = append(cfg.Authenticators, clients)
	}
	if f.tokens == "" {
		return nil
	}
	if _, err := readToken(f.tokens); err != nil {
		return fmt.Errorf("-token-auth-file: %w", err)
	}
	cfg.Authenticators = append(cfg.Authenticators, server.AuthenticatorFunc(func(r *http.Request) (*authenticationv1.UserInfo, error) {
		return checkToken(r, f.tokens)
	}))
	return nil
}

// maxTokenBytes bounds a token file.
const maxTokenBytes = 64 << 10

func readToken(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	b, err := io.ReadAll(io.LimitReader(file, maxTokenBytes))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\n") {
		return "", fmt.Errorf("%s: must contain one token", path)
	}
	return token, nil
}

// errUnauthorized does not say what was wrong with a token.
var errUnauthorized = errors.New("invalid bearer token")

// checkToken compares in constant time.
func checkToken(r *http.Request, path string) (*authenticationv1.UserInfo, error) {
	scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, nil //nolint:nilnil // no token, no user
	}
	want, err := readToken(path)
	if err != nil {
		return nil, err
	}
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return nil, errUnauthorized
	}
	return &authenticationv1.UserInfo{Username: "token"}, nil
}
