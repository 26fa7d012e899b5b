package cri

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"strings"
	"sync"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
)

// accessBook keeps who pulled which image, in memory and on the disk. It is safe
// for use by several goroutines.
type accessRecords struct {
	c *Client

	disk   chan struct{} // its one slot is held by who reads or writes the file
	loaded bool          // guarded by disk

	mu    sync.Mutex // guards the rest, held over memory only
	state accessState
	// pulls counts what was noted; noted has the number of the last time by image.
	pulls uint64
	noted map[string]uint64
	// tidyAt is the number of images at which those that are gone are forgotten.
	pruneAt int
}

const (
	maxAccessFile = 64 << 20
	minPruneAt    = 1000
)

func newAccessRecords(c *Client) *accessRecords {
	b := &accessRecords{c: c, disk: make(chan struct{}, 1), noted: make(map[string]uint64), pruneAt: minPruneAt}
	b.state.reset()
	return b
}

func (s *accessState) reset() {
	s.Key = make([]byte, 32)
	_, _ = rand.Read(s.Key) // never fails
	s.Images, s.Begun = make(map[string]map[string]pullRecord), make(map[string]int)
}

// lock takes the disk's slot.
func (b *accessRecords) lock(ctx context.Context) error {
	select {
	case b.disk <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load reads what a former process noted, once.
func (b *accessRecords) load(ctx context.Context) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer func() { <-b.disk }()
	if b.loaded {
		return nil
	}
	state, err := b.read()
	if err != nil {
		return err
	}
	// A pull that was cut off may have brought its image all the same.
	for ref := range maps.Clone(state.Begun) {
		im, err := b.c.imageStatus(ctx, ref, "")
		if err != nil {
			return err
		}
		if im != nil && state.Images[im.GetId()] == nil {
			state.Images[im.GetId()] = make(map[string]pullRecord)
		}
		delete(state.Begun, ref)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, b.loaded = state, true
	return nil
}

// read returns what is in the file. One that cannot be made sense of is put aside,
// and from then on every image has to be verified: better than to give one away.
func (b *accessRecords) read() (accessState, error) {
	var state accessState
	state.reset()
	path := b.c.cfg.ImageAccess.File
	if path == "" {
		return state, nil
	}
	if err := atomicfile.RemovePartial(path); err != nil {
		return state, fmt.Errorf("pulled images: %w", err)
	}
	text, err := readAtMost(path, maxAccessFile)
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err != nil {
		return state, fmt.Errorf("pulled images: %w", err)
	}
	var kept accessState
	if err := json.Unmarshal(text, &kept); err == nil && len(kept.Key) > 0 {
		if kept.Images == nil {
			kept.Images = make(map[string]map[string]pullRecord)
		}
		if kept.Begun == nil {
			kept.Begun = make(map[string]int)
		}
		return kept, nil
	}
	b.c.cfg.Logger.Error("image pull records corrupted, verifying all images", slog.String("path", path))
	state.Lost = true
	return state, errors.Join(atomicfile.SetAside(path), b.write(&state))
}

func (b *accessRecords) write(state *accessState) error {
	path := b.c.cfg.ImageAccess.File
	if path == "" {
		return nil
	}
	text, err := json.Marshal(state)
	if err == nil {
		err = atomicfile.Write(path, text)
	}
	if err != nil {
		return fmt.Errorf("pulled images: %w", err)
	}
	return nil
}

// save writes the present state, as it is once the disk is free.
func (b *accessRecords) save(ctx context.Context) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer func() { <-b.disk }()
	b.mu.Lock()
	state := b.state
	state.Begun = maps.Clone(state.Begun)
	state.Images = make(map[string]map[string]pullRecord, len(b.state.Images))
	for id, records := range b.state.Images {
		state.Images[id] = maps.Clone(records)
	}
	b.mu.Unlock()
	return b.write(&state)
}

// mayUse reports whether a pod with these logins may use an image that is present.
// If that cannot be found out it may not.
func (b *accessRecords) mayUse(ctx context.Context, id string, key pullKey, logins []*v1.AuthConfig) (bool, error) {
	if b.c.cfg.ImageAccess.Policy == NeverVerify {
		return true, nil
	}
	if err := b.load(ctx); err != nil {
		return false, err
	}
	return b.knows(id, key, logins), nil
}

// knows is mayUse once everything is loaded.
func (b *accessRecords) knows(id string, key pullKey, logins []*v1.AuthConfig) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.mayUse(&b.c.cfg.ImageAccess, id, key, logins)
}

