package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// unitTimeout bounds the call for one slice: systemd answers within milliseconds, and after
// a reload within some seconds.
const unitTimeout = 15 * time.Second

// slicesOf are the cgroups of v2 that systemd creates, knows the limits of, and removes. Systemd
// writes the limits that it knows again when it reloads its configuration or changes a
// neighbour, so they must be the same in its properties and in the files.
type slicesOf struct {
	*v2
	units units
}

func (t *slicesOf) set(group string, l limits) error {
	ctx, cancel := context.WithTimeout(context.Background(), unitTimeout) //nolint:forbidigo // the files of the other drivers need none
	defer cancel()
	if err := t.units.start(ctx, path.Base(group), l); err != nil {
		return fmt.Errorf("systemd: slice %s: %w", path.Base(group), err)
	}
	return t.v2.set(group, l) // huge pages, which systemd does not limit, and the exact quota
}

// weigh tells systemd, too, which would write the weight that it knows.
func (t *slicesOf) weigh(group string, l limits) error { return t.set(group, l) }

// release has systemd remove a slice whose processes were killed.
func (t *slicesOf) release(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	if err := t.units.stop(ctx, path.Base(group)); err != nil {
		return fmt.Errorf("systemd: stop slice %s: %w", path.Base(group), err)
	}
	return nil
}

// properties returns the limits as properties of a slice.
func properties(l limits) []dbus.Property {
	const infinity = uint64(math.MaxUint64)
	orInfinity := func(n int64) uint64 {
		if n <= 0 {
			return infinity
		}
		return uint64(n)
	}
	quota := infinity
	if l.quota > 0 {
		// Systemd keeps whole percents of a CPU. Rounded up, a slice never gets less time
		// than it has a right to.
		const percent = int64(time.Second/time.Microsecond) / 100
		perSecond := l.quota * int64(time.Second/time.Microsecond) / l.quotaPeriod()
		quota = uint64((perSecond + percent - 1) / percent * percent)
	}
	all := []dbus.Property{
		property("CPUAccounting", true),
		property("MemoryAccounting", true),
		property("IOAccounting", true),
		property("TasksAccounting", true),
		property("CPUQuotaPerSecUSec", quota),
		property("MemoryMax", orInfinity(l.memory)),
		property("MemoryHigh", orInfinity(l.qos.high)),
		property("MemoryLow", uint64(l.qos.low)),
		property("MemoryMin", uint64(l.qos.minimum)),
		property("TasksMax", orInfinity(l.pids)),
	}
	if l.quotaPeriod() != quotaPeriod { // before systemd 242 there is no other one
		all = append(all, property("CPUQuotaPeriodUSec", uint64(l.period)))
	}
	if l.shares > 0 {
		all = append(all, property("CPUWeight", weightOf(l.shares)))
	}
	return all
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// systemdSocket leads to systemd itself, for root, and works without a D-Bus daemon.
const systemdSocket = "/run/systemd/private"

// bus is the connection to systemd. It is made when it is needed and again after it broke.
type bus struct {
	socket string

	mu   sync.Mutex // guards all below; held while a connection is made
	conn *dbus.Conn // nil until used
	end  context.CancelFunc
}

// connect returns the connection.
func (b *bus) connect(ctx context.Context) (*dbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	if b.conn != nil {
		b.conn.Close()
		b.end()
		b.conn = nil
	}
	// The library ends a connection with the context that it was made with. The caller's is for the making of it alone.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	isMade := context.AfterFunc(ctx, end)
	conn, err := dbus.NewConnection(func() (*godbus.Conn, error) { return dialSystemd(life, b.socket) })
	if !isMade() {
		if err == nil {
			conn.Close()
		}
		err = fmt.Errorf("no answer: %w", ctx.Err())
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("connect to %s: %w", b.socket, err)
	}
	b.conn, b.end = conn, end
	return conn, nil
}

// dialSystemd returns an authenticated connection that ends with ctx.
func dialSystemd(ctx context.Context, socket string) (*godbus.Conn, error) {
	stream, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	conn, err := godbus.NewConn(boundedWrites{stream}, godbus.WithContext(ctx))
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	if err := conn.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// boundedWrites is a connection that ends when a message cannot be sent in time: the library would wait for a systemd that
// reads nothing, with every other call and its own Close.
type boundedWrites struct{ net.Conn }

func (c boundedWrites) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(unitTimeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close() // what follows a part of a message cannot be understood
	}
	return n, err
}

func (b *bus) start(ctx context.Context, unit string, l limits) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	bounds := properties(l)
	all := append([]dbus.Property{
		dbus.PropDescription("pods"),
		property("DefaultDependencies", false), // or the slice would stop early in a shutdown, with its pods
	}, bounds...)
	err = job(ctx, func(done chan<- string) error {
		_, err := conn.StartTransientUnitContext(ctx, unit, "replace", all, done)
		return err
	})
	if !isDBusError(err, "UnitExists") {
		return err
	}
	return conn.SetUnitPropertiesContext(ctx, unit, true, bounds...)
}

func (b *bus) stop(ctx context.Context, unit string) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	err = job(ctx, func(done chan<- string) error {
		_, err := conn.StopUnitContext(ctx, unit, "replace", done)
		return err
	})
	if isDBusError(err, "NoSuchUnit") {
		return nil
	}
	return err
}

// job runs a job of systemd and waits for its end.
func job(ctx context.Context, request func(done chan<- string) error) error {
	done := make(chan string, 1) // the connection does not wait for a reader that left
	if err := request(done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("job ended with result %q", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isDBusError(err error, name string) bool {
	var failed godbus.Error
	return errors.As(err, &failed) && failed.Name == "org.freedesktop.systemd1."+name
}

// withUnits returns the cgroups as those of systemd, if it can own them: on v2.
func withUnits(t tree, u units) (owned tree, ok bool) {
	if t, ok := t.(*v2); ok && u != nil {
		return &slicesOf{t, u}, true
	}
	return t, false
}

// findUnits returns systemd where it owns the cgroups of the machine, or nil. It creates slices
// for root; an ordinary user has cgroups that it has delegated, which are the user's own.
func findUnits() units {
	if os.Geteuid() != 0 || !isSystemdRunning() {
		return nil
	}
	return &bus{socket: systemdSocket}
}

// isSystemdRunning reports whether systemd is the first process and owns the cgroups of the
// machine.
func isSystemdRunning() bool {
	comm, err := os.ReadFile("/proc/1/comm") // of this PID namespace: not in a container
	return err == nil && strings.TrimSpace(string(comm)) == "systemd" && isDir("/run/systemd/system")
}
