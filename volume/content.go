package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// file is one file of a volume's content.
type file struct {
	data []byte
	mode fs.FileMode
	uid  *int64 // owner; nil: the agent
}

// payload is the complete content of a volume by slash-separated path.
type payload map[string]file

// contentPlugin returns the plugin of a volume whose files come from objects or the pod, and
// "" for others.
func contentPlugin(vol *corev1.Volume) string {
	switch {
	case vol.ConfigMap != nil:
		return pluginConfigMap
	case vol.Secret != nil:
		return pluginSecret
	case vol.DownwardAPI != nil:
		return pluginDownward
	case vol.Projected != nil:
		return pluginProjected
	}
	return ""
}

// content mounts a volume whose files come from objects or the pod. One that is mounted stays as it
// is if it cannot be updated: its containers still need it, and may have to be started again.
func (m *Manager) content(ctx context.Context, r *request, plugin string) (runtime.Volume, error) {
	path, err := m.updateContent(ctx, r, plugin)
	if err != nil {
		mounted, ok := mountedContent(r, plugin)
		if ctx.Err() != nil || !ok {
			return runtime.Volume{}, err
		}
		path, err = mounted, fmt.Errorf("%w: %w", runtime.ErrNotUpdated, err)
	}
	return runtime.Volume{HostPath: path, ReadOnly: true, SELinuxRelabel: true}, err
}

// mountedContent returns the path of a volume that has content, from this process or an earlier
// one. The link to it is made last, so that it is complete.
func mountedContent(r *request, plugin string) (path string, ok bool) {
	dir, err := r.open()
	if err != nil {
		return "", false
	}
	rel := filepath.Join(volumesDir, plugin, r.vol.Name)
	info, err := dir.Stat(filepath.Join(rel, dataLink))
	return filepath.Join(dir.path, rel), err == nil && info.IsDir()
}

