package kube_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/sublet-dev/agent/kube"
)

func TestNew_ReportsAllErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  kube.Config
		want []string
	}{
		"empty":        {kube.Config{}, []string{"Config.Client: required", "Config.NodeName: required"}},
		"invalid name": {kube.Config{Client: fake.NewClientset(), NodeName: "../n"}, []string{`Config.NodeName: invalid name "../n"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := kube.New(tc.cfg)
			for _, want := range tc.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
	k, err := kube.New(kube.Config{Client: fake.NewClientset(), NodeName: "10.0.0.1"})
	require.NoError(t, err)
	require.NotNil(t, k)
}
