//go:build linux

package containerdtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/sleep"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// Registry is an OCI image registry on loopback that serves what was put in it.
type Registry struct {
	srv *httptest.Server

	mu        sync.Mutex // guards the rest
	blobs     map[string][]byte
	manifests map[string][]byte // by "repo:reference"
	pulls     map[string]int    // manifest requests by "repo:reference"
	delay     time.Duration
	private   map[string]string // "username:password" by repo
}

func newRegistry() *Registry {
	r := &Registry{blobs: map[string][]byte{}, manifests: map[string][]byte{}, pulls: map[string]int{}, private: map[string]string{}}
	r.srv = httptest.NewServer(r)
	return r
}

// Addr is host:port, the first part of every image reference served.
func (r *Registry) Addr() string { return strings.TrimPrefix(r.srv.URL, "http://") }

// Delay makes each blob take so long.
func (r *Registry) Delay(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = d
}

// Protect makes a repository demand credentials.
func (r *Registry) Protect(repo, username, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.private[repo] = username + ":" + password
}

// permits reports whether a request has the credentials that its repository demands. The
// caller holds mu.
func (r *Registry) permits(q *http.Request, repo string) bool {
	want, protected := r.private[repo]
	username, password, _ := q.BasicAuth()
	return !protected || username+":"+password == want
}

// Pulls is how often the manifest of repo:tag was asked for.
func (r *Registry) Pulls(ref string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pulls[strings.TrimPrefix(ref, r.Addr()+"/")]
}

// ServeHTTP implements the read half of the OCI distribution protocol.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path := strings.TrimPrefix(q.URL.Path, "/v2/")
	if path == "" {
		return
	}
	r.mu.Lock()
	var body []byte
	var kind string
	delay := time.Duration(0)
	permitted := true
	if repo, ref, ok := strings.Cut(path, "/manifests/"); ok {
		body, kind, permitted = r.manifests[repo+":"+ref], manifestType, r.permits(q, repo)
		r.pulls[repo+":"+ref]++
	} else if repo, digest, ok := strings.Cut(path, "/blobs/"); ok {
		body, kind, permitted = r.blobs[digest], "application/octet-stream", r.permits(q, repo)
		delay = r.delay
	}
	r.mu.Unlock()
	if !permitted {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	if body == nil {
		http.NotFound(w, q)
		return
	}
	if delay > 0 && sleep.For(q.Context(), delay) != nil {
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest(body))
	http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(body))
}

// File is one file, directory (name ends in a slash) or link of an image.
type File struct {
	Name string
	Link string // symbolic link to it
	Data []byte
	Mode int64
}

// Push makes an image and returns its reference: the layers from the lowest up.
// Layers of the same files are one to every runtime. config is the OCI image
// config's "config" object.
func (r *Registry) Push(repo, tag string, config map[string]any, layers ...[]File) (string, error) {
	descriptor := func(kind string, b []byte) map[string]any {
		return map[string]any{"mediaType": kind, "digest": digest(b), "size": len(b)}
	}
	blobs := make(map[string][]byte)
	var diffs []string
	var descriptors []any
	for _, files := range layers {
		raw, packed, err := layer(files)
		if err != nil {
			return "", fmt.Errorf("image %s:%s: %w", repo, tag, err)
		}
		blobs[digest(packed)] = packed
		diffs, descriptors = append(diffs, digest(raw)), append(descriptors, descriptor(layerType, packed))
	}
	cfg, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		return "", fmt.Errorf("image %s:%s: %w", repo, tag, err)
	}
	blobs[digest(cfg)] = cfg
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": descriptor(configType, cfg), "layers": descriptors,
	})
	if err != nil {
		return "", fmt.Errorf("image %s:%s: %w", repo, tag, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.blobs, blobs)
	r.manifests[repo+":"+tag], r.manifests[repo+":"+digest(manifest)] = manifest, manifest
	return r.Addr() + "/" + repo + ":" + tag, nil
}

// pushBusybox makes the image that most tests run: every busybox applet, with
// layers of extra files above, and what config adds to its configuration.
func (r *Registry) pushBusybox(applets []string, repo, tag string, config map[string]any, extra ...[]File) (string, error) {
	bin, err := os.ReadFile(busybox)
	if err != nil {
		return "", err
	}
	files := []File{
		{Name: "bin/", Mode: 0o755},
		{Name: "bin/busybox", Data: bin, Mode: 0o755},
		{Name: "etc/", Mode: 0o755},
		{Name: "proc/", Mode: 0o755},
		{Name: "sys/", Mode: 0o755},
		{Name: "dev/", Mode: 0o755},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "root/", Mode: 0o700},
		{Name: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nwheel:x:10:root\nnogroup:x:65534:\n")},
	}
	for _, a := range applets {
		if a != "busybox" {
			files = append(files, File{Name: "bin/" + a, Link: "busybox"})
		}
	}
	all := map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": []string{"sh"}, "WorkingDir": "/"}
	maps.Copy(all, config)
	return r.Push(repo, tag, all, append([][]File{files}, extra...)...)
}

// packedLayers has what pack returned for layers that many images have, by their digests.
var packedLayers sync.Map

// maxPackedLayer is the largest layer that is remembered: that of busybox has 2 MB.
const maxPackedLayer = 4 << 20

// layer returns the archive of files, and what a registry has of it. The caller must not change them.
func layer(files []File) (raw, packed []byte, err error) {
	raw, err = archive(files)
	if err != nil {
		return nil, nil, err
	}
	key := sha256.Sum256(raw)
	if known, ok := packedLayers.Load(key); ok {
		return raw, known.([]byte), nil
	}
	if packed, err = pack(raw); err != nil {
		return nil, nil, err
	}
	if len(raw) <= maxPackedLayer {
		packedLayers.Store(key, packed)
	}
	return raw, packed, nil
}

func archive(files []File) ([]byte, error) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Data)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch {
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		case strings.HasSuffix(f.Name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := tw.Write(f.Data); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func pack(raw []byte) ([]byte, error) {
	var z bytes.Buffer
	zw, err := gzip.NewWriterLevel(&z, gzip.BestSpeed) // it is made for one test
	if err != nil {
		return nil, err
	}
	if _, err := zw.Write(raw); err != nil {
		return nil, err
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	return z.Bytes(), nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
