// Package podstream is a client for the streaming server of a container runtime, or for
// one that forwards to it: exec, attach and port-forward by the URL that the runtime
// returned. It speaks SPDY with the protocol v4.channel.k8s.io, as crictl does.
//
//	u, err := client.ExecURL(ctx, containerID, []string{"sh", "-c", "exit 3"}, runtime.Streams{Stdout: true})
//	...
//	err = new(podstream.Client).Stream(ctx, u, podstream.Options{Stdout: os.Stdout})
//	var exit podstream.ExitError
//	errors.As(err, &exit) // exit.Code is 3
package podstream
