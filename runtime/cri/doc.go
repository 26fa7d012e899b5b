// Package cri carries out runtime plans over the Container Runtime Interface,
// version 1. gRPC stops here: what comes in and goes out are the types of
// packages runtime and podspec.
//
//	cc, err := cri.Dial("unix:///run/containerd/containerd.sock")
//	…
//	client, err := cri.New(cc, cri.Config{Logger: logger})
//	…
//	seen, err := client.Pod(ctx, pod.UID)
//	plan := runtime.Plan(pod, runtime.View{Pod: seen}, time.Now())
//	applied := client.Apply(ctx, pod, plan, materials)
//
// A Client promises:
//
//   - Every call has a deadline, and an error that names the call, matches the
//     sentinels of package runtime and keeps its gRPC status. Only Watch, which
//     follows the event stream, may be silent for ever.
//   - What a runtime holds tells another process all that this one knew:
//     identity, attempt, hash, grace period and back-off of each container are
//     in labels and annotations, under the kubelet's keys where it has one.
//   - The answer to a call may be lost, but not its effect: a sandbox or
//     container that turns out to be there already is taken over, or removed if
//     it is of no use, and the name used again.
//   - An inspection asks for nothing that cannot have changed.
//
// # Starting
//
// Apply goes through a plan in its order. Images are fetched from the beginning
// on, while containers are ended and the sandbox is made: each reference once
// however many pods wait for it, few at a time, with back-off, and cancelled
// when nobody waits any more. How many pods may be in the middle of their start
// at a time follows the throughput that the machine shows; slots go to the pod
// that has waited longest, so that pods are finished rather than all begun. A
// pod that waits, for an image or a hook, gives its slot back meanwhile, and a
// call that hangs does not keep its slot. Ends of pods wait for nobody.
//
// # Ending
//
// Kill follows runtime.PlanTermination: stage by stage, each container's preStop
// hook inside its grace period. Remove removes what is dead.
//
// # Files
//
// A Client writes two kinds of file below Materials.Dir: the hosts file of the pod,
// and one file a container for its termination message. ImageAccess.File is a third.
//
// # Debug pages
//
// gRPC's import puts /debug/requests and /debug/events on http.DefaultServeMux, as
// in every program that has it. Build with the tag grpcnotrace to do without, or
// serve another mux.
//
// # Secrets
//
// Logins of pull secrets go to the runtime and nowhere else. Whatever a runtime
// or registry says about a pull is cleansed of them before it becomes an error.
package cri
