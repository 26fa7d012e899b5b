package credentialprovider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/cri/credentialprovider"
)

// TestMain is also the plugin of the tests: what it does is in a variable that its
// configuration sets.
func TestMain(m *testing.M) {
	if mode := os.Getenv("TEST_PLUGIN"); mode != "" {
		answer(mode)
		return
	}
	leaktest.Main(m)
}

// answer is the plugin. It counts its calls in a file.
func answer(mode string) {
	log, err := os.OpenFile(os.Getenv("TEST_CALLS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	var request struct {
		Kind, APIVersion, Image, ServiceAccountToken string
		ServiceAccountAnnotations                    map[string]string
	}
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		panic(err)
	}
	line := fmt.Sprintln(request.Kind, request.APIVersion, request.Image, strings.Join(os.Args[1:], " "), request.ServiceAccountToken, request.ServiceAccountAnnotations)
	fmt.Fprintln(log, strings.TrimRight(strings.TrimSuffix(line, "map[]\n"), " \n"))
	_ = log.Close()
	const form = `{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":%q,%s"auth":{%q:{"username":"u","password":"hunter2"}}}`
	registry, _, _ := strings.Cut(request.Image, "/")
	switch mode {
	case "fail":
		fmt.Fprintln(os.Stderr, "hunter2")
		panic("hunter2")
	case "nonsense":
		fmt.Print(`{"auth":{"x":{"password":hunter2`)
	case "version":
		fmt.Print(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v9"}`)
	case "kind":
		fmt.Print(`{"kind":"Other","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image"}`)
	case "huge":
		fmt.Print(strings.Repeat(" ", 2<<20))
	case "slow":
		time.Sleep(time.Hour) // it is killed
	case "echo":
		fmt.Printf(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","auth":{"r.example":{"username":"u","password":%q}}}`, request.ServiceAccountToken)
	case "none":
		fmt.Printf(form, "Image", `"cacheDuration":"0s",`, registry)
	default:
		fmt.Printf(form, mode, "", registry)
	}
}

// setup installs the test binary as a plugin with the name of each mode, and returns what
// LoadPlugins gets and the file with the calls.
func setup(t *testing.T, mode, match string) (config, binDir, calls string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "plugin")))
	config, calls = filepath.Join(dir, "config.yaml"), filepath.Join(dir, "calls")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%q]
  defaultCacheDuration: 1h
  args: [--verbose]
  env: [{name: TEST_PLUGIN, value: %q}, {name: TEST_CALLS, value: %q}]
