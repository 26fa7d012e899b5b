// Package kubeauth authenticates and authorizes the clients of package server by a
// Kubernetes API server, as a kubelet does: tokens by TokenReview, rights by
// SubjectAccessReview.
//
//	clients, err := kubernetes.NewForConfig(config) // k8s.io/client-go
//	…
//	tokens, err := kubeauth.NewTokens(kubeauth.TokensConfig{Reviews: clients.AuthenticationV1().TokenReviews()})
//	…
//	access, err := kubeauth.NewAccess(kubeauth.AccessConfig{Reviews: clients.AuthorizationV1().SubjectAccessReviews()})
//	…
//	cfg.Authenticators, cfg.Authorizer = append(cfg.Authenticators, tokens), access
//
// Guarantees:
//
//   - An answer that the API server did not give is an error, so the client is denied.
//     Errors are not cached.
//   - Answers are cached for a time and in bounded memory. Invalid tokens and denied
//     rights have a cache of their own, so they do not displace valid ones.
//   - Concurrent equal questions are one request, which does not end with the client
//     that asked first. The number of concurrent requests is bounded.
//   - Tokens are neither logged nor kept: the cache has their hash.
package kubeauth
