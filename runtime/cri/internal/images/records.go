package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// records keep who pulled which image, in memory and on the disk. It is safe
// for use by several goroutines.
type records struct {
	cfg *Config

	disk   chan struct{} // its one slot is held by who reads or writes the file
	loaded bool          // guarded by disk

	mu    sync.Mutex // guards the rest, held over memory only
	state recordState
	// left are the references of pulls that an earlier process has begun, and that a runtime may end yet.
	left map[string]bool
	// pulls counts what was noted; noted has the number of the last time by image.
	pulls uint64
	noted map[string]uint64
	// pruneAt is the number of images at which those that are gone are forgotten.
	pruneAt int
}

const (
	maxRecordFile = 64 << 20
	minPruneAt    = 1000
)

func newRecords(cfg *Config) *records {
	r := &records{cfg: cfg, disk: make(chan struct{}, 1), noted: make(map[string]uint64), pruneAt: minPruneAt}
	r.state.reset()
	return r
}

// lock takes the disk's slot.
func (r *records) lock(ctx context.Context) error {
	select {
	case r.disk <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load reads what an earlier process recorded, once.
func (r *records) load(ctx context.Context) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	defer func() { <-r.disk }()
	if r.loaded {
		return nil
	}
	state, err := r.read()
	if err != nil {
		return err
	}
	// A pull that was cut off may have brought its image all the same, or bring it yet: some runtimes go on with it.
	left := make(map[string]bool)
	for ref := range maps.Clone(state.Begun) {
		im, err := r.cfg.Service.ImageStatus(ctx, ref, "")
		if err != nil {
			return err
		}
		if im == nil || state.Images[im.GetId()] != nil { // not that of this pull
			state.Begun[ref], left[ref] = 1, true
			continue
		}
		state.Images[im.GetId()] = make(map[string]pullRecord)
		delete(state.Begun, ref)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.left, r.loaded = state, left, true
	return nil
}

// read returns what is in the file. One that cannot be made sense of is put aside,
// and from then on every image has to be verified: better than to give one away.
func (r *records) read() (recordState, error) {
	var state recordState
	state.reset()
	path := r.cfg.RecordFile
	if path == "" {
		return state, nil
	}
	var kept recordState
	err := atomicfile.Load(path, maxRecordFile, func(text []byte) error {
		err := json.Unmarshal(text, &kept)
		if err == nil && len(kept.Key) == 0 {
			err = errors.New("no key")
		}
		return err
	})
	damaged, isDamaged := errors.AsType[*atomicfile.DamagedError](err)
	switch {
	case isDamaged:
		r.cfg.Logger.Error("image pull records corrupted, verifying all images", logattr.Err(damaged))
		return r.startLost(state)
	case errors.Is(err, fs.ErrNotExist):
		// The agent may have been killed, or the disk full, after a damaged file was renamed.
		_, err := os.Lstat(path + atomicfile.DamagedSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			return state, nil
		}
		if err != nil {
			return state, fmt.Errorf("pulled images: %w", err)
		}
		return r.startLost(state)
	case err != nil:
		return state, fmt.Errorf("pulled images: %w", err)
	}
	if kept.Images == nil {
		kept.Images = make(map[string]map[string]pullRecord)
	}
	if kept.Begun == nil {
		kept.Begun = make(map[string]int)
	}
	return kept, nil
}

// startLost returns state as one whose records were lost, and writes it.
func (r *records) startLost(state recordState) (recordState, error) {
	state.Lost = true
	return state, r.write(&state)
}

func (r *records) write(state *recordState) error {
	path := r.cfg.RecordFile
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
func (r *records) save(ctx context.Context) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	defer func() { <-r.disk }()
	r.mu.Lock()
	state := r.state
	state.Begun = maps.Clone(state.Begun)
	state.Images = make(map[string]map[string]pullRecord, len(r.state.Images))
	for id, records := range r.state.Images {
		state.Images[id] = maps.Clone(records)
	}
	r.mu.Unlock()
	return r.write(&state)
}

// mayUse reports whether a pod may use an image that is present. If that cannot be found
// out it may not.
func (r *records) mayUse(ctx context.Context, id string, req Request) (bool, error) {
	if r.cfg.Exempt(req.repository, false) {
		return true, nil
	}
	if err := r.load(ctx); err != nil {
		return false, err
	}
	return r.loadedMayUse(id, req), nil
}

// loadedMayUse is mayUse once everything is loaded.
func (r *records) loadedMayUse(id string, req Request) bool {
	r.mu.Lock()
	preloaded := r.state.isPreloaded(id, req.Ref)
	could := r.state.couldPull(id, req.repository, req.grants())
	r.mu.Unlock()
	return could || r.cfg.Exempt(req.repository, preloaded)
}

// begin notes that a pull with a login begins: killed before its end, the agent
// would take the image for preloaded. Nil, a pull without a login, needs no note.
func (r *records) begin(ctx context.Context, req Request, auth *v1.AuthConfig) error {
	if err := r.load(ctx); err != nil || auth == nil {
		return err
	}
	r.mu.Lock()
	r.state.Begun[req.Ref]++
	first := r.state.Begun[req.Ref] == 1
	r.mu.Unlock()
	if !first {
		return nil
	}
	err := r.save(ctx)
	if err != nil {
		r.end(req, auth)
	}
	return err
}

// end takes back what begin noted.
func (r *records) end(req Request, auth *v1.AuthConfig) {
	if auth == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.end(req.Ref)
}

// pulled notes a pull that worked, before its beginning is forgotten.
func (r *records) pulled(ctx context.Context, id string, req Request, auth *v1.AuthConfig) {
	r.mu.Lock()
	changed := r.state.note(id, req.repository, req.grantOf(auth))
	if r.left[req.Ref] { // its image is there now, and known
		delete(r.left, req.Ref)
		r.state.end(req.Ref)
	}
	r.pulls++
	r.noted[id] = r.pulls
	crowded := len(r.state.Images) > r.pruneAt
	r.mu.Unlock()
	r.end(req, auth)
	if crowded {
		r.prune(ctx)
	}
	if changed || crowded || auth != nil {
		r.ended(ctx, req)
	}
}

// ended saves what became of a pull. If that fails it is known as long as this
// process lives, and the next one finds that the pull had begun.
func (r *records) ended(ctx context.Context, req Request) {
	if err := r.save(context.WithoutCancel(ctx)); err != nil {
		r.cfg.Logger.Warn("saving image pull record failed", slog.String("image", req.Ref), logattr.Err(err))
	}
}

// attempt pulls an image with one login, and notes it.
func (r *records) attempt(ctx context.Context, req Request, auth *v1.AuthConfig, sandbox *v1.PodSandboxConfig) (string, error) {
	if err := r.begin(ctx, req, auth); err != nil {
		return "", err
	}
	id, err := r.cfg.Service.PullImage(ctx, &v1.PullImageRequest{
		Image: &v1.ImageSpec{Image: req.Ref, Annotations: req.Annotations, RuntimeHandler: req.handler}, Auth: auth, SandboxConfig: sandbox,
	})
	switch {
	case isLost(ctx, err):
		return "", err // the image may be there: the pull stays one that has begun, so that it does not count as preloaded
	case err != nil:
		r.end(req, auth)
		if auth != nil {
			r.ended(ctx, req)
		}
		return "", err
	}
	if !isImageID(id) {
		// Some tell a reference.
		im, err := r.cfg.Service.ImageStatus(ctx, cmp.Or(id, req.Ref), req.handler)
		if err != nil {
			// Whose image it is cannot be noted. The pull stays one that has begun, so that none counts as preloaded.
			return "", fmt.Errorf("find the image that was pulled: %w", err)
		}
		if im != nil {
			id = im.GetId()
		}
	}
	r.pulled(ctx, id, req, auth)
	return id, nil
}

// isLost reports whether the end of a pull is not known: it was not waited for, or the runtime went away.
func isLost(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, runtime.ErrUnavailable))
}

func isImageID(s string) bool {
	hex, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(hex) == idLength
}

// prune forgets images that are not on the node any more, but for those that were
// pulled while it looked.
func (r *records) prune(ctx context.Context) {
	r.mu.Lock()
	before := r.pulls
	r.mu.Unlock()
	images, err := r.cfg.Service.ListImages(ctx)
	if err != nil {
		return // the next pull tries again
	}
	present := make(map[string]bool, len(images))
	for _, im := range images {
		present[im.GetId()] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.state.Images, func(id string, _ map[string]pullRecord) bool {
		removed := !present[id] && r.noted[id] <= before
		if removed {
			delete(r.noted, id)
		}
		return removed
	})
	r.pruneAt = max(minPruneAt, 2*len(r.state.Images))
}
