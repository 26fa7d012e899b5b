// Package dra gives containers the devices of ResourceClaims: the node's side of Kubernetes'
// Dynamic Resource Allocation. It speaks the kubelet's API of DRA drivers
// (k8s.io/kubelet/pkg/apis/dra/v1) and corresponds to pkg/kubelet/cm/dra.
//
// Which devices a claim has was decided before: by the scheduler of a cluster, or by the author
// of a claim beside the manifests of a node without one. A Manager has the drivers prepare the
// claims of a pod before its first container is created, adds the CDI devices that they name to
// the containers, and has the claims released after the containers of the last pod that uses
// them have ended, and before that pod is reported as Succeeded or Failed: from then on the
// cluster gives the devices to others. A claim that the scheduler has made for the extended
// resources of a pod is one of its claims.
//
// The health of prepared devices is reported in the status of their pods (KEP-4680), if the driver
// registers with the API for it (k8s.io/kubelet/pkg/apis/dra-health, v1 or v1alpha1). It is unknown
// until the driver reports it, and becomes so when the driver has not reported a device for the
// timeout that it gave, or 30 seconds. The size of reports is bounded, and so is how often they can
// have a pod synced.
//
// A Manager is a pluginregistry.Handler, which gets the drivers, a podsync.Injector and a podsync.HealthReporter. What
// was prepared is stored in a file before it is used, so that nothing stays prepared that no
// pod needs, whatever is restarted. A driver that hangs delays the pods of its claims alone.
package dra
