// Package kubeapi serves a node alone as a Kubernetes API with one node, so that an
// unmodified kubectl can look into its pods and change them without a cluster.
//
//	creds, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: dir, Addr: "127.0.0.1:6443"})
//	…
//	api, err := kubeapi.New(kubeapi.Config{NodeName: "edge-1", Pods: agent.Pods, Watch: agent.Watch, Operator: agent.Operator})
//	…
//	srv, err := server.New(server.Config{
//		Addr: "127.0.0.1:6443", TLS: creds.TLS(), Authenticators: []server.Authenticator{creds},
//		Authorizer: kubeapi.AllowAll(), NodeName: "edge-1", KubeAPI: api,
//		Pods: agent.Pods, Logs: agent, Streams: agent,
//	})
//
// The API, the credentials and the server have a Run each, which belongs beside that of the
// agent. Then kubectl --kubeconfig DIR/kubeconfig get pods works. The API serves:
//
//   - pods, with their logs, exec, attach and port-forward, by the handlers of package
//     server; the node and its lease; events, with an Events as the recorder of the agent; namespaces,
//     which are those of the pods; ConfigMaps; and the usage of pods and the node, for
//     kubectl top. There are no Services, and Secrets are not served.
//   - get, list and watch with label and field selectors, as objects or as the tables
//     that kubectl prints.
//   - delete. A static pod is restarted, and returns with another UID, like a mirror
//     pod. A pod of a Store is terminated within its grace period and removed.
//   - with a Store: create, update and patch of pods, ephemeral containers and resizes
//     among them. The Store is a source of pods, and keeps them on disk. Server-side apply
//     is not supported.
//   - discovery, OpenAPI, and reviews of one's own rights, as kubectl uses them.
//
// Guarantees:
//
//   - All errors are Status objects with the reason and the code of an API server.
//   - What a client did not ask for is not changed: a UID or a resource version in a
//     request is a precondition, unknown fields are an error if the client wants that,
//     and impersonation is rejected instead of ignored.
//   - A client gets the codes, reasons and fields of an API server of Kubernetes 1.37. Other than
//     that, responses are JSON and not compressed, tables are of meta.k8s.io/v1, watches are no
//     WebSockets, lists are complete whatever their limit is, options of a deletion in the query
//     count beside those in the body, an update without a nodeName keeps it, and a subresource
//     rejects changes that an API server ignores.
//   - A watcher that is too slow is disconnected with status 410, and starts again with
//     a list. The memory of a watch is bounded, and lists are encoded one object at a time.
package kubeapi
