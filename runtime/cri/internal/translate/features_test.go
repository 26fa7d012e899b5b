package translate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFeaturesOf_RuntimesOlderThanImageVolumes(t *testing.T) {
	for _, c := range []struct {
		name, version string
		older         bool
	}{
		{"containerd", "1.6.20~ds1", true},
		{"containerd", "v1.7.29", true},
		{"containerd", "v2.0.5", true},
		{"containerd", "v2.1.0-rc.1", false},
		{"containerd", "v2.4.2", false},
		{"containerd", "3.0.0", false},
		{"containerd", "abcdef0", false},
		{"cri-o", "1.30.4", true},
		{"cri-o", "1.31.0", false},
		{"cri-o", "2.0.0", false},
		{"containerd", "1", false},
		{"someone's own", "0.1", false},
		{"containerd", "", false},
	} {
		f := FeaturesOf(&v1.VersionResponse{RuntimeName: c.name, RuntimeVersion: c.version}, &v1.StatusResponse{})
		assert.Equal(t, c.older, f.NoImageVolumes, "%s %s", c.name, c.version)
	}
}

func TestFeaturesOf_MappedImageVolumes(t *testing.T) {
	for version, want := range map[string]bool{
		"1.7.29": false, "v2.0.9": false, "v2.1.6": false, "v2.1.7": true, "v2.2.1": false, "2.2.2-0ubuntu1": true, "v2.3.0": true, "v2.4.2": true,
		"3.0.0": true, "2.4": false, "abcdef0": false, "": false,
	} {
		f := FeaturesOf(&v1.VersionResponse{RuntimeName: "containerd", RuntimeVersion: version}, &v1.StatusResponse{})
		assert.Equal(t, want, f.MapsImageVolumes, version)
		f = FeaturesOf(&v1.VersionResponse{RuntimeName: "cri-o", RuntimeVersion: version}, &v1.StatusResponse{})
		assert.False(t, f.MapsImageVolumes, version)
	}
}

func TestFeaturesOf_ByHandler(t *testing.T) {
	f := FeaturesOf(&v1.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.4.2"}, &v1.StatusResponse{
		Features: &v1.RuntimeFeatures{SupplementalGroupsPolicy: true},
		RuntimeHandlers: []*v1.RuntimeHandler{
			{Features: &v1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}},
			{Name: "new", Features: &v1.RuntimeHandlerFeatures{UserNamespaces: true}},
		},
	})
	assert.Equal(t, &Features{
		RecursiveReadOnly: map[string]bool{"": true, "new": false}, UserNamespaces: map[string]bool{"": false, "new": true},
		GroupsPolicy: true, Runtime: "containerd v2.4.2", MapsImageVolumes: true,
	}, f)
	assert.Equal(t, "the runtime", (*Features)(nil).name())
	assert.Equal(t, "the runtime", (&Features{}).name())
}
