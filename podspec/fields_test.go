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

// No field of the API can be forgotten: the documentation names each, and what
// it says is refused is refused by that name, and nothing else is.
func TestEveryFieldIsAccountedFor(t *testing.T) {
	docs := documented(t)
	for _, tc := range []struct {
		of     any
		refuse func(*corev1.Pod) any // where in a pod such a value goes
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
				assert.Contains(t, []string{"works", "passed", "refused", "ignored"}, what)

				pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
				fill(reflect.ValueOf(tc.refuse(pod)).Elem().Field(i))
				var refused []string
				for _, e := range Unsupported(pod) {
					refused = append(refused, e.Field)
				}
				if what != "refused" {
					assert.Empty(t, refused)
					return
				}
				require.Len(t, refused, 1)
				assert.Contains(t, refused[0], name)
			})
		}
		assert.Empty(t, doc, "FIELDS.md has fields that %s has not", typ.Name())
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
