package status_test

import (
	"bufio"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// documented reads FIELDS.md: who fills each field, by type and field.
func documented(t *testing.T) map[string]map[string]string {
	t.Helper()
	f, err := os.Open("FIELDS.md")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	types, current := map[string]map[string]string{}, ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "## "); ok {
			current = name
			types[name] = map[string]string{}
		}
		cells := strings.Split(lines.Text(), "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], "-") || strings.TrimSpace(cells[1]) == "field" {
			continue
		}
		field, what, why := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		assert.NotContains(t, types[current], field, "twice")
		assert.Contains(t, []string{"set", "kept", "empty"}, what, "%s.%s", current, field)
		assert.True(t, what == "set" || why != "", "%s.%s is %s for no reason", current, field, what)
		types[current][field] = what
	}
	return types
}

// full are the statuses of pods that together fill every field.
func full() []corev1.PodStatus {
	qty := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	p := pod("init:i", "main:c", "main:d", "debug:e")
	p.Status.NominatedNodeName = "other"
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "claim"}}
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "claim"}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": *qty("1")}}
	c := &p.Spec.Containers[0]
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": *qty("1")}, Limits: corev1.ResourceList{"cpu": *qty("2")}, Claims: []corev1.ResourceClaim{{Name: "claim", Request: "gpu"}},
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true}}
	ran := running("c", 1)
	ran.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 7}}
	ran.StopSignal = corev1.SIGUSR1
	before := exited("c", 0, 3)
	before.Message = "no disk"
	runs := runtime.Report{
		Resources: runtime.ResourceStatuses{"c": {{Name: "vendor.example/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "0", Health: corev1.ResourceHealthStatusHealthy}}}}},
		Observed:  view(running("e", 0), ran, before, exited("i", 0, 0)),
		Failures:  map[string]runtime.Failure{"d": {Reason: "ErrImagePull", Message: "no such image"}},
	}
	evicted := runtime.Report{Observed: view(exited("c", 0, 137)), Termination: &runtime.Termination{Reason: "Evicted", Message: "low", Evicted: true}}
	return []corev1.PodStatus{generate(p, runs), generate(pod("main:c"), evicted)}
}

// ST-4: no field of the API can be forgotten: each is set, kept or empty, as it
// is documented.
func TestFieldsDoc_CoversEveryField(t *testing.T) {
	docs := documented(t)
	observed := map[string]map[string]bool{} // by type and field: whether it is ever filled
	for _, st := range full() {
		walk(reflect.ValueOf(st), docs, observed)
	}
	for typ, fields := range observed {
		for field, filled := range fields {
			what, ok := docs[typ][field]
			assert.True(t, ok, "FIELDS.md does not document %s.%s", typ, field)
			assert.Equal(t, what != "empty", filled, "%s.%s is %s", typ, field, what)
		}
		for field := range docs[typ] {
			assert.Contains(t, fields, field, "FIELDS.md has a field that %s has not", typ)
		}
	}
	for typ := range docs {
		assert.Contains(t, observed, typ, "FIELDS.md has a type that is nowhere in a status")
	}
	kept := full()[0]
	assert.Equal(t, "other", kept.NominatedNodeName)
	assert.Equal(t, "claim", kept.ResourceClaimStatuses[0].Name)
	assert.Equal(t, "claim", kept.ExtendedResourceClaimStatus.ResourceClaimName)
}

// walk notes which fields of the documented types are filled in v.
func walk(v reflect.Value, docs map[string]map[string]string, observed map[string]map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), docs, observed)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), docs, observed)
		}
	case reflect.Struct:
		name := v.Type().Name()
		_, documented := docs[name]
		if documented && observed[name] == nil {
			observed[name] = map[string]bool{}
		}
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			if documented {
				field, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
				observed[name][field] = observed[name][field] || !v.Field(i).IsZero()
			}
			walk(v.Field(i), docs, observed)
		}
	}
}

// Types that a status can hold and that are not in the list have no field that could
// be left out by mistake.
func TestDocumentedTypes(t *testing.T) {
	docs := documented(t)
	small := []string{"HostIP", "PodIP", "ContainerState", "ContainerUser", "LinuxContainerUser"}
	var visit func(typ reflect.Type)
	observed := map[string]bool{}
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || !strings.HasSuffix(typ.PkgPath(), "core/v1") || observed[typ.Name()] {
			return
		}
		observed[typ.Name()] = true
		doc, ok := docs[typ.Name()]
		assert.True(t, ok || slices.Contains(small, typ.Name()), "FIELDS.md lacks %s", typ.Name())
		for i := range typ.NumField() {
			field, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if !ok || doc[field] == "set" {
				visit(typ.Field(i).Type)
			}
		}
	}
	visit(reflect.TypeFor[corev1.PodStatus]())
	for typ := range docs {
		assert.Contains(t, observed, typ, "a status cannot hold it")
	}
}
