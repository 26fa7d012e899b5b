// Command nodeagent is the whole agent as a daemon: static pods from a directory or
// a URL and, with -kubeconfig, the pods of a cluster, on a CRI runtime. Flags have the
// kubelet's names; a flag of the kubelet that is not supported is an error that says what
// to use instead.
//
//	nodeagent -manifests /etc/sublet/manifests -runtime-endpoint unix:///run/containerd/containerd.sock
//
// While it runs, its commands show and change the pods, by a socket in the root directory:
//
//	nodeagent get | logs | exec | attach | port-forward | restart | evict | drain
//
// SIGTERM stops the agent. Pods keep running and the next agent adopts them; with
// -drain they are terminated first. SIGHUP reads -config and -config-dir again: what can change changes at once, such as the
// verbosity of the log, soft thresholds of eviction and periods of a shutdown (packaging/README.md has all); of other changes
// the log says that they need a restart.
//
// Exit codes: 0 after a clean stop, 1 if the agent failed, 2 after a crash or by the watchdog, 3 if another agent has
// -root-dir, 4 if -root-dir has lost the id of the owner of its pods, 64 for invalid flags or configuration. A restart does not
// help after 4 and 64.
//
// As a service of systemd (Type=notify) it reports when it is ready, feeds the watchdog while its loops move, and its log
// has priorities in the journal. See packaging for the unit and a Debian package.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && commands()[os.Args[1]] != nil {
		os.Exit(execute(os.Args[1], os.Args[2:]))
	}
	f, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "nodeagent: %v\n", err)
		os.Exit(exitUsage)
	case f.version:
		fmt.Println(version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP)
	f.daemon.reloads = reloads
	if err := run(ctx, f, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "nodeagent: %v%s\n", err, advice(err, os.Geteuid()))
		os.Exit(exitCode(err))
	}
}

// version is that of the module, as the Go toolchain recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "nodeagent, version unknown"
	}
	return "nodeagent " + info.Main.Version + " " + info.GoVersion
}

// advice returns what an ordinary user can do about an error.
func advice(err error, uid int) string {
	if uid == 0 || !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	return "; run nodeagent as root or, for simulated pods, give -root-dir and -pod-logs-dir that this user can write to"
}
