package kubetest

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// StartCluster starts a control plane: an API server, which wants service accounts too, the
// controllers and the scheduler. programs is the directory of kube-apiserver,
// kube-controller-manager and kube-scheduler. The end of the test stops all of it.
func StartCluster(t *testing.T, programs string) *APIServer {
	t.Helper()
	s := start(t, filepath.Join(programs, "kube-apiserver"))
	key, err := x509.MarshalPKCS8PrivateKey(s.ca.key)
	require.NoError(t, err)
	s.write("ca.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	kubeconfig := "--kubeconfig=" + s.Kubeconfig("admin", "system:masters")
	s.run(exec.Command(filepath.Join(programs, "kube-controller-manager"), kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file="+s.path("sa.key"), "--root-ca-file="+s.path("ca.crt"),
		"--cluster-signing-cert-file="+s.path("ca.crt"), "--cluster-signing-key-file="+s.path("ca.key")), "controller-manager.log")
	s.run(exec.Command(filepath.Join(programs, "kube-scheduler"), kubeconfig, "--leader-elect=false", "--secure-port=0"), "scheduler.log")
	return s
}

// Kubeconfig writes a kubeconfig of that user and group, and returns its path.
func (s *APIServer) Kubeconfig(user, group string) string {
	s.t.Helper()
	const name = "test"
	cert, key := s.ca.issue(user, group)
	file := s.path(user + ".kubeconfig")
	require.NoError(s.t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: "https://" + s.host, CertificateAuthorityData: s.ca.pem}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, file))
	return file
}

// Certificate writes a certificate and its key for clients and for servers on loopback and on other addresses, and returns their paths.
func (s *APIServer) Certificate(user, group string, others ...net.IP) (cert, key string) {
	s.t.Helper()
	certPEM, keyPEM := s.ca.issue(user, group, others...)
	s.write(user+".crt", certPEM)
	s.write(user+".key", keyPEM)
	return s.path(user + ".crt"), s.path(user + ".key")
}

// CAFile returns the path of the certificate of the cluster's authority.
func (s *APIServer) CAFile() string { return s.path("ca.crt") }
