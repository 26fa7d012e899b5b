// Package embedded is a CRI v1 container runtime inside the process: no daemon,
// no images on disk, no root.
//
// One core keeps the books: sandboxes, containers, images, names, addresses,
// logs in CRI format, events, stats and filters, with the idempotence and the
// gRPC codes that the comments of the CRI demand. What a container is, an
// Executor decides:
//
//   - Simulated plays containers from scripts: run so long, exit with this, use
//     so much memory, ignore TERM, hang, answer probes like this. It uses package
//     time alone, so that thousands of containers live for hours in a
//     testing/synctest bubble.
//   - HostProcess runs real processes in their own process groups, with exit
//     codes, signals, stdin, terminals, exec and logs, on Linux and in part on
//     macOS. It isolates next to nothing: a container sees the machine as its user
//     does. Run only what you trust.
//
// A Runtime is reached in two ways, which may be mixed: Dial gives a connection
// that never leaves the process, Register puts the services on any
// *grpc.Server, such as one on a unix socket.
//
//	rt, err := embedded.New(embedded.Config{Executor: embedded.NewSimulated(embedded.SimulatedConfig{})})
//	if err != nil { … }
//	defer rt.Close()
//	cc, err := rt.Dial()
//	if err != nil { … }
//	defer cc.Close()
//	pods, err := v1.NewRuntimeServiceClient(cc).ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
//
// Images are records. Every well-formed reference can be pulled; a record in
// Config.Images gives a reference its size, entrypoint, pull time, failures and
// script.
//
// What needs a kernel's isolation is left out: no cgroups, no network
// namespaces, no capabilities, no seccomp. CheckpointContainer, CheckpointPod
// and RestorePod are Unimplemented, since there is no process image to write.
package embedded
