// Package logind delays shutdowns with the login manager of systemd, for package nodeshutdown. It speaks D-Bus with
// systemd-logind by the system bus.
package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/nodeshutdown"
)

const (
	service   = "org.freedesktop.login1"
	object    = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = "org.freedesktop.login1.Manager"
	signal    = "PrepareForShutdown"
	who       = "sublet"
	why       = "Pods are terminated before the machine shuts down"
	dropInDir = "/etc/systemd/logind.conf.d"
	// dropInName sorts after those of distributions, and before an administrator's with a later name.
	dropInName = "99-sublet.conf"
)

const (
	// timeout bounds Dial and Inhibit. The bus and the login manager answer within milliseconds.
	timeout = 30 * time.Second
	// Waits for the login manager to apply its configuration.
	reloadPeriod  = 100 * time.Millisecond
	reloadTimeout = 5 * time.Second
)

// Dial connects to the login manager of the machine. It has the signature of nodeshutdown.Config.Dial.
func Dial(ctx context.Context) (nodeshutdown.Login, error) {
	return dial(ctx, "", dropInDir, timeout)
}

// dial connects to a bus; "" is that of the system.
func dial(ctx context.Context, address, dropInDir string, timeout time.Duration) (_ nodeshutdown.Login, err error) {
	connCtx, cancel := context.WithCancel(ctx) // its end closes the connection
	isDialed := time.AfterFunc(timeout, cancel).Stop
	defer func() {
		if !isDialed() && err != nil {
			err = fmt.Errorf("%w after %v: %w", errNoAnswer, timeout, err)
		}
	}()
	var bus *dbus.Conn
	if address == "" {
		bus, err = dbus.ConnectSystemBus(dbus.WithContext(connCtx))
	} else {
		bus, err = dbus.Connect(address, dbus.WithContext(connCtx))
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	c := &conn{bus: bus, cancel: cancel, dropInDir: dropInDir, timeout: timeout, shutdowns: make(chan bool), closed: make(chan struct{}), stopped: make(chan struct{})}
	if err := c.subscribe(ctx); err != nil {
		cancel()
		return nil, errors.Join(err, bus.Close())
	}
	return c, nil
}

// errNoAnswer is wrapped by the error for a bus or a login manager that hangs.
var errNoAnswer = errors.New("no answer")

// conn is a nodeshutdown.Login.
type conn struct {
	bus       *dbus.Conn
	cancel    context.CancelFunc // of bus
	dropInDir string
	timeout   time.Duration
	shutdowns chan bool
	closed    chan struct{} // closed by Close
	stopped   chan struct{} // closed when shutdowns is
}

// subscribe starts to forward signals. It asks for the state after the subscription, so that no change is missed.
func (c *conn) subscribe(ctx context.Context) error {
	signals := make(chan *dbus.Signal, 16)
	c.bus.Signal(signals)
	err := c.bus.AddMatchSignalContext(ctx, dbus.WithMatchSender(service), dbus.WithMatchObjectPath(object), dbus.WithMatchInterface(manager), dbus.WithMatchMember(signal))
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", signal, err)
	}
	down, err := property[bool](ctx, c.bus, "PreparingForShutdown")
	if err != nil {
		return err
	}
	go c.forward(down, signals)
	return nil
}

// forward sends the state, and the changes that signals report, until the connection ends.
func (c *conn) forward(down bool, signals <-chan *dbus.Signal) {
	defer close(c.stopped)
	defer close(c.shutdowns)
	for {
		select {
		case c.shutdowns <- down:
		case <-c.closed:
			return
		}
		next, ok := nextChange(signals)
		if !ok {
			return
		}
		down = next
	}
}

// nextChange returns the next reported state, or false when the connection has ended.
func nextChange(signals <-chan *dbus.Signal) (down, ok bool) {
	for s := range signals {
		if s.Name != manager+"."+signal || len(s.Body) != 1 {
			continue
		}
		if down, ok = s.Body[0].(bool); ok {
			return down, true
		}
	}
	return false, false
}

