package credentialprovider

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	configv1 "k8s.io/kubelet/config/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/sublet-dev/agent/internal/clocktest"
	"github.com/sublet-dev/agent/runtime/cri"
)

// Each fault alone makes a configuration invalid.
func TestReadConfig_EachFault(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program"), nil, 0o700)) //nolint:gosec // a program
	require.NoError(t, os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	const head, provider = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n", "- {name: program, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x.example], defaultCacheDuration: 0s}\n"
	for _, c := range []struct{ replace, with, err string }{
		{"", "", ""},
		{"kubelet.config.k8s.io/v1\n", "kubelet.config.k8s.io/v1beta1\n", ""},
		{"kubelet.config.k8s.io/v1\n", "kubelet.config.k8s.io/v1alpha1\n", ""},
		{"kubelet.k8s.io/v1,", "kubelet.k8s.io/v1beta1,", ""},
		{"kubelet.k8s.io/v1,", "kubelet.k8s.io/v1alpha1,", ""},
		{"kubelet.k8s.io/v1,", "kubelet.k8s.io/v2,", "is not supported"},
		{"credentialprovider.kubelet.k8s.io/v1,", "v1,", "is not supported"},
		{"kind: CredentialProviderConfig", "kind: Other", "is a Other of"},
		{"kubelet.config.k8s.io", "other.k8s.io", "of other.k8s.io/v1"},
		{"config.k8s.io/v1\n", "config.k8s.io/v2\n", "of kubelet.config.k8s.io/v2"},
		{"name: program", `name: ""`, "must be the name of a program"},
		{"name: program", `name: "."`, "must be the name of a program"},
		{"name: program", `name: ".."`, "must be the name of a program"},
		{"name: program", "name: directory", "not an executable file"},
		{", defaultCacheDuration: 0s", "", "defaultCacheDuration: required"},
		{"defaultCacheDuration: 0s", "defaultCacheDuration: -1s", "must not be negative"},
		{"0s}", "0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: Token}}", ""},
		{"0s}", "0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true, cacheType: Token}}", "no service accounts without a cluster"},
		{"0s}", "0s, tokenAttributes: {requireServiceAccount: false, cacheType: Token}}", "serviceAccountTokenAudience: required"},
		{"0s}", "0s, tokenAttributes: {serviceAccountTokenAudience: a, cacheType: ServiceAccount}}", "requireServiceAccount: required"},
		{"0s}", "0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false}}", `cacheType: "" must be`},
		{"0s}", "0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: Token, requiredServiceAccountAnnotationKeys: [k]}}", "need requireServiceAccount: true"},
		{"0s}", "0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: Token, optionalServiceAccountAnnotationKeys: [k, K/l, k]}}", `"k": used twice`},
		{"0s}", "0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: Token, optionalServiceAccountAnnotationKeys: ['a b']}}", `annotation "a b":`},
		{"v1, matchImages: [x.example], defaultCacheDuration: 0s}", "v1beta1, matchImages: [x.example], defaultCacheDuration: 0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: Token}}", "need apiVersion"},
		{"0s}", `0s, env: [{name: "", value: x}]}`, `"" is not the name of a variable`},
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(head+provider, c.replace, c.with, 1)), 0o600))
		providers, err := readConfig(path)
		if err == nil {
			err = check(providers, dir, false)
		}
		if c.err == "" {
			require.NoError(t, err, c.with)
		} else {
			require.ErrorContains(t, err, c.err, c.with)
		}
	}
}

func newPlugin() *plugin {
	return &plugin{cfg: &configv1.CredentialProvider{}, log: slog.New(slog.DiscardHandler), cache: map[string]cached{}, calls: map[string]*call{}}
}

// login returns logins that differ.
func login(user string) map[string]cri.RegistryLogin {
	return map[string]cri.RegistryLogin{"r.example": {Username: user}}
}

