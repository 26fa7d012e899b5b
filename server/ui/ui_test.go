package ui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/server/ui"
	"github.com/sublet-dev/agent/timeline"
)

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
}

func newPage(t *testing.T, h *timeline.History) *ui.Page {
	t.Helper()
	p, err := ui.New(ui.Config{NodeName: "node-1", History: h})
	require.NoError(t, err)
	return p
}

func get(p http.Handler, method, path string) *http.Response {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(b)
}

func TestNew_ChecksConfig(t *testing.T) {
	_, err := ui.New(ui.Config{})
	require.EqualError(t, err, "ui: Config.History: required")
}

// A browser loads nothing but the page, runs nothing but its script, and makes no HTML of
// text.
func TestPage_Policy(t *testing.T) {
	p := newPage(t, timeline.New(timeline.Config{}))
	for _, path := range []string{"/", "/state", "/pods/x", "/nowhere"} {
		r := get(p, http.MethodGet, path)
		csp := r.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
			assert.Contains(t, csp, want, path)
		}
		assert.NotContains(t, csp, "unsafe")
		assert.Regexp(t, `script-src 'sha256-[A-Za-z0-9+/]{43}='; style-src 'sha256-[A-Za-z0-9+/]{43}='`, csp)
		assert.Equal(t, "nosniff", r.Header.Get("X-Content-Type-Options"))
		assert.Equal(t, "no-store", r.Header.Get("Cache-Control"))
	}
	html := body(t, get(p, http.MethodGet, "/"))
	assert.NotRegexp(t, `(?i)innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|srcdoc`, html)
	assert.NotRegexp(t, `(?i)(src|href)="?(https?:)?//`, html, "nothing from elsewhere")
	assert.NotRegexp(t, `(?i)@import|url\(`, html)
	assert.NotRegexp(t, regexp.MustCompile(`(?i)<[a-z]+[^>]*\s(on[a-z]+|style)=`), html, "no code or style in attributes")
	assert.Equal(t, 1, strings.Count(html, "<script>"))
	assert.Equal(t, 1, strings.Count(html, "<style>"))
	assert.Equal(t, "text/html; charset=utf-8", get(p, http.MethodGet, "/").Header.Get("Content-Type"))
}

func TestPage_Paths(t *testing.T) {
	h := timeline.New(timeline.Config{})
	h.PodManager().Admitted(newPod("web"))
	p := newPage(t, h)
	var state struct {
		NodeName string
		Now      time.Time
		Reset    bool
		Pods     []timeline.Pod
		Node     timeline.Node
	}
	require.NoError(t, json.Unmarshal([]byte(body(t, get(p, http.MethodGet, "/state"))), &state))
	assert.Equal(t, "node-1", state.NodeName)
	assert.WithinDuration(t, time.Now(), state.Now, time.Minute)
	assert.True(t, state.Reset)
	require.Len(t, state.Pods, 1)
	var tl timeline.Timeline
	require.NoError(t, json.Unmarshal([]byte(body(t, get(p, http.MethodGet, "/pods/uid-web"))), &tl))
	assert.Equal(t, timeline.KindAdmitted, tl.Entries[1].Kind)
	assert.Equal(t, http.StatusNotFound, get(p, http.MethodGet, "/pods/unknown").StatusCode)
	assert.Equal(t, http.StatusNotFound, get(p, http.MethodGet, "/nowhere").StatusCode)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		assert.Equal(t, http.StatusMethodNotAllowed, get(p, method, "/state").StatusCode, method)
	}
}

// What a pod brings is text in JSON, which no browser takes for HTML or for a second event.
func TestPage_HostileText(t *testing.T) {
	h := timeline.New(timeline.Config{})
	pod := newPod("web")
	hostile := "</script><script>alert(1)</script>\n\nevent: x\ndata: y\r\n\u2028<img src=x onerror=alert(2)>"
	h.PodManager().Rejected(pod, hostile, hostile)
	p := newPage(t, h)
	r := get(p, http.MethodGet, "/pods/uid-web")
	assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
	text := body(t, r)
	assert.NotContains(t, text, "<")
	assert.NotContains(t, text, "\n")
	var tl timeline.Timeline
	require.NoError(t, json.Unmarshal([]byte(text), &tl))
	assert.Equal(t, hostile, tl.Entries[1].Message)
}

// stream connects to the events by a connection in memory.
func stream(t *testing.T, p http.Handler) net.Conn {
	t.Helper()
	serverSide, client := net.Pipe()
	listener := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.conn <- serverSide
	srv := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { _ = srv.Serve(listener); close(done) }()
	t.Cleanup(func() { _ = client.Close(); _ = srv.Close(); _ = listener.Close(); <-done })
	_, err := io.WriteString(client, "GET /events HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	return client
}

type oneConn struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// event is one message of the stream.
type event struct {
	Reset   bool
	Version uint64
	Pods    []timeline.Pod
	Node    timeline.Node
}

// next reads to the end of the next message, and returns the comments before it.
func next(t *testing.T, r *bufio.Reader) (e event, comments int) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		if strings.HasPrefix(line, ":") {
			comments++
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			require.NoError(t, json.Unmarshal([]byte(data), &e))
			return e, comments
		}
	}
}

