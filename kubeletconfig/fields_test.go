package kubeletconfig_test

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/kubeletconfig"
)

var update = flag.Bool("update", false, "write FIELDS.md")

// Each field of the API type is in the table, once, and says what becomes of it. // ND-3
func TestFields_Complete(t *testing.T) {
	listed := map[string]bool{}
	for _, f := range kubeletconfig.Fields() {
		assert.False(t, listed[f.Path], "%s is listed twice", f.Path)
		listed[f.Path] = true
		assert.NotEmpty(t, f.Note, f.Path)
	}
	var walk func(typ reflect.Type, prefix string)
	walk = func(typ reflect.Type, prefix string) {
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				continue
			}
			path := prefix + name
			if listed[path] {
				delete(listed, path)
				continue
			}
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if assert.Equal(t, reflect.Struct, inner.Kind(), "%s is not in the table", path) {
				walk(inner, path+".")
			}
		}
	}
	walk(reflect.TypeFor[v1beta1.KubeletConfiguration](), "")
	assert.Empty(t, listed, "in the table, but not in the type")
}

func TestFields_Document(t *testing.T) {
	const file = "FIELDS.md"
	var b strings.Builder
	b.WriteString("# Fields of a KubeletConfiguration\n\nWhat becomes of each field of kubelet.config.k8s.io/v1beta1. A field that is not supported is an error at the start, unless it has\nits default. The table is written by `go test ./kubeletconfig -update`.\n\n| field | flag | default | | |\n|---|---|---|---|---|\n")
	for _, f := range kubeletconfig.Fields() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", f.Path, f.Flag, f.Default, f.Treatment, f.Note)
	}
	b.WriteString("\n## Feature gates\n\nGates are not copied. These change what the agent does; any other is listed at the start, and has no effect.\n\n| gate | |\n|---|---|\n")
	for _, g := range kubeletconfig.Gates() {
		fmt.Fprintf(&b, "| %s | %s |\n", g.Name, g.Note)
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.True(t, b.String() == string(got), "FIELDS.md is not that of the table: run go test ./kubeletconfig -update") //nolint:testifylint // a short message
}

// The defaults of the table can be set, and are valid.
func TestDefault_IsValid(t *testing.T) {
	c := kubeletconfig.Default()
	require.NoError(t, c.Validate())
	assert.Empty(t, c.Notices())
	assert.Equal(t, int32(110), c.Kubelet().MaxPods)
	assert.False(t, c.Given("maxPods"))
}

// A field that is not supported names itself and says what to do. // ND-3
func TestValidate_UnsupportedFields(t *testing.T) {
	for _, f := range kubeletconfig.Fields() {
		if f.Treatment != kubeletconfig.Unsupported {
			continue
		}
		value, simple := map[string]string{
			"localStorageCapacityIsolation": "false", "enableControllerAttachDetach": "false", "readOnlyPort": "10255", "userNamespaces.idsPerPod": "131072",
			"tracing": `{"endpoint":"a:1"}`,
		}[f.Path]
		if !simple {
			value = `"x"`
			switch f.Path {
			case "authentication.anonymous.enabled", "runOnce":
				value = "true"
			case "qosReserved", "defaultPodSysctls":
				value = `{"a":"b"}`
			}
		}
		c, err := kubeletconfig.Load(file(t, "kubelet.yaml", nested(f.Path, value)), "")
		require.NoError(t, err, f.Path)
		require.ErrorContains(t, c.Validate(), f.Path+": ", f.Path)
		require.ErrorContains(t, c.Validate(), f.Note, f.Path)
		_, err = c.Settings(nil)
		require.ErrorContains(t, err, f.Path)
	}
}
