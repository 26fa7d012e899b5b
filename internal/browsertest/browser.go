// Package browsertest drives a headless Chromium in tests, by the DevTools protocol over a
// pipe.
package browsertest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// timeout bounds each call and each wait. It is generous: a busy machine starts a browser
// slowly.
const timeout = 90 * time.Second

// pollPeriod is the time between two evaluations of a condition.
const pollPeriod = 50 * time.Millisecond

// Page is a page of a browser of its own.
type Page struct {
	t       testing.TB
	out     *os.File
	session string

	mu       sync.Mutex // guards the fields below
	next     int
	calls    map[int]chan reply
	problems []string
	requests []string
	ended    error
}

type reply struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Path returns the path of a Chromium, or skips the test. With CI=true it fails instead, so
// that a pipeline cannot pass by looking at nothing.
func Path(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "needs a browser; on Debian: apt-get install chromium"
	if os.Getenv("CI") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// Open starts a browser and opens a URL in it. The browser ends with the test. A short run skips the test.
func Open(t testing.TB, url string, o Options) *Page {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser, which takes seconds, and the page is the same for all users")
	}
	path, dir := Path(t), t.TempDir()
	in, out, err := os.Pipe() // what the browser reads
	check(t, err)
	from, to, err := os.Pipe() // what the browser writes
	check(t, err)
	cmd := exec.CommandContext(t.Context(), path, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", //nolint:gosec // a browser that is installed
		"--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--user-data-dir="+filepath.Join(dir, "profile"))
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir, "TZ=UTC")
	cmd.ExtraFiles = []*os.File{in, to} // its file descriptors 3 and 4
	check(t, cmd.Start())
	check(t, in.Close())
	check(t, to.Close())
	p := &Page{t: t, out: out, calls: map[int]chan reply{}}
	read := make(chan struct{})
	go func() { defer close(read); p.read(from) }()
	t.Cleanup(func() {
		_ = out.Close() // the browser ends then
		end := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		end.Stop()
		_ = from.Close()
		<-read
		removeAll(filepath.Join(dir, "profile"))
	})
	p.open(url, o)
	return p
}

// removeAll removes a directory in which processes of the browser may still write.
func removeAll(dir string) {
	for range 100 {
		if os.RemoveAll(dir) == nil {
			return
		}
		<-time.After(pollPeriod)
	}
}

// Options say how a page is shown.
type Options struct {
	Width, Height int  // default: 1280 × 900
	Mobile        bool // with 1.5 times the pixels
	Dark          bool
}

func (p *Page) open(url string, o Options) {
	if o.Width == 0 {
		o.Width, o.Height = 1280, 900
	}
	var target struct{ TargetID string }
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.call(domain+".enable", nil, nil)
	}
	scale, scheme := 1.0, "light"
	if o.Mobile {
		scale = 1.5
	}
	if o.Dark {
		scheme = "dark"
	}
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": o.Width, "height": o.Height, "deviceScaleFactor": scale, "mobile": o.Mobile}, nil)
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	p.call("Page.navigate", map[string]any{"url": url}, nil)
}

// read reads messages until the browser ends.
func (p *Page) read(from *os.File) {
	r := bufio.NewReaderSize(from, 1<<20)
	for {
		b, err := r.ReadBytes(0)
		if err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ended = fmt.Errorf("browser ended: %w", err)
			for _, c := range p.calls {
				close(c)
			}
			p.calls = map[int]chan reply{}
			return
		}
		p.handle(b[:len(b)-1])
	}
}

func (p *Page) handle(b []byte) {
	var m struct {
		reply

		ID     int             `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.calls[m.ID]; c != nil {
		delete(p.calls, m.ID)
		c <- m.reply
	}
	switch m.Method {
	case "Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Log.entryAdded":
		if bytes.Contains(m.Params, []byte("net::ERR_NETWORK_CHANGED")) {
			return // the pods of another test came or went
		}
		p.problems = append(p.problems, m.Method+" "+string(m.Params))
	case "Network.requestWillBeSent":
		var sent struct {
			Request struct{ URL string }
		}
		_ = json.Unmarshal(m.Params, &sent)
		p.requests = append(p.requests, sent.Request.URL)
	}
}

func (p *Page) call(method string, params, result any) {
	p.t.Helper()
	c := make(chan reply, 1)
	p.mu.Lock()
	if p.ended != nil {
		p.mu.Unlock()
		p.t.Fatal(p.ended)
	}
	p.next++
	id := p.next
	p.calls[id] = c
	p.mu.Unlock()
	message := map[string]any{"id": id, "method": method}
	if params != nil {
		message["params"] = params
	}
	if p.session != "" {
		message["sessionId"] = p.session
	}
	b, err := json.Marshal(message)
	check(p.t, err)
	_, err = p.out.Write(append(b, 0))
	check(p.t, err)
	select {
	case r, ok := <-c:
		if !ok || r.Error != nil {
			p.t.Fatalf("%s: %+v", method, r.Error)
		}
		if result != nil {
			check(p.t, json.Unmarshal(r.Result, result))
		}
	case <-time.After(timeout):
		p.t.Fatalf("%s: no response", method)
	}
}

// Eval evaluates an expression of JavaScript, which may be a promise, into v.
func (p *Page) Eval(expression string, v any) {
	p.t.Helper()
	var r struct {
		Result struct {
			Value json.RawMessage
		}
		ExceptionDetails json.RawMessage
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	if v != nil && r.Result.Value != nil {
		check(p.t, json.Unmarshal(r.Result.Value, v))
	}
}

// Wait waits until an expression, which may be a promise, is true. One that throws is not.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(timeout); ; {
		var ok bool
		p.Eval("(async () => { try { return !!(await ("+expression+")) } catch { return false } })()", &ok)
		if ok {
			return
		}
		if time.Now().After(deadline) {
			var text string
			p.Eval("document.body.innerText", &text)
			p.t.Fatalf("not true in time: %s\nthe page shows:\n%.4000s", expression, text)
		}
		<-time.After(pollPeriod)
	}
}

// Problems returns what went wrong in the page: exceptions, dialogs, what its policy has
// blocked, and requests that failed. Those that fail because a network interface of the machine
// has come or gone are left out: the page has to repeat them.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.problems...)
}

// Requests returns the URLs that the page has requested.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.requests...)
}

// Screenshot returns what the page shows, as PNG.
func (p *Page) Screenshot() []byte {
	p.t.Helper()
	var r struct{ Data string }
	p.call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	b, err := base64.StdEncoding.DecodeString(r.Data)
	check(p.t, err)
	return b
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
