//go:build unix

package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/logattr"
)

// Config configures a Notifier.
type Config struct {
	// Alive returns nil while the program makes progress, and an error, or nothing at all, when it is stuck and must be
	// restarted. The service is ready with the first nil. It is required.
	Alive func() error
	// Status returns a line for systemctl status. Default: none.
	Status func() string
	Getenv func(string) string // default: os.Getenv
	Logger *slog.Logger        // default: nothing is logged
}

// Notifier reports the state of the process to systemd.
type Notifier struct {
	cfg      Config
	socket   string        // "": not a service that systemd asks to notify it
	watchdog time.Duration // 0: off
	ready    atomic.Bool   // it was reported
}

const (
	readyPeriod  = 100 * time.Millisecond
	statusPeriod = 10 * time.Second
	// maxStatusBytes bounds a status: errors of a runtime are not bounded.
	maxStatusBytes = 1 << 10
)

// New returns a Notifier for what the environment says.
func New(cfg Config) (*Notifier, error) {
	if cfg.Alive == nil {
		return nil, errors.New("systemd: Config.Alive required")
	}
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Notifier{cfg: cfg, socket: cfg.Getenv("NOTIFY_SOCKET")}
	if pid := cfg.Getenv("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if usec, err := strconv.ParseInt(cfg.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 {
			n.watchdog = time.Duration(min(usec, int64(time.Hour/time.Microsecond))) * time.Microsecond
		}
	}
	return n, nil
}

// Run reports readiness when Alive first returns nil, and then, at half of the watchdog's period, that the program is alive while
// Alive returns nil. It reports the stop when ctx is done, and returns nil.
func (n *Notifier) Run(ctx context.Context) error {
	if n.socket == "" {
		<-ctx.Done()
		return nil
	}
	n.awaitReady(ctx)
	period := statusPeriod
	if n.watchdog > 0 {
		period = min(period, n.watchdog/2)
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			n.beat()
		case <-ctx.Done():
			n.send("STOPPING=1")
			return nil
		}
	}
}

func (n *Notifier) awaitReady(ctx context.Context) {
	tick := time.NewTicker(readyPeriod)
	defer tick.Stop()
	for n.cfg.Alive() != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	n.ready.Store(true)
	n.send("READY=1", n.status())
}

// Waiting reports until ctx is done that a start takes long because the program waits for what status says, so that its time
// does not end (TimeoutStartSec). It is called before Run.
func (n *Notifier) Waiting(ctx context.Context, status string) {
	tick := time.NewTicker(statusPeriod)
	defer tick.Stop()
	extension := fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", 3*statusPeriod/time.Microsecond)
	for {
		n.send(extension, "STATUS="+line(status))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// beat feeds the watchdog if the program is alive.
func (n *Notifier) beat() {
	if err := n.cfg.Alive(); err != nil {
		n.cfg.Logger.Error("watchdog not fed", logattr.Err(err))
		n.send("STATUS=" + line(err.Error()))
		return
	}
	n.send("WATCHDOG=1", n.status())
}

// Reload calls f, which reads the configuration again, between the reports that it begins and that it has ended. Before the
// program is ready it reports neither: the end of a reload is the report that the program is ready.
func (n *Notifier) Reload(f func()) {
	if !n.ready.Load() {
		f()
		return
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err == nil {
		n.send("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/int64(time.Microsecond)))
	}
	f()
	n.send("READY=1")
}

func (n *Notifier) status() string {
	if n.cfg.Status == nil {
		return ""
	}
	return "STATUS=" + line(n.cfg.Status())
}

// line makes text one line of bounded length: each line of a message is a field of its own.
func line(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' }), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxStatusBytes)], "")
}

// send sends one message. It does not block for longer than a moment: systemd reads its socket at any time.
func (n *Notifier) send(fields ...string) {
	if n.socket == "" {
		return
	}
	name := n.socket
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		err = errors.Join(conn.SetWriteDeadline(time.Now().Add(time.Second)), write(conn, fields), conn.Close())
	}
	if err != nil {
		n.cfg.Logger.Warn("notifying systemd failed", logattr.Err(err))
	}
}

func write(conn *net.UnixConn, fields []string) error {
	_, err := conn.Write([]byte(strings.Join(fields, "\n")))
	return err
}
