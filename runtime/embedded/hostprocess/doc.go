// Package hostprocess is an executor of the embedded runtime that runs containers as
// processes of this machine, in process groups of their own, with exit codes, signals,
// stdin, terminals, exec and logs, on Linux and in part on macOS.
//
//	rt, err := embedded.New(embedded.Config{Executor: hostprocess.New(hostprocess.Config{Root: "/var/lib/edge-containers"})})
//
// It isolates almost nothing: a container can do on the machine what its user can do. Run only
// trusted programs. [Executor] says what is isolated and how the processes of a container
// are found again.
package hostprocess
