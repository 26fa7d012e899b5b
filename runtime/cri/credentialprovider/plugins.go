package credentialprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kubelet/config/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

const (
	pluginTimeout = time.Minute     // as in the kubelet
	pipeTimeout   = 5 * time.Second // of a plugin that has ended, but whose children have not
	maxCached     = 1000            // answers of each plugin
)

// Plugins are credential provider plugins. Each is called for the images that it matches,
// and its answers are cached as long as it says.
type Plugins struct {
	plugins []*plugin
	log     *slog.Logger
}

// PluginsConfig says where plugins are.
type PluginsConfig struct {
	// Path is the configuration, as for a kubelet's --image-credential-provider-config: a
	// file or a directory of files. Required.
	Path string
	// BinDir is the directory of the programs. Required.
	BinDir string
	// ServiceAccounts are those of the cluster. Default: none, and a plugin that requires one
	// is an error.
	ServiceAccounts ServiceAccounts
	Logger          *slog.Logger // default: discard
}

// LoadPlugins reads the configuration of plugins. The error has everything that is wrong.
func LoadPlugins(cfg PluginsConfig) (*Plugins, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	providers, err := readConfig(cfg.Path)
	if err == nil {
		err = check(providers, cfg.BinDir, cfg.ServiceAccounts != nil)
	}
	if err != nil {
		return nil, fmt.Errorf("credential provider plugins: %w", err)
	}
	p := &Plugins{log: log}
	for i := range providers {
		p.plugins = append(p.plugins, &plugin{cfg: &providers[i], path: filepath.Join(cfg.BinDir, providers[i].Name), accounts: cfg.ServiceAccounts, log: log, cache: map[string]cached{}, calls: map[string]*call{}})
	}
	return p, nil
}

// Credentials implements cri.CredentialProvider. It blocks for a minute at most for each
// plugin that has to be called, in their order. Of two logins for the same place that of
// the first plugin is tried first.
func (p *Plugins) Credentials(ctx context.Context, image string) (map[string]cri.RegistryLogin, error) {
	return p.PodCredentials(ctx, &corev1.Pod{}, image)
}

// PodCredentials implements cri.PodCredentialProvider: plugins that want it get a token of
// the pod's service account. As from a kubelet, they get the full name of the repository, without
// tag and digest: docker.io/library/nginx.
func (p *Plugins) PodCredentials(ctx context.Context, pod *corev1.Pod, image string) (map[string]cri.RegistryLogin, error) {
	image = images.RepositoryOf(image)
	all := map[string]cri.RegistryLogin{}
	var errs []error
	for _, plugin := range p.plugins {
		if !plugin.matches(image) {
			continue
		}
		logins, err := plugin.podCredentials(ctx, pod, image)
		if err != nil {
			errs = append(errs, fmt.Errorf("credential provider plugin %s: %w", plugin.cfg.Name, err))
		}
		addLogins(all, logins)
	}
	return all, errors.Join(errs...)
}

// plugin is one plugin.
type plugin struct {
	cfg  *configv1.CredentialProvider
	path string
	log  *slog.Logger
	// accounts is nil without a cluster.
	accounts ServiceAccounts

	mu    sync.Mutex
	cache map[string]cached
	calls map[string]*call // under way, by query.key
}

// call is a call of a plugin that several pods may wait for.
type call struct {
	waiters int // guarded by plugin.mu
	cancel  context.CancelFunc
	done    chan struct{}

	logins map[string]cri.RegistryLogin // set before done is closed
	err    error
}

// cached is an answer of a plugin.
type cached struct {
	logins map[string]cri.RegistryLogin // read-only
	until  time.Time
}

// isCurrent reports whether the logins may be used. Their registry keeps their time, so that they are old by
// either clock: the monotonic one stands still while the machine is suspended.
func (c cached) isCurrent(now time.Time) bool {
	return now.Before(c.until) && now.Round(0).Before(c.until.Round(0))
}

func (p *plugin) matches(image string) bool {
	return slices.ContainsFunc(p.cfg.MatchImages, func(pattern string) bool { return images.Matches(pattern, image) })
}

// credentials returns the cached answer to a query, or calls the plugin.
func (p *plugin) credentials(ctx context.Context, q query) (map[string]cri.RegistryLogin, error) {
	if logins, ok := p.lookup(q); ok {
		return logins, nil
	}
	c := p.join(ctx, q)
	select {
	case <-c.done:
		return c.logins, c.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	c.waiters--
	last := c.waiters == 0
	if last && p.calls[q.key()] == c {
		delete(p.calls, q.key())
	}
	p.mu.Unlock()
	if last {
		c.cancel()
		<-c.done // soon: the program is killed
	}
	return nil, ctx.Err()
}

// join returns the call for a query, begun now if there is none. It goes on as long as
// anybody waits for it.
func (p *plugin) join(ctx context.Context, q query) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := q.key()
	if c := p.calls[key]; c != nil {
		c.waiters++
		return c
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pluginTimeout)
	c := &call{waiters: 1, cancel: cancel, done: make(chan struct{})}
	p.calls[key] = c
	go func() {
		defer close(c.done)
		defer cancel()
		c.logins, c.err = p.call(ctx, q)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.calls[key] == c {
			delete(p.calls, key)
		}
	}()
	return c
}

