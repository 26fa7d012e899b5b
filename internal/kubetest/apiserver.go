package kubetest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// EnvAPIServer names the binary of kube-apiserver. The module in the directory apiserver
// builds it.
const EnvAPIServer = "SUBLET_KUBE_APISERVER"

// APIServer is a real kube-apiserver with its etcd, both on loopback, with the Node
// authorizer and the NodeRestriction admission plugin. There are no controllers: nothing
// makes service accounts, so that pods need automountServiceAccountToken: false, or none
// is required.
type APIServer struct {
	t    *testing.T
	dir  string
	host string
	ca   *authority
	// Stop ends kube-apiserver, and Start starts it again with the same data.
	process *exec.Cmd
	args    []string
}

// Start starts an API server, which is stopped at the end of the test. It skips the test if
// etcd or kube-apiserver is missing.
func Start(t *testing.T) *APIServer {
	t.Helper()
	return startFromEnv(t, "--disable-admission-plugins=ServiceAccount")
}

// StartWithServiceAccounts is Start with an API server that wants service accounts, and adds
// their pull secrets to pods.
func StartWithServiceAccounts(t *testing.T) *APIServer {
	t.Helper()
	return startFromEnv(t)
}

func startFromEnv(t *testing.T, flags ...string) *APIServer {
	t.Helper()
	binary := os.Getenv(EnvAPIServer)
	if binary == "" {
		t.Skipf("%s does not name a kube-apiserver; build one with internal/kubetest/apiserver/build.sh", EnvAPIServer)
	}
	return start(t, binary, flags...)
}

// start starts the kube-apiserver in binary with further flags.
func start(t *testing.T, binary string, flags ...string) *APIServer {
	t.Helper()
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("etcd is missing; install the package etcd-server")
	}
	s := &APIServer{t: t, dir: t.TempDir(), ca: newAuthority(t)}
	etcdURL, peerURL := "http://"+FreeAddress(t), "http://"+FreeAddress(t)
	s.run(exec.Command(etcd, "--data-dir", s.path("etcd"), "--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL,
		"--unsafe-no-fsync", "--log-level", "error"), "etcd.log")
	s.host = FreeAddress(t)
	_, port, err := net.SplitHostPort(s.host)
	require.NoError(t, err)

	s.write("ca.crt", s.ca.pem)
	cert, key := s.ca.issue("kube-apiserver", "")
	s.write("apiserver.crt", cert)
	s.write("apiserver.key", key)
	cert, key = s.ca.issue("kube-apiserver-kubelet-client", "system:masters")
	s.write("kubelet-client.crt", cert)
	s.write("kubelet-client.key", key)
	s.write("sa.key", newServiceAccountKey(t))
	s.args = append([]string{
		binary, "--etcd-servers=" + etcdURL, "--bind-address=127.0.0.1", "--secure-port=" + port, "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + s.path("sa.key"), "--service-account-signing-key-file=" + s.path("sa.key"),
		"--authorization-mode=Node,RBAC", "--client-ca-file=" + s.path("ca.crt"),
		"--tls-cert-file=" + s.path("apiserver.crt"), "--tls-private-key-file=" + s.path("apiserver.key"),
		"--kubelet-client-certificate=" + s.path("kubelet-client.crt"), "--kubelet-client-key=" + s.path("kubelet-client.key"),
		"--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
	}, flags...)
	s.StartServer()
	return s
}

// StopServer kills kube-apiserver. Its data stays.
func (s *APIServer) StopServer() {
	s.t.Helper()
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// StartServer starts kube-apiserver and waits until it is ready.
func (s *APIServer) StartServer() {
	s.t.Helper()
	s.process = exec.Command(s.args[0], s.args[1:]...)
	s.run(s.process, "apiserver.log")
	client := s.client("admin", "system:masters")
	require.Eventually(s.t, func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	}, 4*time.Minute, 100*time.Millisecond, "kube-apiserver is not ready: %s", s.logTail())
}

func (s *APIServer) logTail() string {
	raw, _ := os.ReadFile(s.path("apiserver.log")) // empty if it was not started
	return string(raw[max(0, len(raw)-2000):])
}

// Admin returns a client of a cluster administrator.
func (s *APIServer) Admin() kubernetes.Interface { return s.client("admin", "system:masters") }

// Node returns a client with the rights of a node.
func (s *APIServer) Node(name string) kubernetes.Interface {
	return s.client("system:node:"+name, "system:nodes")
}

// Config returns the configuration of a client of that user and group.
func (s *APIServer) Config(user, group string) *rest.Config {
	s.t.Helper()
	cert, key := s.ca.issue(user, group)
	return &rest.Config{
		Host: "https://" + s.host, QPS: 1000, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.pem, CertData: cert, KeyData: key},
	}
}

// CA returns the certificate of the cluster's authority, in PEM.
func (s *APIServer) CA() []byte { return s.ca.pem }

func (s *APIServer) client(user, group string) kubernetes.Interface {
	s.t.Helper()
	client, err := kubernetes.NewForConfig(s.Config(user, group))
	require.NoError(s.t, err)
	return client
}

func (s *APIServer) path(name string) string { return filepath.Join(s.dir, name) }

func (s *APIServer) write(name string, content []byte) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.path(name), content, 0o600))
}

// run starts a command that ends with the test, and with this process.
func (s *APIServer) run(cmd *exec.Cmd, log string) {
	s.t.Helper()
	out, err := os.OpenFile(s.path(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(s.t, err)
	cmd.Stdout, cmd.Stderr = io.Writer(out), out
	endWithParent(cmd)
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
	})
}

// FreeAddress returns a loopback address that no one listens on.
func FreeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test-ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{t: t, cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue returns a certificate and its key, in PEM, for clients and for servers on loopback and on other addresses.
func (a *authority) issue(user, group string, others ...net.IP) (cert, key []byte) {
	a.t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	subject := pkix.Name{CommonName: user}
	if group != "" {
		subject.Organization = []string{group}
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: append([]net.IP{net.IPv4(127, 0, 0, 1)}, others...), DNSNames: []string{"localhost"},
	}, a.cert, signer.Public(), a.key)
	require.NoError(a.t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(signer)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

func newServiceAccountKey(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}
