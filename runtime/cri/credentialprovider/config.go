package credentialprovider

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	configv1 "k8s.io/kubelet/config/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"

	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

// configKind is what a configuration file contains.
const configKind = "CredentialProviderConfig"

// readConfig reads a configuration file, or those of a directory that end in .json, .yaml
// or .yml, in the order of their names.
func readConfig(path string) ([]configv1.CredentialProvider, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		files = nil
		for _, e := range entries {
			if !e.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s: no file ends in .json, .yaml or .yml", path)
		}
	}
	var all []configv1.CredentialProvider
	var errs []error
	for _, file := range files {
		providers, err := readConfigFile(file)
		all, errs = append(all, providers...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: providers: at least one required", path)
	}
	return all, nil
}

func readConfigFile(path string) ([]configv1.CredentialProvider, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var cfg configv1.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(text, &cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	group, version, _ := strings.Cut(cfg.APIVersion, "/")
	if cfg.Kind != configKind || group != configv1.GroupName || !isVersion(version) {
		return nil, fmt.Errorf("%s: is a %s of %s, must be a %s of %s", path, cfg.Kind, cfg.APIVersion, configKind, configv1.SchemeGroupVersion)
	}
	return cfg.Providers, nil
}

// isVersion reports whether a version of the configuration, or of the API of plugins, is one that a kubelet takes. What they
// have in common has the same form in all.
func isVersion(version string) bool {
	return slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, version)
}

// check returns all errors of the providers.
func check(providers []configv1.CredentialProvider, binDir string, hasAccounts bool) error {
	var errs []error
	names := map[string]bool{}
	for i, p := range providers {
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("providers[%d] %q: "+format, append([]any{i, p.Name}, args...)...))
		}
		if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ \x00") {
			fail("name: must be the name of a program, without slashes and spaces")
		} else if err := executable(filepath.Join(binDir, p.Name)); err != nil {
			fail("%w", err)
		}
		if names[p.Name] {
			fail("name: used twice")
		}
		names[p.Name] = true
		if group, version, _ := strings.Cut(p.APIVersion, "/"); group != apiv1.GroupName || !isVersion(version) {
			fail("apiVersion: %q is not supported, only %s", p.APIVersion, apiv1.SchemeGroupVersion)
		}
		if len(p.MatchImages) == 0 {
			fail("matchImages: at least one required")
		}
		for _, pattern := range p.MatchImages {
			if !images.IsPlace(pattern) {
				fail("matchImages: %q is not a registry with an optional path", pattern)
			}
		}
		if p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0 {
			fail("defaultCacheDuration: required, and must not be negative; 0s: nothing is cached")
		}
		if p.TokenAttributes != nil {
			if p.APIVersion != apiv1.SchemeGroupVersion.String() {
				fail("tokenAttributes: need apiVersion %s", apiv1.SchemeGroupVersion)
			}
			for _, err := range checkTokens(p.TokenAttributes, hasAccounts) {
				fail("tokenAttributes: %w", err)
			}
		}
		for _, v := range p.Env {
			if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") {
				fail("env: %q is not the name of a variable", v.Name)
			}
		}
	}
	return errors.Join(errs...)
}

// checkTokens returns all errors of the attributes of a plugin that gets tokens.
func checkTokens(a *configv1.ServiceAccountTokenAttributes, hasAccounts bool) (errs []error) {
	fail := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	requires := a.RequireServiceAccount != nil && *a.RequireServiceAccount
	fail(requires && !hasAccounts, "requireServiceAccount: there are no service accounts without a cluster")
	fail(a.ServiceAccountTokenAudience == "", "serviceAccountTokenAudience: required")
	fail(a.RequireServiceAccount == nil, "requireServiceAccount: required")
	fail(!requires && len(a.RequiredServiceAccountAnnotationKeys) > 0, "requiredServiceAccountAnnotationKeys need requireServiceAccount: true")
	fail(a.CacheType != configv1.ServiceAccountServiceAccountTokenCacheType && a.CacheType != configv1.TokenServiceAccountTokenCacheType,
		"cacheType: %q must be ServiceAccount or Token", a.CacheType)
	used := map[string]bool{}
	for _, key := range slices.Concat(a.RequiredServiceAccountAnnotationKeys, a.OptionalServiceAccountAnnotationKeys) {
		fail(used[key], "annotation %q: used twice", key)
		used[key] = true
		for _, why := range validation.IsQualifiedName(strings.ToLower(key)) {
			fail(true, "annotation %q: %s", key, why)
		}
	}
	return errs
}

// executable returns an error for what is not a program.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s: not an executable file", path)
	}
	return nil
}