// cacheKey returns the key of answers of a type to a query. The types cannot be confused:
// no image has a colon at its beginning.
func cacheKey(t apiv1.PluginCacheKeyType, q query) (string, bool) {
	switch t {
	case apiv1.ImagePluginCacheKeyType:
		return q.scope + q.image, true
	case apiv1.RegistryPluginCacheKeyType:
		registry, _, _ := strings.Cut(q.image, "/")
		return q.scope + ":registry " + registry, true
	case apiv1.GlobalPluginCacheKeyType:
		return q.scope + ":global", true
	}
	return "", false
}

func (p *plugin) lookup(q query) (map[string]cri.RegistryLogin, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range []apiv1.PluginCacheKeyType{apiv1.ImagePluginCacheKeyType, apiv1.RegistryPluginCacheKeyType, apiv1.GlobalPluginCacheKeyType} {
		key, _ := cacheKey(t, q)
		if c, ok := p.cache[key]; ok && c.isCurrent(time.Now()) {
			return c.logins, true
		}
	}
	return nil, false
}

func (p *plugin) store(key string, logins map[string]cri.RegistryLogin, duration time.Duration) {
	if duration <= 0 {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.cache, func(_ string, c cached) bool { return !c.isCurrent(now) })
	if len(p.cache) >= maxCached {
		clear(p.cache)
	}
	p.cache[key] = cached{logins, now.Add(duration)}
}

// call runs the plugin and stores its answer.
func (p *plugin) call(ctx context.Context, q query) (map[string]cri.RegistryLogin, error) {
	response, err := p.run(ctx, q)
	if err != nil {
		return nil, err
	}
	key, ok := cacheKey(response.CacheKeyType, q)
	if !ok {
		return nil, fmt.Errorf("cacheKeyType %q of its answer must be Image, Registry or Global", response.CacheKeyType)
	}
	logins := make(map[string]cri.RegistryLogin, len(response.Auth))
	for where, a := range response.Auth {
		if err := p.checkPassword(q, a.Password); err != nil {
			return nil, err
		}
		logins[where] = cri.RegistryLogin{Username: a.Username, Password: a.Password, ServiceAccount: q.account}
	}
	duration := p.cfg.DefaultCacheDuration.Duration
	if response.CacheDuration != nil {
		duration = response.CacheDuration.Duration
	}
	p.store(key, logins, duration)
	return logins, nil
}

// run executes the program. Neither its output nor what it writes to its standard error is
// part of the error: either may contain a login.
func (p *plugin) run(ctx context.Context, q query) (*apiv1.CredentialProviderResponse, error) {
	request, err := json.Marshal(apiv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.cfg.APIVersion, Kind: "CredentialProviderRequest"},
		Image:    q.image, ServiceAccountToken: q.token, ServiceAccountAnnotations: q.annotations,
	})
	if err != nil {
		return nil, err
	}
	var out boundedBuffer
	cmd := exec.CommandContext(ctx, p.path, p.cfg.Args...)
	cmd.Stdin, cmd.Stdout, cmd.WaitDelay = bytes.NewReader(request), &out, pipeTimeout
	cmd.Env = os.Environ()
	for _, v := range p.cfg.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	start := time.Now()
	err = cmd.Run()
	p.log.Debug("credential provider plugin called", slog.String("plugin", p.cfg.Name), slog.String("image", q.image),
		slog.Duration("duration", time.Since(start)), logattr.Err(err))
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer within %v: %w", pluginTimeout, ctx.Err())
	case err != nil:
		return nil, fmt.Errorf("%w; run %s by hand with a request on its standard input to see why", err, p.path)
	case out.full:
		return nil, fmt.Errorf("its answer is larger than %d bytes", maxFileBytes)
	}
	var response apiv1.CredentialProviderResponse
	if json.Unmarshal(out.kept.Bytes(), &response) != nil { // the decoder's error may quote the text
		return nil, errors.New("its answer is not a JSON object of a CredentialProviderResponse")
	}
	if response.Kind != "CredentialProviderResponse" || response.APIVersion != p.cfg.APIVersion {
		return nil, fmt.Errorf("its answer must be a CredentialProviderResponse of %s", p.cfg.APIVersion)
	}
	return &response, nil
}

// boundedBuffer keeps at most maxFileBytes of what is written to it. It does not embed the
// Buffer, whose ReadFrom has no bound.
type boundedBuffer struct {
	kept bytes.Buffer
	full bool
}

// Write implements io.Writer. It never fails, so that the writer ends by itself.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > maxFileBytes {
		b.full = true
		return len(p), nil
	}
	return b.kept.Write(p)
}
