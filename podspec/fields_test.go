package podspec

import (
	"bufio"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// documented reads FIELDS.md: what becomes of each field, by type and field.
func documented(t *testing.T) map[string]map[string]string {
	t.Helper()
	f, err := os.Open("FIELDS.md")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	types, current := make(map[string]map[string]string), ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, "## "); ok {
			current = name
			types[name] = make(map[string]string)
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], "-") || strings.TrimSpace(cells[1]) == "field" {
			continue
		}
		field := strings.TrimSpace(cells[1])
		assert.NotContains(t, types[current], field, "twice")
		types[current][field] = strings.TrimSpace(cells[2])
	}
	return types
}

// FIELDS.md contains every field of the API, and exactly the fields that it lists as
// rejected are rejected, by name.
func TestFieldsDoc_CoversEveryField(t *testing.T) {
	docs := documented(t)
	for _, tc := range []struct {
		of     any
		target func(*corev1.Pod) any // where in a pod such a value goes
	}{
		{corev1.PodSpec{}, func(p *corev1.Pod) any { return &p.Spec }},
		{corev1.Container{}, func(p *corev1.Pod) any { return &p.Spec.Containers[0] }},
		{corev1.EnvVarSource{}, func(p *corev1.Pod) any {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{}}}
			return p.Spec.Containers[0].Env[0].ValueFrom
		}},
		{corev1.VolumeSource{}, func(p *corev1.Pod) any {
			p.Spec.Volumes = make([]corev1.Volume, 1)
			return &p.Spec.Volumes[0].VolumeSource
		}},
		{corev1.VolumeProjection{}, func(p *corev1.Pod) any {
			p.Spec.Volumes = make([]corev1.Volume, 1)
			p.Spec.Volumes[0].Projected = &corev1.ProjectedVolumeSource{Sources: make([]corev1.VolumeProjection, 1)}
			return &p.Spec.Volumes[0].Projected.Sources[0]
		}},
		{corev1.PodSecurityContext{}, func(p *corev1.Pod) any {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{}
			return p.Spec.SecurityContext
		}},
		{corev1.SecurityContext{}, func(p *corev1.Pod) any {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{}
			return p.Spec.Containers[0].SecurityContext
		}},
	} {
		typ := reflect.TypeOf(tc.of)
		doc := docs[typ.Name()]
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			t.Run(typ.Name()+"."+name, func(t *testing.T) {
				what, ok := doc[name]
				delete(doc, name)
				require.True(t, ok, "FIELDS.md does not say what becomes of it")
				assert.Contains(t, []string{"works", "passed", "rejected", "ignored"}, what)

				pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
				fill(reflect.ValueOf(tc.target(pod)).Elem().Field(i))
				var rejected []string
				for _, e := range Unsupported(pod) {
					rejected = append(rejected, e.Field)
				}
				if what != "rejected" {
					assert.Empty(t, rejected)
					return
				}
				require.Len(t, rejected, 1)
				assert.Contains(t, rejected[0], name)
			})
		}
		assert.Empty(t, doc, "FIELDS.md has fields that %s has not", typ.Name())
	}
}