// updateContent mounts a volume or brings its files up to date, and returns its path.
func (m *Manager) updateContent(ctx context.Context, r *request, plugin string) (path string, err error) {
	files, err := m.gather(ctx, r)
	if err != nil {
		return "", err
	}
	gid, nested := fsGroup(r.pod), nestedMounts(r.pod, r.vol.Name)
	if cached, ok := m.cache.get(r.pod.UID, r.vol.Name); ok && slices.Equal(cached.nested, nested) && cached.hasContent(plugin, files, gid) {
		return cached.path, nil
	}
	if r.dir, err = r.open(); err != nil {
		return "", err
	}
	rel := filepath.Join(volumesDir, plugin, r.vol.Name)
	secret := plugin == pluginSecret || hasSecret(r.vol)
	if err := m.contentDir(r, rel, secret); err != nil {
		return "", err
	}
	root, err := r.dir.OpenRoot(rel)
	if err != nil {
		return "", fmt.Errorf("open volume directory: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing is buffered
	path = filepath.Join(r.dir.path, rel)
	w := writer{ctx: ctx, root: root, path: path, gid: gid, nested: nested}
	if err := w.write(files); err != nil {
		return "", fmt.Errorf("write volume content: %w", err)
	}
	if data, err := root.Readlink(dataLink); err == nil {
		m.cache.put(r.pod.UID, r.vol.Name, mountedVolume{path: path, plugin: plugin, files: files, gid: gid, nested: nested, data: data, at: time.Now()})
	}
	return path, nil
}

func hasSecret(vol *corev1.Volume) bool {
	if vol.Projected == nil {
		return false
	}
	for _, s := range vol.Projected.Sources {
		if s.Secret != nil || s.ServiceAccountToken != nil || s.PodCertificate != nil {
			return true
		}
	}
	return false
}

// contentDir creates the directory of a volume, on a tmpfs if it contains secrets and a
// tmpfs can be mounted. Every user in the container may list it; the files have their
// own modes.
func (m *Manager) contentDir(r *request, rel string, secret bool) error {
	parentMode := fs.FileMode(modeTraverse)
	if secret {
		parentMode = modeSecret
	}
	if err := r.dir.ensureDir(filepath.Dir(rel), parentMode); err != nil {
		return err
	}
	if err := r.dir.ensureDir(rel, 0o755); err != nil {
		return err
	}
	if secret && m.mount.canMount() {
		if is, err := r.dir.isMountPoint(rel); is || err != nil {
			return err
		}
		err := m.mount.tmpfs(filepath.Join(r.dir.path, rel), tmpfsOptions{mode: 0o755, plain: true})
		if !errors.Is(err, ErrPrivilege) {
			return err
		}
		m.cfg.Logger.Warn("tmpfs unavailable, storing secret volume on disk",
			logattr.Pod(r.pod), logattr.PodUID(r.pod.UID), slog.String("volume", r.vol.Name))
	}
	return nil
}

// gather returns the files of a volume. The error names all missing objects and keys.
func (m *Manager) gather(ctx context.Context, r *request) (payload, error) {
	g := gatherer{ctx: ctx, m: m, r: r, files: make(payload)}
	switch v := r.vol; {
	case v.ConfigMap != nil:
		g.mode = v.ConfigMap.DefaultMode
		g.object(podspec.ConfigMap, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)
	case v.Secret != nil:
		g.mode = v.Secret.DefaultMode
		g.object(podspec.Secret, v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)
	case v.DownwardAPI != nil:
		g.mode = v.DownwardAPI.DefaultMode
		g.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		g.mode = v.Projected.DefaultMode
		g.projected(v.Projected.Sources)
	}
	return g.files, errors.Join(g.errs...)
}

type gatherer struct {
	ctx   context.Context // lives for one call of gather
	m     *Manager
	r     *request
	mode  *int32
	files payload
	errs  []error
}

func (g *gatherer) fail(format string, args ...any) {
	g.errs = append(g.errs, fmt.Errorf(format, args...))
}

func (g *gatherer) put(at string, data []byte, mode *int32) {
	clean := path.Clean(at)
	if at == "" || !filepath.IsLocal(at) || clean == "." || strings.HasPrefix(clean, "..") {
		g.fail("invalid file path %q: %w", at, ErrUnsafe)
		return
	}
	if mode == nil {
		mode = g.mode
	}
	perm := fs.FileMode(0o644)
	if mode != nil {
		perm = fs.FileMode(*mode) & fs.ModePerm
	}
	g.files[clean] = file{data: data, mode: perm}
}

// putPrivate adds a file that only the user of the containers and the fsGroup may read. If
// neither is known, it is as any other file.
func (g *gatherer) putPrivate(at string, data []byte) {
	uid := containerUser(g.r.pod)
	if uid == nil && fsGroup(g.r.pod) == nil {
		g.put(at, data, nil)
		return
	}
	mode := privateMode
	g.put(at, data, &mode)
	if f, ok := g.files[path.Clean(at)]; ok {
		f.uid = uid
		g.files[path.Clean(at)] = f
	}
}

func (g *gatherer) object(kind, name string, items []corev1.KeyToPath, optional *bool) {
	isOptional := optional != nil && *optional
	ref := podspec.Ref{Kind: kind, Namespace: g.r.pod.Namespace, Name: name}
	o, err := g.lookup(ref)
	if err != nil {
		if !isOptional || !errors.Is(err, podspec.ErrObjectNotFound) {
			g.fail("%s %s/%s: %w", kind, ref.Namespace, name, err)
		}
		return
	}
	if len(items) == 0 {
		for key, data := range o.Data {
			if err := checkElement("key", key); err != nil {
				g.fail("%s %s/%s: %w", kind, ref.Namespace, name, err)
				continue
			}
			g.put(key, data, nil)
		}
	}
	for _, item := range items {
		data, ok := o.Data[item.Key]
		if ok {
			g.put(item.Path, data, item.Mode)
		} else if !isOptional {
			g.fail("%s %s/%s has no key %q", kind, ref.Namespace, name, item.Key)
		}
	}
}

func (g *gatherer) lookup(ref podspec.Ref) (podspec.Object, error) {
	if g.r.objects == nil {
		return podspec.Object{}, podspec.ErrObjectNotFound
	}
	return g.r.objects.Object(g.ctx, ref)
}

func (g *gatherer) downward(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		item := &items[i]
		switch {
		case item.FieldRef != nil:
			value, ok := podspec.FieldValue(g.r.pod, item.FieldRef.FieldPath)
			if !ok {
				g.fail("field %q cannot be used in a fieldRef", item.FieldRef.FieldPath)
				continue
			}
			g.put(item.Path, []byte(value), item.Mode)
		case item.ResourceFieldRef != nil:
			value, err := podspec.ResourceValue(g.r.pod, nil, item.ResourceFieldRef, g.m.cfg.Allocatable)
			if err != nil {
				g.errs = append(g.errs, err)
				continue
			}
			g.put(item.Path, []byte(value), item.Mode)
		default:
			g.fail("item %q of downwardAPI has no source", item.Path)
		}
	}
}

func (g *gatherer) projected(sources []corev1.VolumeProjection) {
	for i := range sources {
		switch s := &sources[i]; {
		case s.ConfigMap != nil:
			g.object(podspec.ConfigMap, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
		case s.Secret != nil:
			g.object(podspec.Secret, s.Secret.Name, s.Secret.Items, s.Secret.Optional)
		case s.DownwardAPI != nil:
			g.downward(s.DownwardAPI.Items)
		case s.ServiceAccountToken != nil:
			g.token(s.ServiceAccountToken)
		case s.ClusterTrustBundle != nil:
			g.trustBundle(s.ClusterTrustBundle)
		case s.PodCertificate != nil:
			g.certificate(s.PodCertificate)
		case *s == (corev1.VolumeProjection{}): // valid and empty
		default:
			g.fail("unsupported source %d of the projected volume", i)
		}
	}
}