`, match, mode, calls), 0o600))
	return config, dir, calls
}

func load(t *testing.T, mode, match string) (cri.CredentialProvider, func() []string) {
	t.Helper()
	config, dir, calls := setup(t, mode, match)
	p, err := credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: config, BinDir: dir})
	require.NoError(t, err)
	return p, func() []string {
		text, err := os.ReadFile(calls)
		if err != nil {
			return nil
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

func TestPlugins_AreCalledForTheirImages(t *testing.T) {
	p, calls := load(t, "Image", "*.registry.example:5000/team")
	for image, want := range map[string]bool{
		"eu.registry.example:5000/team/app:1": true,
		"eu.registry.example:5000/teams/app":  false,
		"eu.registry.example/team/app:1":      false,
		"a.eu.registry.example:5000/team/app": false,
		"nginx":                               false,
	} {
		logins, err := p.Credentials(t.Context(), image)
		require.NoError(t, err)
		if want {
			require.Equal(t, map[string]cri.RegistryLogin{"eu.registry.example:5000": {Username: "u", Password: "hunter2"}}, logins)
		} else {
			require.Empty(t, logins, image)
		}
	}
	require.Equal(t, []string{"CredentialProviderRequest credentialprovider.kubelet.k8s.io/v1 eu.registry.example:5000/team/app --verbose"}, calls())
}

// A plugin finds the registry at the beginning of the name, and a tag is no other image to it.
func TestPlugins_GetTheFullNameOfTheRepository(t *testing.T) {
	const request = "CredentialProviderRequest credentialprovider.kubelet.k8s.io/v1 "
	for _, mode := range []string{"Image", "Registry"} {
		p, calls := load(t, mode, "docker.io")
		for _, image := range []string{"nginx", "nginx:1", "library/nginx:2", "docker.io/library/nginx@sha256:" + strings.Repeat("0", 64)} {
			logins, err := p.Credentials(t.Context(), image)
			require.NoError(t, err)
			require.Equal(t, map[string]cri.RegistryLogin{"docker.io": {Username: "u", Password: "hunter2"}}, logins, image)
		}
		require.Equal(t, []string{request + "docker.io/library/nginx --verbose"}, calls())
	}
	p, calls := load(t, "Registry", "docker.io")
	for _, image := range []string{"nginx", "team/app"} {
		_, err := p.Credentials(t.Context(), image)
		require.NoError(t, err)
	}
	require.Len(t, calls(), 1, "it is one registry")
}

// How long and for what an answer counts is said by the answer.
func TestPlugins_CacheAnswers(t *testing.T) {
	images := []string{"a.example/x", "a.example/x", "a.example/y", "b.example/x"}
	for mode, want := range map[string]int{"Image": 3, "Registry": 2, "Global": 1, "none": 4} {
		t.Run(mode, func(t *testing.T) {
			p, calls := load(t, mode, "*.example")
			for _, image := range images {
				_, err := p.Credentials(t.Context(), image)
				require.NoError(t, err)
			}
			require.Len(t, calls(), want)
		})
	}
}

// Pods that start together call a plugin once.
func TestPlugins_ShareCalls(t *testing.T) {
	p, calls := load(t, "Registry", "*.example")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			logins, err := p.Credentials(t.Context(), "a.example/x")
			assert.NoError(t, err)
			assert.Len(t, logins, 1)
		})
	}
	wg.Wait()
	require.Len(t, calls(), 1)
}

func TestPlugins_ReportBadAnswersWithoutSecrets(t *testing.T) {
	for mode, want := range map[string]string{
		"fail":     "run by hand",
		"nonsense": "not a JSON object",
		"version":  "must be a CredentialProviderResponse of credentialprovider.kubelet.k8s.io/v1",
		"kind":     "must be a CredentialProviderResponse",
		"huge":     "larger than 1048576 bytes",
		"Neither":  `cacheKeyType "Neither"`,
	} {
		t.Run(mode, func(t *testing.T) {
			p, _ := load(t, mode, "*.example")
			logins, err := p.Credentials(t.Context(), "a.example/x")
			require.Empty(t, logins)
			require.ErrorContains(t, err, "credential provider plugin plugin: ")
			if mode == "fail" {
				require.ErrorContains(t, err, "by hand with a request")
			} else {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

// A pod that is deleted does not wait for a plugin that hangs.
func TestPlugins_LeaveHungPluginsToOthers(t *testing.T) {
	config, dir, calls := setup(t, "slow", "*.example")
	p, err := credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: config, BinDir: dir, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := p.Credentials(ctx, "a.example/x"); done <- err }()
	require.Eventually(t, func() bool { _, err := os.Stat(calls); return err == nil }, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestLoadPlugins_ReportsAllErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"
	write("notes.txt", "not one of them")
	bad := write("a.yaml", head+`providers:
