package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// LocalVolumePaths returns the paths that Mount uses.
func TestManager_LocalVolumePaths(t *testing.T) {
	m := manager(t, nil)
	var objects store
	objects.put("ConfigMap", "conf", nil)
	objects.put("Secret", "key", nil)
	p := pod(t, "u-1", `
  - {name: scratch, emptyDir: {}}
  - {name: host, hostPath: {path: /tmp}}
  - {name: config, configMap: {name: conf}}
  - {name: secret, secret: {secretName: key}}
  - {name: labels, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: projected, projected: {sources: [{secret: {name: key}}]}}
`)
	want := map[string]string{}
	for name, v := range mount(t, m, p, &objects) {
		want[name] = v.HostPath
	}
	require.Len(t, want, len(p.Spec.Volumes))
	delete(want, "host") // its files are not the pod's
	require.Equal(t, want, m.LocalVolumePaths(p))

	p.Spec.Volumes = p.Spec.Volumes[:1]
	p.Spec.Volumes[0].Name = ".."
	require.Empty(t, m.LocalVolumePaths(p))
	p.Spec.Volumes[0].Name, p.UID = "scratch", "../.."
	require.Empty(t, m.LocalVolumePaths(p))
}
