// Package embedded is a CRI v1 container runtime inside the process: no daemon,
// no images on disk, no root.
//
// The Runtime has the state of sandboxes, containers, images, names and addresses,
// logs in CRI format, events, stats and filters, with the idempotence and the gRPC
// codes that the CRI documents. An Executor runs the containers:
//
//   - Simulated plays containers from scripts: duration, exit code, memory use,
//     handling of SIGTERM, hangs, answers to probes. It reads time from package time
//     only, so that thousands of containers can run for hours in a testing/synctest
//     bubble.
//   - HostProcess runs real processes in their own process groups, with exit
//     codes, signals, stdin, terminals, exec and logs, on Linux and in part on
//     macOS. It isolates almost nothing: a container has the machine as its user has
//     it. Run only trusted programs.
//
// There are two ways to call a Runtime, which may be combined: Dial returns an
// in-memory connection, Register adds the services to any *grpc.Server, such as one
// on a unix socket.
//
//	rt, err := embedded.New(embedded.Config{Executor: embedded.NewSimulated(embedded.SimulatedConfig{})})
//	if err != nil { … }
//	defer rt.Close()
//	cc, err := rt.Dial()
//	if err != nil { … }
//	defer cc.Close()
//	pods, err := v1.NewRuntimeServiceClient(cc).ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
//
// Images are records without files. Every valid reference can be pulled; a record in
// Config.Images sets the size, entrypoint, pull time, failures and script of one.
//
// There are no cgroups, network namespaces, capabilities and seccomp profiles.
// CheckpointContainer, CheckpointPod and RestorePod are Unimplemented.
package embedded
