// Package signals has the signals of the CRI. Their numbers are those of Linux on every
// system.
package signals

import (
	"iter"
	"maps"
	"syscall"
)

// Signals that a process without a handler ignores.
const (
	SIGCHLD  syscall.Signal = 17
	SIGCONT  syscall.Signal = 18
	SIGURG   syscall.Signal = 23
	SIGWINCH syscall.Signal = 28
)

// Number returns the number of the signal that is called name, such as SIGTERM.
func Number(name string) (syscall.Signal, bool) {
	n, ok := numbers()[name]
	return n, ok
}

// All returns the names and numbers of all signals. Some numbers have two names.
func All() iter.Seq2[string, syscall.Signal] { return maps.All(numbers()) }

func numbers() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"SIGABRT": 6, "SIGALRM": 14, "SIGBUS": 7, "SIGCHLD": SIGCHLD, "SIGCLD": SIGCHLD, "SIGCONT": SIGCONT, "SIGFPE": 8, "SIGHUP": 1,
		"SIGILL": 4, "SIGINT": 2, "SIGIO": 29, "SIGIOT": 6, "SIGKILL": 9, "SIGPIPE": 13, "SIGPOLL": 29, "SIGPROF": 27,
		"SIGPWR": 30, "SIGQUIT": 3, "SIGSEGV": 11, "SIGSTKFLT": 16, "SIGSTOP": 19, "SIGSYS": 31, "SIGTERM": 15,
		"SIGTRAP": 5, "SIGTSTP": 20, "SIGTTIN": 21, "SIGTTOU": 22, "SIGURG": SIGURG, "SIGUSR1": 10, "SIGUSR2": 12,
		"SIGVTALRM": 26, "SIGWINCH": SIGWINCH, "SIGXCPU": 24, "SIGXFSZ": 25, "SIGRTMIN": 34, "SIGRTMAX": 64,
	}
}