// Shutdowns implements nodeshutdown.Login.
func (c *conn) Shutdowns() <-chan bool { return c.shutdowns }

// Close implements nodeshutdown.Login.
func (c *conn) Close() error {
	close(c.closed)
	err := c.bus.Close() // ends the signals
	c.cancel()
	<-c.stopped
	return err
}

// Inhibit implements nodeshutdown.Login.
func (c *conn) Inhibit(ctx context.Context, period time.Duration) (io.Closer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("%w after %v", errNoAnswer, c.timeout))
	defer cancel()
	tooShort := c.raiseLimit(ctx, period)
	lock, err := c.take(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take an inhibitor lock: %w", err), tooShort)
	}
	return lock, tooShort
}

// take returns a lock. If ctx is done before there is an answer, it closes the connection: a lock that came later would
// never be released, and delay each shutdown until the end of this process.
func (c *conn) take(ctx context.Context) (io.Closer, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	call := c.bus.Object(service, object).Go(manager+".Inhibit", 0, make(chan *dbus.Call, 1), "shutdown", who, why, "delay")
	var late error
	select {
	case <-call.Done:
	case <-ctx.Done():
		late = context.Cause(ctx)
		_ = c.bus.Close() // has the call end
		<-call.Done
	}
	var fd dbus.UnixFD
	if err := call.Store(&fd); err != nil {
		return nil, cmp.Or(late, err)
	}
	syscall.CloseOnExec(int(fd))
	lock := os.NewFile(uintptr(fd), "inhibitor lock")
	if late != nil {
		return nil, errors.Join(late, lock.Close())
	}
	return lock, nil
}

// raiseLimit has the login manager wait for at least period, by a drop-in of its configuration.
func (c *conn) raiseLimit(ctx context.Context, period time.Duration) error {
	limit, err := c.limit(ctx)
	if err != nil || limit >= period {
		return err
	}
	if err := writeDropIn(c.dropInDir, period); err != nil {
		return fmt.Errorf("raise InhibitDelayMaxSec from %v to %v: %w", limit, period, err)
	}
	// The login manager reads its configuration again on SIGHUP.
	call := c.bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "main", int32(syscall.SIGHUP))
	if call.Err != nil {
		return fmt.Errorf("reload the login manager: %w", call.Err)
	}
	for waited := time.Duration(0); waited < reloadTimeout; waited += reloadPeriod {
		if limit, err = c.limit(ctx); err != nil || limit >= period {
			return err
		}
		if err := sleep.For(ctx, reloadPeriod); err != nil {
			return err
		}
	}
	return fmt.Errorf("InhibitDelayMaxSec is %v, and pods need %v: the login manager does not follow %s; remove what overrides it",
		limit, period, filepath.Join(c.dropInDir, dropInName))
}

// writeDropIn replaces the drop-in. A file that is cut short by a power failure is written again, as the limit is then too low.
func writeDropIn(dir string, period time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // systemd's configuration is readable
		return err
	}
	text := fmt.Sprintf("# Written by the node agent: shutdowns wait for pods.\n[Login]\nInhibitDelayMaxSec=%d\n", int64(period/time.Second))
	return os.WriteFile(filepath.Join(dir, dropInName), []byte(text), 0o644) //nolint:gosec // the same
}

// limit returns for how long the login manager waits for locks.
func (c *conn) limit(ctx context.Context) (time.Duration, error) {
	microseconds, err := property[uint64](ctx, c.bus, "InhibitDelayMaxUSec")
	return time.Duration(min(microseconds, 1<<53)) * time.Microsecond, err //nolint:gosec // bounded
}

// property returns a property of the login manager.
func property[T any](ctx context.Context, bus *dbus.Conn, name string) (value T, err error) {
	err = bus.Object(service, object).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name).Store(&value)
	if err != nil {
		err = fmt.Errorf("read %s of the login manager: %w", name, err)
	}
	return value, err
}