func TestPlugin_Cache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlugin()
		p.store("r.example/none", login("none"), 0)
		assert.Empty(t, p.cache, "it is not to be cached")
		p.store("r.example/app", login("image"), time.Minute)
		p.store(":global", login("global"), time.Hour)
		logins, ok := p.lookup(query{image: "r.example/app"})
		assert.True(t, ok)
		assert.Equal(t, login("image"), logins)
		time.Sleep(time.Minute)
		logins, ok = p.lookup(query{image: "r.example/app"})
		assert.True(t, ok)
		assert.Equal(t, login("global"), logins, "the other is too old")
		p.store("r.example/next", login("next"), time.Hour)
		assert.NotContains(t, p.cache, "r.example/app", "it makes room")
		assert.Len(t, p.cache, 2)
		for i := range maxCached - 2 {
			p.store(fmt.Sprint("r.example/", i), nil, time.Hour)
		}
		assert.Len(t, p.cache, maxCached)
		p.store("r.example/more", nil, time.Hour)
		assert.Len(t, p.cache, 1)
		time.Sleep(time.Hour)
		_, ok = p.lookup(query{image: "r.example/more"})
		assert.False(t, ok)
	})
}

// AG-10: answers are old by either clock.
func TestPlugin_CacheOverASetClock(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		until time.Time
		want  bool
	}{
		"new":                          {now.Add(time.Hour), true},
		"old":                          {now.Add(-time.Second), false},
		"the machine was suspended":    {clocktest.BeforeSetBack(t, now.Add(time.Hour), -8*time.Hour), false},
		"the clock was set forward":    {clocktest.BeforeSetBack(t, now.Add(3*time.Hour), -2*time.Hour), true},
		"the clock was set back":       {clocktest.BeforeSetBack(t, now.Add(-time.Second), 2*time.Hour), false},
		"set back, and the answer new": {clocktest.BeforeSetBack(t, now.Add(time.Hour), 2*time.Hour), true},
	} {
		assert.Equal(t, tt.want, cached{until: tt.until}.isCurrent(now), name)
	}
}

// A call goes on as long as one pod waits for it.
func TestPlugin_WaitersOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, done, stopped := newPlugin(), make(chan struct{}), false
		c := &call{waiters: 1, done: done, cancel: func() { stopped = true; close(done) }}
		p.calls["app"] = c
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.credentials(canceled, query{image: "app"})
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, []any{1, c, false}, []any{c.waiters, p.calls["app"], stopped}, "the other one waits")
		c.waiters = 0
		_, err = p.credentials(canceled, query{image: "app"})
		require.ErrorIs(t, err, context.Canceled)
		assert.True(t, stopped)
		assert.Empty(t, p.calls, "the next pod begins another")

		first, second := &call{done: make(chan struct{})}, &call{}
		first.cancel = func() { close(first.done) }
		p.calls["app"] = first
		waiting, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { _, err := p.credentials(waiting, query{image: "app"}); ended <- err }()
		synctest.Wait()
		p.calls["app"] = second
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		assert.Same(t, second, p.calls["app"], "that of others")

		second.done, second.logins = done, login("shared") // which has ended
		logins, err := p.credentials(t.Context(), query{image: "app"})
		require.NoError(t, err)
		assert.Equal(t, login("shared"), logins)
	})
}

func TestPlugin_Run(t *testing.T) {
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("TEST_PLUGIN", "Image")
	t.Setenv("TEST_CALLS", calls)
	p := newPlugin()
	p.cfg.APIVersion = apiv1.SchemeGroupVersion.String()
	var err error
	p.path, err = os.Executable()
	require.NoError(t, err)
	response, err := p.run(t.Context(), query{image: "r.example/app"})
	require.NoError(t, err, "it has the environment of this process")
	assert.Contains(t, response.Auth, "r.example")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.run(ctx, query{image: "r.example/app"})
	require.ErrorContains(t, err, "no answer within 1m0s")
}

func TestBoundedBuffer(t *testing.T) {
	var b boundedBuffer
	for _, c := range []struct {
		size int
		full bool
	}{{maxFileBytes - 1, false}, {1, false}, {0, false}, {1, true}} {
		n, err := b.Write(bytes.Repeat([]byte{'x'}, c.size))
		require.NoError(t, err)
		assert.Equal(t, c.size, n)
		assert.Equal(t, c.full, b.full)
	}
	assert.Equal(t, maxFileBytes, b.kept.Len())
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, b.kept.Bytes(), 0o600))
	text, err := readFile(path)
	require.NoError(t, err)
	assert.Len(t, text, maxFileBytes)
}
