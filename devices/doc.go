// Package devices allocates the devices of a node to containers: what the kubelet's device
// manager does. Devices come from plugins: vendors' processes that speak the device plugin
// API (package deviceplugin connects them), or a Plugin of your own in the same process.
//
// A Manager is used from three places. Inject allocates the devices of a container when the
// pod is synced, and returns what the container gets: device nodes, mounts, environment
// variables, CDI names. Capacity and Allocatable are for the status of the node, and for an
// admitter, which rejects a pod that wants more than is free (package admission). Hints and
// Reserve have the devices of a container near to its CPUs (package topology).
//
// A pod keeps its devices until it has ended. Allocations are stored in a file, so that
// they survive a restart of the agent and of the plugins: a running container is neither
// restarted nor does another one get its device.
// A container that is started again, also after a boot, gets others for devices that its
// plugin does not list any more, and, if enough are free, for unhealthy ones.
package devices
