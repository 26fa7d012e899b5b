// Package kube connects an agent to the API server of a cluster. It is the only
// package of the module that imports client-go.
//
// New takes a client and the name of the node and returns a Kube. Each of its methods
// returns a value for the interface of one component, so each can be used alone:
//
//   - Pods is a podsource.Source: the pods that are bound to the node.
//   - Statuses is a status.Sink and a status.Deleter: it patches the statuses of pods,
//     and deletes those that have ended.
//   - Node keeps the Node object and its lease.
//   - Objects has the ConfigMaps, Secrets, tokens, trust bundles and services of pods.
//   - Events is a recorder of Kubernetes events.
//
// Everything works with the rights that the Node authorizer and the NodeRestriction
// admission plugin leave to a node.
package kube
