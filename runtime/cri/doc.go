// Package cri executes runtime plans over the Container Runtime Interface, version 1.
// It is the only package that imports gRPC for it: its API uses the types of packages
// runtime and podspec.
//
//	cc, err := cri.Dial("unix:///run/containerd/containerd.sock")
//	…
//	client, err := cri.New(cc, cri.Config{Logger: logger})
//	…
//	observed, err := client.Pod(ctx, pod.UID)
//	plan := runtime.Plan(pod, runtime.PlanInput{Pod: observed}, time.Now())
//	result := client.Apply(ctx, pod, plan, options)
//
// Guarantees:
//
//   - Every call has a deadline, and an error that names the call, matches the
//     sentinels of package runtime and keeps its gRPC status. Only Watch, which
//     follows the event stream, has none.
//   - No state is lost with the process: identity, attempt, hash, grace period and
//     back-off of each container are in labels and annotations, under the kubelet's
//     keys where it has one.
//   - A lost response is harmless: a sandbox or container that exists already is
//     adopted, or removed if it cannot be used, and its name is used again.
//   - An inspection does not query what cannot have changed.
//   - Each change of a sandbox, container or image is logged once, with its pod.
//
// # Starting
//
// Apply executes a plan in order. Images are fetched from the beginning on, while
// containers are killed and the sandbox is created: each reference once regardless of
// how many pods wait for it, few in parallel, with back-off, and cancelled without a
// waiter. The number of pods that start in parallel follows the measured throughput of
// the machine. Slots go to the pod that has waited longest, so that pods complete their
// start one after the other. A pod that waits for an image or a hook releases its slot,
// and a call that hangs loses it. Terminations need no slot.
//
// # Termination
//
// Kill follows runtime.PlanTermination: all preStop hooks begin at once, inside the grace
// period, and the stop signals follow stage by stage. Remove removes exited containers and
// stopped sandboxes.
//
// # Files
//
// A Client writes two kinds of file below RunOptions.Dir: the hosts file of the pod,
// and one file per container for its termination message. ImageAccess.File is a third.
//
// # Debug pages
//
// gRPC's import puts /debug/requests and /debug/events on http.DefaultServeMux, as
// in every program that has it. Build with the tag grpcnotrace to do without, or
// serve another mux.
//
// # Secrets
//
// Credentials of pull secrets are sent to the runtime only. They are removed from the
// messages of the runtime and the registry before these become errors. The command of a
// lifecycle hook and its output are in the Failure of its container, and not in events and
// logs.
package cri