// begin notes that a pull with a login begins: killed before its end, the agent
// would take the image for preloaded. Nil, a pull without a login, needs no note.
func (b *accessRecords) begin(ctx context.Context, key pullKey, auth *v1.AuthConfig) error {
	if err := b.load(ctx); err != nil || auth == nil {
		return err
	}
	b.mu.Lock()
	b.state.Begun[key.ref]++
	first := b.state.Begun[key.ref] == 1
	b.mu.Unlock()
	if !first {
		return nil
	}
	err := b.save(ctx)
	if err != nil {
		b.end(key, auth)
	}
	return err
}

// end takes back what begin noted.
func (b *accessRecords) end(key pullKey, auth *v1.AuthConfig) {
	if auth == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Begun[key.ref]--; b.state.Begun[key.ref] <= 0 {
		delete(b.state.Begun, key.ref)
	}
}

// pulled notes a pull that worked, before its beginning is forgotten.
func (b *accessRecords) pulled(ctx context.Context, id string, key pullKey, auth *v1.AuthConfig) {
	b.mu.Lock()
	changed := b.state.note(id, key.repository, auth)
	b.pulls++
	b.noted[id] = b.pulls
	crowded := len(b.state.Images) > b.pruneAt
	b.mu.Unlock()
	b.end(key, auth)
	if crowded {
		b.prune(ctx)
	}
	if changed || crowded || auth != nil {
		b.ended(ctx, key)
	}
}

// ended saves what became of a pull. If that fails it is known as long as this
// process lives, and the next one finds that the pull had begun.
func (b *accessRecords) ended(ctx context.Context, key pullKey) {
	if err := b.save(context.WithoutCancel(ctx)); err != nil {
		b.c.cfg.Logger.Warn("saving image pull record failed", slog.String("image", key.ref), logattr.Err(err))
	}
}

// attempt pulls an image with one login, and notes it.
func (b *accessRecords) attempt(ctx context.Context, key pullKey, auth *v1.AuthConfig, sandbox *v1.PodSandboxConfig) (string, error) {
	if err := b.begin(ctx, key, auth); err != nil {
		return "", err
	}
	id, err := b.c.pullImage(ctx, key, auth, sandbox)
	if err != nil {
		b.end(key, auth)
		if auth != nil {
			b.ended(ctx, key)
		}
		return "", err
	}
	if !isImageID(id) {
		// Some tell a reference.
		if im, err := b.c.imageStatus(ctx, cmp.Or(id, key.ref), key.handler); err == nil && im != nil {
			id = im.GetId()
		}
	}
	b.pulled(ctx, id, key, auth)
	return id, nil
}

func isImageID(s string) bool {
	hex, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(hex) == idLength
}

// tidy forgets images that are not on the node any more, but for those that were
// pulled while it looked.
func (b *accessRecords) prune(ctx context.Context) {
	b.mu.Lock()
	before := b.pulls
	b.mu.Unlock()
	images, err := b.c.listImages(ctx)
	if err != nil {
		return // the next pull tries again
	}
	present := make(map[string]bool, len(images))
	for _, im := range images {
		present[im.GetId()] = true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.state.Images, func(id string, _ map[string]pullRecord) bool {
		removed := !present[id] && b.noted[id] <= before
		if removed {
			delete(b.noted, id)
		}
		return removed
	})
	b.pruneAt = max(minPruneAt, 2*len(b.state.Images))
}
