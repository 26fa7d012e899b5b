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
//   - Objects has the ConfigMaps, Secrets, tokens, trust bundles, certificates and services
//     of pods.
//   - Storage has their claims and volumes, for packages volume and csi, and writes the CSINode.
//   - ResourceClaim and ResourceSlices are for package dra.
//   - Events is a recorder of Kubernetes events.
//   - ServingCertificate is that of the server of the node, signed by the cluster.
//
// NodeOptions has the options of an agent with Pods, Statuses, Node, Objects and Events;
// Options leaves out Node and Objects.
//
// Everything works with the rights that the Node authorizer and the NodeRestriction
// admission plugin leave to a node.
package kube
