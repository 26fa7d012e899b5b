// Package server serves a node over HTTP: the API of a kubelet, which a Kubernetes API
// server, kubectl, metrics-server and Prometheus use, and /problems.
//
//	cfg, err := server.CertificateFiles{Cert: "tls.crt", Key: "tls.key"}.TLS()
//	…
//	srv, err := server.New(server.Config{
//		Addr: ":10250", AllowNonLoopback: true, TLS: cfg, NodeName: "node-1",
//		Authenticators: []server.Authenticator{&server.ClientCertificates{CAFile: "client-ca.crt"}},
//		Authorizer:     authorizer,
//		Pods:           agent.Pods,
//	})
//	…
//	err = srv.Run(ctx)
//
// Guarantees:
//
//   - Paths, methods, query parameters, status codes and content types are the
//     kubelet's. Those that Config does not provide for respond with status 405.
//   - Without TLS, authentication and authorization it serves neither values of
//     environment variables nor logs nor a way to change or enter a container, but for
//     a socket of this user with Config.TrustSocketClients. Addresses other than
//     loopback and sockets need Config.AllowNonLoopback. Without it, requests on
//     loopback whose Host header is not localhost or an IP address are rejected, which
//     prevents DNS rebinding.
//   - No client is anonymous unless Config says so. What cannot be authenticated or
//     authorized, because a webhook is down or for any other reason, is denied. Rights
//     are the kubelet's: subresources of nodes. Entering a container takes the right to
//     create nodes/proxy also when the request is a GET.
//   - A page that a browser has from another origin can neither change something nor
//     enter a container with the certificate of the browser's user: by Sec-Fetch-Site or
//     Origin such requests have status 403. This includes Config.Handlers and
//     Config.KubeAPI, but not a handler that changes something by GET.
//   - The URLs of the runtime's streaming server never leave the node.
//   - The channels of a WebSocket share a connection without flow control, as those of SPDY
//     do. While a command does not read its stdin, and more of it was sent than fits into
//     the buffers in between, neither a new size of the terminal nor the end of stdin
//     reaches the command; its output reaches the client. kubectl ends such a session
//     after a minute. That the client is gone is noticed within seconds with version 5 of
//     the protocol, which kubectl uses, otherwise at the idle timeout of the runtime.
//   - The resources that clients use are bounded: connections, streams, sizes and times.
//     A client that stalls costs one connection. Equal requests of metrics, or of
//     /stats/summary, that come at once share one measurement.
//
// Package server/kubeauth authenticates and authorizes by a Kubernetes API server.
package server