// The stream begins with everything and continues with what changes: many changes at once
// are one message, and while there are none it shows that it is alive.
func TestPage_Events(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := timeline.New(timeline.Config{})
		h.PodManager().Admitted(newPod("a"))
		client := stream(t, newPage(t, h))
		r := bufio.NewReader(client)
		e, _ := next(t, r)
		assert.True(t, e.Reset)
		require.Len(t, e.Pods, 1)

		start := time.Now()
		for range 50 {
			h.PodManager().Admitted(newPod("b"))
			h.AddSample(timeline.Sample{MilliCPU: 1})
		}
		e, _ = next(t, r)
		assert.False(t, e.Reset)
		require.Len(t, e.Pods, 1)
		assert.Equal(t, "b", e.Pods[0].Name)
		assert.Len(t, e.Node.Samples, 50)
		assert.Equal(t, 250*time.Millisecond, time.Since(start))

		go func() {
			time.Sleep(time.Minute)
			h.PodWorkers().PhaseChanged("uid-a", podworkers.Syncing, podworkers.Terminating, podworkers.Deleted)
		}()
		e, comments := next(t, r)
		assert.Equal(t, "Terminating", e.Pods[0].State)
		assert.GreaterOrEqual(t, comments, 3)
	})
}

// A client that reads nothing is disconnected after half a minute; it costs no memory
// until then.
func TestPage_EventsDisconnectStalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := timeline.New(timeline.Config{})
		start, ended := time.Now(), make(chan time.Duration, 1)
		p := newPage(t, h)
		stream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.ServeHTTP(w, r)
			ended <- time.Since(start)
		}))
		h.PodManager().Admitted(newPod("a"))
		assert.Equal(t, 30*time.Second, <-ended)
	})
}

// The stream ends with the request, as when the server stops.
func TestPage_EventsEndWithRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t, timeline.New(timeline.Config{}))
		for _, after := range []time.Duration{100 * time.Millisecond, time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			w := httptest.NewRecorder()
			start := time.Now()
			p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/events", http.NoBody).WithContext(ctx))
			cancel()
			assert.Equal(t, after, time.Since(start))
			assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
			assert.Contains(t, w.Body.String(), "retry: 2000\n\ndata: {")
		}
	})
}

// The page is small enough for a slow line.
func TestPage_IsSmall(t *testing.T) {
	info, err := os.Stat("page.html")
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(64<<10))
}

// luminance returns the relative luminance of a colour #rgb or #rrggbb, as WCAG defines it.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	if len(colour) == 4 {
		colour = "#" + strings.Repeat(colour[1:2], 2) + strings.Repeat(colour[2:3], 2) + strings.Repeat(colour[3:4], 2)
	}
	rgb, err := strconv.ParseUint(colour[1:], 16, 32)
	require.NoError(t, err, colour)
	linear := func(v uint64) float64 {
		c := float64(v&255) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(rgb>>16) + 0.7152*linear(rgb>>8) + 0.0722*linear(rgb)
}

// Text has the contrast that WCAG AA asks for, in the light and in the dark.
func TestPage_Contrast(t *testing.T) {
	html, err := os.ReadFile("page.html")
	require.NoError(t, err)
	schemes := regexp.MustCompile(`:root\{([^}]*)\}`).FindAllStringSubmatch(string(html), -1)
	require.Len(t, schemes, 2)
	for i, scheme := range schemes {
		colours := map[string]string{}
		for _, m := range regexp.MustCompile(`--([a-z-]+):(#[0-9a-f]+)`).FindAllStringSubmatch(scheme[1], -1) {
			colours[m[1]] = m[2]
		}
		for _, pair := range [][2]string{
			{"ink", "bg"},
			{"ink", "card"},
			{"ink", "off-bg"},
			{"soft", "bg"},
			{"soft", "card"},
			{"soft", "off-bg"},
			{"accent", "card"},
			{"bad", "card"},
			{"bad", "bad-bg"},
			{"warn", "warn-bg"},
			{"ok", "ok-bg"},
			{"done", "done-bg"},
			{"off", "off-bg"},
		} {
			require.NotEmpty(t, colours[pair[0]], pair)
			require.NotEmpty(t, colours[pair[1]], pair)
			a, b := luminance(t, colours[pair[0]]), luminance(t, colours[pair[1]])
			assert.GreaterOrEqual(t, (max(a, b)+0.05)/(min(a, b)+0.05), 4.5, "scheme %d: %v", i, pair)
		}
	}
}
