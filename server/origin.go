package server

import "net/http"

// acts reports whether a request may change something, or enter a container, as an upgrade
// does by GET.
func acts(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return r.Header.Get("Upgrade") != ""
	}
	return true
}

// foreign reports whether a browser sends a request for a page of another origin, which
// it does with the certificate of its user and, for a WebSocket or a form, without asking
// the server first. Clients other than browsers send no such headers.
func foreign(r *http.Request) bool {
	// The proxy of an API server passes the headers of its client on, for whose origin it
	// answers, and adds this one. A page cannot: a WebSocket, a form and a fetch without
	// CORS have no such header, and for one with CORS the browser asks first.
	if r.Header.Get("X-Forwarded-For") != "" {
		return false
	}
	change := *r
	change.Method = http.MethodPost // of an upgrade, too, which begins with GET
	return http.NewCrossOriginProtection().Check(&change) != nil
}

// fromPage responds with an error if a request is foreign.
func fromPage(w http.ResponseWriter, r *http.Request) bool {
	if !foreign(r) {
		return false
	}
	http.Error(w, "requests of web pages of other origins are not allowed", http.StatusForbidden)
	return true
}
