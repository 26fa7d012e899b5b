package cri

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

func TestClient_StatusHasHandlersAndFeatures(t *testing.T) {
	h := runtime.Status{}
	setFeatures(&h, &v1.StatusResponse{
		Features: &v1.RuntimeFeatures{SupplementalGroupsPolicy: true},
		RuntimeHandlers: []*v1.RuntimeHandler{
			{Features: &v1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}},
			{Name: "new", Features: &v1.RuntimeHandlerFeatures{UserNamespaces: true}},
		},
	})
	assert.Equal(t, runtime.Status{SupplementalGroupsPolicy: true, Handlers: []runtime.Handler{{RecursiveReadOnlyMounts: true}, {Name: "new", UserNamespaces: true}}}, h)
}
