package server

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"k8s.io/streaming/pkg/httpstream/wsstream"
)

const (
	// bearerProtocol begins the subprotocol by which a browser, which cannot set headers of a
	// WebSocket, sends a bearer token. The token follows in base64.
	bearerProtocol  = "base64url.bearer.authorization.k8s.io."
	protocolsHeader = "Sec-Websocket-Protocol"
)

// errBearerProtocol says nothing of the token.
var errBearerProtocol = errors.New("invalid bearer token among the subprotocols")

// withBearerProtocol returns a request with the bearer token of its subprotocols in the header
// for it, as a kubelet and an API server take one. It is no subprotocol any more then: neither
// the client nor the runtime gets it back. An error has another request without it.
func withBearerProtocol(r *http.Request) (*http.Request, error) {
	protocols := strings.Join(r.Header[protocolsHeader], ",")
	if !strings.Contains(protocols, bearerProtocol) || !wsstream.IsWebSocketRequest(r) {
		return r, nil
	}
	var tokens, others []string
	for protocol := range strings.SplitSeq(protocols, ",") {
		protocol = strings.TrimSpace(protocol)
		if token, ok := strings.CutPrefix(protocol, bearerProtocol); ok {
			tokens = append(tokens, token)
		} else {
			others = append(others, protocol)
		}
	}
	out := r.WithContext(r.Context())
	out.Header = r.Header.Clone()
	out.Header.Set(protocolsHeader, strings.Join(others, ","))
	if len(tokens) == 0 {
		return out, nil
	}
	token, err := base64.RawURLEncoding.DecodeString(tokens[0])
	if err != nil || len(tokens) > 1 || len(others) == 0 || !utf8.Valid(token) {
		return out, errBearerProtocol
	}
	if out.Header.Get("Authorization") == "" && len(token) > 0 {
		out.Header.Set("Authorization", "Bearer "+string(token))
	}
	return out, nil
}
