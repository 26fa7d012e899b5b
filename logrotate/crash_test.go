package logrotate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// Environment variables that make the test binary the process that is killed: the socket
// of the runtime, and the logs directory.
const (
	socketEnv = "SUBLET_TEST_ROTATOR_SOCKET"
	logsEnv   = "SUBLET_TEST_ROTATOR_LOGS"
)

// remote is a runtime in another process.
type remote struct {
	writer

	client http.Client
}

func (r *remote) ReopenLog(ctx context.Context, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runtime/"+id, nil)
	if err != nil {
		return err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("reopen: %s", resp.Status)
	}
	return resp.Body.Close()
}

func overSocket(socket string) http.Client {
	return http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
}

func busyRotator(rt Runtime, dir string, report func(error)) (*Rotator, error) {
	return New(Config{
		Runtime: rt, LogsDir: dir, MaxSize: 200_000, MaxFiles: 5, MonitorInterval: 20 * time.Millisecond, SizePollInterval: minPollInterval,
		Hooks: Hooks{Rotated: func(_ string, _ int64, _ time.Duration, err error) { report(err) }},
	})
}

// rotateUntilKilled rotates until it is killed.
func rotateUntilKilled() {
	rt := &remote{client: overSocket(os.Getenv(socketEnv))}
	r, err := busyRotator(rt, os.Getenv(logsEnv), func(error) {})
	if err != nil {
		panic(err)
	}
	_ = r.Run(context.Background())
}

// CG-3: a process that rotates is killed again and again, wherever it stands, while
// a container writes. Each next one goes on from there: at the end every kept line
// is there once and in order, and nothing half done is left.
func TestRotator_KilledAnywhere(t *testing.T) {
	w := newWriter(t)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		_ = w.ReopenLog(q.Context(), strings.TrimPrefix(q.URL.Path, "/"))
	})}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		p := exec.Command(os.Args[0])
		p.Env = append(os.Environ(), socketEnv+"="+socket, logsEnv+"="+w.dir)
		require.NoError(t, p.Start())
		reopens := w.count()
		for began := time.Now(); w.count() == reopens && time.Since(began) < 10*time.Second; time.Sleep(time.Millisecond) {
			w.write(100)
		}
		// It works now. The writer writes on while it is killed.
		for end := time.Now().Add(time.Duration(rnd.IntN(60_000)) * time.Microsecond); time.Now().Before(end); {
			w.write(200)
			time.Sleep(200 * time.Microsecond)
		}
		require.NoError(t, p.Process.Kill())
		for range 5 {
			w.write(100)
		}
		_ = p.Wait()
	}
	var failed atomic.Int32
	r, err := busyRotator(w, w.dir, func(err error) {
		if err != nil {
			failed.Add(1)
		}
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	require.Eventually(t, func() bool { return settled(w) }, time.Minute, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	w.write(1)
	lines, names := w.read(t)
	w.inOrder(t, lines)
	assert.Zero(t, failed.Load(), "what a killed process left is no error to the next")
	assert.LessOrEqual(t, len(names), 5)
	t.Logf("%d lines written, %d reopenings, kept %d lines in %v", w.line, w.count(), len(lines), names)
	assert.Greater(t, w.count(), 20, "each had begun to work")
}

// settled reports whether a log is there, and all rotated ones but the newest are
// packed and there is nothing else.
func settled(w *writer) bool {
	names, _ := os.ReadDir(filepath.Dir(w.path()))
	plain, current := 0, false
	for _, e := range names {
		switch name := e.Name(); {
		case name == "0.log":
			current = true
		case strings.HasSuffix(name, unfinished):
			return false
		case !strings.HasSuffix(name, compressed):
			plain++
		}
	}
	return current && plain <= 1 && len(names) <= 5
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reopens
}

var _ Runtime = (*remote)(nil)

// Pods of a remote runtime are those of a writer, whatever it writes.
func (r *remote) Pods(ctx context.Context) ([]runtime.Pod, error) { return r.writer.Pods(ctx) }