// Types below those above are in the documentation too, so that a field that the API gains far below cannot be forgotten either.
func TestFieldsDoc_CoversNestedFields(t *testing.T) {
	docs := documented(t)
	// Lists of containers have a common part that is Container once more.
	visited := map[string]bool{"Volume": true, "EphemeralContainer": true, "EphemeralContainerCommon": true, "VolumeDevice": true}
	var walk func(reflect.Type, string)
	walk = func(typ reflect.Type, owner string) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		embedded := owner != ""
		if typ.Kind() != reflect.Struct || !strings.HasSuffix(typ.PkgPath(), "core/v1") || !embedded && visited[typ.Name()] {
			return
		}
		if !embedded {
			visited[typ.Name()], owner = true, typ.Name()
		}
		for f := range typ.Fields() {
			if f.Anonymous {
				walk(f.Type, owner)
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			what, ok := docs[owner][name]
			assert.True(t, ok, "FIELDS.md does not say what becomes of %s.%s", owner, name)
			if what == "works" || what == "passed" {
				walk(f.Type, "")
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec](), "")
	walk(reflect.TypeFor[corev1.VolumeSource](), "")
	for name := range docs {
		assert.True(t, visited[name] || name == "", "FIELDS.md has %s, which no pod has", name)
	}
}

func TestUnsupportedBelow(t *testing.T) {
	for field, spec := range map[string]string{
		"spec.volumes[0].emptyDir.mode":                                  "{volumes: [{name: v, emptyDir: {mode: 0700}}, {name: w, emptyDir: {mode: 0777}}]}",
		"spec.volumes[0].secret.defaultUser":                             "{volumes: [{name: v, secret: {secretName: s, defaultUser: 1}}]}",
		"spec.volumes[0].secret.items[0].user":                           "{volumes: [{name: v, secret: {secretName: s, items: [{key: k, path: p, user: 1}]}}]}",
		"spec.volumes[0].configMap.defaultUser":                          "{volumes: [{name: v, configMap: {name: s, defaultUser: 1}}]}",
		"spec.volumes[0].configMap.items[0].user":                        "{volumes: [{name: v, configMap: {name: s, items: [{key: k, path: p, user: 1}]}}]}",
		"spec.volumes[0].downwardAPI.defaultUser":                        "{volumes: [{name: v, downwardAPI: {defaultUser: 1}}]}",
		"spec.volumes[0].downwardAPI.items[0].user":                      "{volumes: [{name: v, downwardAPI: {items: [{path: p, user: 1}]}}]}",
		"spec.volumes[0].projected.defaultUser":                          "{volumes: [{name: v, projected: {defaultUser: 1}}]}",
		"spec.volumes[0].projected.sources[0].secret.items[0].user":      "{volumes: [{name: v, projected: {sources: [{secret: {name: s, items: [{key: k, path: p, user: 1}]}}]}}]}",
		"spec.volumes[0].projected.sources[0].configMap.items[0].user":   "{volumes: [{name: v, projected: {sources: [{configMap: {name: s, items: [{key: k, path: p, user: 1}]}}]}}]}",
		"spec.volumes[0].projected.sources[0].downwardAPI.items[0].user": "{volumes: [{name: v, projected: {sources: [{downwardAPI: {items: [{path: p, user: 1}]}}]}}]}",
		"spec.containers[0].livenessProbe.grpc.mode":                     "{containers: [{livenessProbe: {grpc: {mode: TLS}}, readinessProbe: {grpc: {mode: Plaintext}}}]}",
		"spec.containers[0].readinessProbe.httpGet.protocol":             "{containers: [{readinessProbe: {httpGet: {protocol: HTTP2}}, startupProbe: {httpGet: {protocol: HTTP1}}}]}",
		"spec.containers[0].lifecycle.postStart.httpGet.protocol":        "{containers: [{lifecycle: {postStart: {httpGet: {protocol: HTTP2}}}}]}",
		"spec.containers[0].lifecycle.preStop.httpGet.protocol":          "{containers: [{lifecycle: {preStop: {httpGet: {protocol: HTTP2}}}}]}",
		"spec.initContainers[0].volumeMounts[0].bindMountOptions":        "{initContainers: [{volumeMounts: [{bindMountOptions: [noexec]}]}]}",
	} {
		pod := new(corev1.Pod)
		require.NoError(t, yaml.Unmarshal([]byte(spec), &pod.Spec), field)
		faults := Unsupported(pod)
		if assert.Len(t, faults, 1, field) {
			assert.Equal(t, field, faults[0].Field)
		}
	}
}

// fill sets a field to something that is not its zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if k := v.Elem().Kind(); k != reflect.Struct {
			fill(v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}
