package cri

import (
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

func (c *Client) terminationMessage(ct runtime.Container, _ *v1.ContainerStatus) string {
	return ct.Message
}
