package ui

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/timeline"
)

//go:embed page.html
var page string

// Config describes a Page.
type Config struct {
	NodeName string  // in the title
	History  History // required
}

// History is what the page shows. *timeline.History is one.
type History interface {
	Changes(since uint64) timeline.Changes
	Wait(ctx context.Context, since uint64) error
	Pod(uid types.UID) (timeline.Timeline, bool)
}

// Page serves the page. Its paths are relative: it can be mounted anywhere with
// http.StripPrefix, below a path that ends with a slash.
type Page struct {
	cfg    Config
	policy string // Content-Security-Policy
	mux    http.ServeMux
}

const (
	// minPeriod is the time between two messages: a reader gets many changes at once.
	minPeriod = 250 * time.Millisecond
	// keepAlive is the time after which a reader hears something, so that both sides
	// find out that the other one does not exist any more.
	keepAlive = 15 * time.Second
	// sendTimeout is how long a client may take to accept a message.
	sendTimeout = 30 * time.Second
)

// New returns a Page. It does no I/O.
func New(cfg Config) (*Page, error) {
	if cfg.History == nil {
		return nil, errors.New("ui: Config.History: required")
	}
	p := &Page{cfg: cfg, policy: policy(page)}
	p.mux.HandleFunc("GET /{$}", p.page)
	p.mux.HandleFunc("GET /state", p.state)
	p.mux.HandleFunc("GET /pods/{uid}", p.pod)
	p.mux.HandleFunc("GET /"+EventsPath, p.events)
	return p, nil
}

// EventsPath is the path, without a slash in front, whose response lasts until the client
// disconnects.
const EventsPath = "events"

// policy lets a browser run the script and the style of the page, and connect to where it
// came from; nothing else, and no text as HTML.
func policy(html string) string {
	return fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "+
		"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'", sourceHash(html, "script"), sourceHash(html, "style"))
}

// sourceHash returns the hash of the content of an element.
func sourceHash(html, element string) string {
	_, rest, _ := strings.Cut(html, "<"+element+">")
	content, _, _ := strings.Cut(rest, "</"+element+">")
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": p.policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	} {
		w.Header().Set(name, value)
	}
	p.mux.ServeHTTP(w, r)
}

func (p *Page) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(page)) // the client may have disconnected
}

// message is what a reader gets: the changes since the last one.
type message struct {
	timeline.Changes

	NodeName string    `json:"nodeName"`
	Now      time.Time `json:"now"` // by the clock that all times are from
}

func (p *Page) message(since uint64) message {
	return message{Changes: p.cfg.History.Changes(since), NodeName: p.cfg.NodeName, Now: time.Now()}
}

func (p *Page) state(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.message(0)) }

// pod responds with the timeline of one pod.
func (p *Page) pod(w http.ResponseWriter, r *http.Request) {
	t, ok := p.cfg.History.Pod(types.UID(r.PathValue("uid")))
	if !ok {
		http.Error(w, "pod is not known, or is not known any more", http.StatusNotFound)
		return
	}
	writeJSON(w, t)
}

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // the client may have disconnected
}

// events sends everything and then what changes, as server-sent events. Nothing is queued
// for a client: one that is slow gets fewer messages with more changes, and one that
// accepts nothing is disconnected.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // of proxies
	control := http.NewResponseController(w)
	send := func(text string) error {
		_ = control.SetWriteDeadline(time.Now().Add(sendTimeout)) // without support there is no deadline
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		return control.Flush()
	}
	if send("retry: 2000\n\n") != nil {
		return
	}
	var version uint64
	for r.Context().Err() == nil {
		m := p.message(version)
		b, err := json.Marshal(m)
		if err != nil || send("data: "+string(b)+"\n\n") != nil {
			return
		}
		version = m.Version
		if p.next(r.Context(), version, send) != nil {
			return
		}
	}
}

// next returns when there is a new message, a moment after the last one at the earliest.
func (p *Page) next(ctx context.Context, version uint64, send func(string) error) error {
	pause := time.NewTimer(minPeriod)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		wait, cancel := context.WithTimeout(ctx, keepAlive)
		err := p.cfg.History.Wait(wait, version)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if err := send(":\n\n"); err != nil { // a comment
			return err
		}
	}
}
