// Package credentialprovider finds the logins of a node for image pulls: in the
// configuration file of Docker's client, and by the credential provider plugins of the
// kubelet (KEP-2133), which are programs that answer on their standard output. Plugins that
// want a token of the pod's service account (tokenAttributes, KEP-4412) get it in a cluster.
package credentialprovider
