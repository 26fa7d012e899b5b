// Package systemd makes a program a well-behaved service of systemd: a Notifier reports when it is ready, that it is alive, that it
// reloads its configuration and that it stops (sd_notify(3)), and NewJournalHandler gives the lines of a log their priorities in the
// journal.
//
// Outside of systemd both do nothing: no environment variable names a socket or a stream.
package systemd
