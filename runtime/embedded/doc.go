// Package embedded is a CRI v1 container runtime inside the process: no daemon,
// no images on disk, no root.
//
// The Runtime has the state of sandboxes, containers, images, names and addresses,
// logs in CRI format, events, stats and filters, with the idempotence and the gRPC
// codes that the CRI documents. An Executor runs the containers:
//
//   - Package simulated plays containers from scripts, without processes, also for hours
//     in a testing/synctest bubble.
//   - Package hostprocess runs real processes of this machine, and isolates almost
//     nothing.
//   - Or write one: an Executor has three methods, and capabilities that it may have.
//
// There are two ways to call a Runtime, which may be combined: Dial returns an
// in-memory connection, Register adds the services to any *grpc.Server, such as one
// on a unix socket.
//
//	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
//	if err != nil { … }
//	defer rt.Close()
//	cc, err := rt.Dial()
//	if err != nil { … }
//	defer cc.Close()
//	pods, err := v1.NewRuntimeServiceClient(cc).ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
//
// Images are records without files. Every valid reference can be pulled; a record in
// Config.Images sets the size, entrypoint, pull time and failures of one.
//
// There are no cgroups, network namespaces, capabilities and seccomp profiles.
// CheckpointContainer, CheckpointPod and RestorePod are Unimplemented.
package embedded
