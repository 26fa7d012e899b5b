package kubeapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// How long certificates are valid, and when they are renewed. A new CA needs a new
// kubeconfig, which copies of it elsewhere do not have.
const (
	caValidity   = 10 * 365 * 24 * time.Hour
	certValidity = 365 * 24 * time.Hour
	clockSkew    = time.Hour // of clients, and of a node whose clock is set after its start
)

// pair is a certificate and its key.
type pair struct {
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	certPEM, keyPEM []byte
}

// readPair reads a pair from files.
func readPair(certFile, keyFile string) (pair, error) {
	var p pair
	var err error
	if p.certPEM, err = os.ReadFile(certFile); err != nil { //nolint:gosec // of our own directory
		return p, err
	}
	if p.keyPEM, err = os.ReadFile(keyFile); err != nil { //nolint:gosec // of our own directory
		return p, err
	}
	both, err := tls.X509KeyPair(p.certPEM, p.keyPEM)
	if err != nil {
		return p, err
	}
	key, ok := both.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return p, x509.ErrUnsupportedAlgorithm
	}
	p.cert, p.key = both.Leaf, key
	return p, nil
}

// expiresSoon reports whether less than a third of the validity is left.
func expiresSoon(cert *x509.Certificate, validity time.Duration, now time.Time) bool {
	return now.After(cert.NotAfter.Add(-validity / 3))
}

// covers reports whether a certificate is for the host of an address.
func covers(cert *x509.Certificate, addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "" || cert.VerifyHostname(host) == nil)
}

// newCA makes a CA. It has always been valid, so that a clock that is wrong, as that of a board
// that starts in 1970, is no reason to replace it.
func newCA(name string, now time.Time) (pair, error) {
	return pair{}.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "sublet CA of " + name}, NotBefore: time.Unix(0, 0), NotAfter: now.Add(caValidity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	})
}

// issue makes a certificate for a server on an address and on loopback.
func (ca pair) issue(addr string, now time.Time) (pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "sublet"}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(certValidity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, BasicConstraintsValid: true,
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return pair{}, err
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = append(template.IPAddresses, ip)
	} else if host != "" && host != "localhost" {
		template.DNSNames = append(template.DNSNames, host)
	}
	return ca.sign(template)
}

// sign signs a certificate with a new key; without a CA, with the new key itself.
func (ca pair) sign(template *x509.Certificate) (p pair, err error) {
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return p, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return p, err
	}
	parent, key := ca.cert, ca.key
	if parent == nil {
		parent, key = template, p.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, p.key.Public(), key)
	if err != nil {
		return p, err
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		return p, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return p, err
	}
	p.certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	p.keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
	return p, nil
}

// endpoint returns the address in the kubeconfig and, if the certificate is not for that, a name that it is for. A
// server that listens on all addresses is reached by loopback, from this machine.
func (c *Credentials) endpoint() (addr, tlsName string) {
	host, port, err := net.SplitHostPort(c.cfg.Addr)
	if ip := net.ParseIP(host); err != nil || host != "" && (ip == nil || !ip.IsUnspecified()) {
		return c.cfg.Addr, ""
	}
	host = "127.0.0.1"
	return net.JoinHostPort(host, port), c.nameFor(host)
}

// nameFor returns a name that Config.Certificates are for, or "" if they are for the host, or not given.
func (c *Credentials) nameFor(host string) string {
	if c.cfg.Certificates.Cert == "" {
		return ""
	}
	pair, err := c.tls.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil || pair.Leaf.VerifyHostname(host) == nil {
		return ""
	}
	switch cert := pair.Leaf; {
	case len(cert.DNSNames) > 0:
		return strings.Replace(cert.DNSNames[0], "*", "node", 1) // a wildcard is for any
	case len(cert.IPAddresses) > 0:
		return cert.IPAddresses[0].String()
	}
	return ""
}

// kubeconfig returns the file with which kubectl connects.
func (c *Credentials) kubeconfig(ca []byte) []byte {
	name := c.cfg.NodeName
	addr, tlsName := c.endpoint()
	cluster := map[string]any{"server": "https://" + addr}
	if tlsName != "" {
		cluster["tls-server-name"] = tlsName
	}
	if ca != nil {
		cluster["certificate-authority-data"] = base64.StdEncoding.EncodeToString(ca)
	}
	b, _ := yaml.Marshal(map[string]any{ // it has strings, maps and lists only
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": cluster}},
		"users":    []any{map[string]any{"name": OwnerName, "user": map[string]any{"token": c.token}}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": OwnerName}}},
	})
	return b
}