- {name: ../evil, apiVersion: v7, matchImages: ["in valid"], defaultCacheDuration: -1s, env: [{name: "A=B", value: x}]}
- {name: notes.txt, apiVersion: credentialprovider.kubelet.k8s.io/v1, tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token}}
- {name: notes.txt, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x.example], defaultCacheDuration: 0s}
- {name: missing, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x.example], defaultCacheDuration: 0s}
`)
	_, err := credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: bad, BinDir: dir})
	for _, want := range []string{
		`providers[0] "../evil": name: must be the name of a program`, `apiVersion: "v7"`, `"in valid" is not a registry`, "defaultCacheDuration", `"A=B" is not the name`,
		"matchImages: at least one required", "tokenAttributes: requireServiceAccount: required", "notes.txt: not an executable file",
		`providers[2] "notes.txt": name: used twice`, filepath.Join(dir, "missing"),
	} {
		require.ErrorContains(t, err, want)
	}
	for text, want := range map[string]string{
		head:                          "providers: at least one required",
		head + "provider: []":         `unknown field "provider"`,
		"apiVersion: v1\nkind: Pod\n": "is a Pod of v1",
		"kind: [":                     "b.yaml",
		strings.Repeat("#", 2<<20):    "larger than",
		strings.Replace(head, "/v1", "/v1beta9", 1): "kubelet.config.k8s.io/v1beta9",
	} {
		_, err := credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: write("b.yaml", text), BinDir: dir})
		require.ErrorContains(t, err, want)
	}
	_, err = credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: filepath.Join(dir, "none"), BinDir: dir})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: t.TempDir(), BinDir: dir})
	require.ErrorContains(t, err, "no file ends in")
}

// The files of a directory are all read, in order.
func TestLoadPlugins_ReadsDirectories(t *testing.T) {
	config, dir, _ := setup(t, "Image", "*.example")
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	configs := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(configs, "1.yaml"), text, 0o600))
	empty, _, _ := strings.Cut(string(text), "providers:")
	require.NoError(t, os.WriteFile(filepath.Join(configs, "2.yaml"), []byte(empty), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(configs, "3.yaml"), 0o700))
	p, err := credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: configs, BinDir: dir})
	require.NoError(t, err)
	logins, err := p.Credentials(t.Context(), "a.example/x")
	require.NoError(t, err)
	require.Len(t, logins, 1)
}

func TestDockerConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	provider := credentialprovider.DockerConfig(path)
	logins, err := provider.Credentials(t.Context(), "any")
	require.NoError(t, err)
	require.Empty(t, logins, "there is no file")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write(`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpodW50ZXIy"},"r.example/team":{"identitytoken":"t"},"broken":{"auth":"?"}},"credsStore":"osx"}`)
	logins, err = provider.Credentials(t.Context(), "any")
	require.ErrorContains(t, err, path+": 1 entries are malformed")
	require.Equal(t, map[string]cri.RegistryLogin{"https://index.docker.io/v1/": {Username: "u", Password: "hunter2"}, "r.example/team": {IdentityToken: "t"}}, logins)
	write(`{"auths": hunter2`)
	_, err = provider.Credentials(t.Context(), "any")
	require.ErrorContains(t, err, "not a docker configuration")
	require.NotContains(t, err.Error(), "hunter2")
	write(strings.Repeat(" ", 2<<20))
	_, err = provider.Credentials(t.Context(), "any")
	require.ErrorContains(t, err, "larger than")
}

// Of several logins for a place that of the first provider is tried first, and then those of the others.
func TestJoin_PrefersTheFirst(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) cri.CredentialProvider {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return credentialprovider.DockerConfig(path)
	}
	p := credentialprovider.Join(
		file("1", `{"auths":{"a.example":{"identitytoken":"1"}}}`),
		file("2", `{"auths":{"a.example":{"identitytoken":"2"},"a.example/":{"identitytoken":"3"},"b.example":{"identitytoken":"2"}}}`),
		file("3", `nonsense`),
		file("4", `{"auths":{"a.example":{"identitytoken":"1"},"https://b.example/v1/":{"identitytoken":"4"}}}`),
	)
	logins, err := p.Credentials(t.Context(), "any")
	require.ErrorContains(t, err, filepath.Join(dir, "3"))
	require.Equal(t, map[string]cri.RegistryLogin{
		"a.example": {IdentityToken: "1"}, "a.example/": {IdentityToken: "2"}, "a.example//": {IdentityToken: "3"},
		"b.example": {IdentityToken: "2"}, "https://b.example/v1/": {IdentityToken: "4"},
	}, logins)
}

func TestRegistryLogin_IsNotPrinted(t *testing.T) {
	l := cri.RegistryLogin{Username: "u", Password: "hunter2"}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", slog.Any("login", l))
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", l, l, l, log.String()), "hunter2")
}
