package runtimetest

import (
	"path/filepath"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func checkpointCases() []testCase {
	return []testCase{
		{"a checkpoint leaves the container running", "kubectl checkpoint would end the application", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			_, err := c.rs.CheckpointContainer(c.ctx, &v1.CheckpointContainerRequest{ContainerId: id, Location: filepath.Join(c.dataDir(), "checkpoint.tar"), Timeout: 10})
			c.state(id, running) // whether it can be made depends on CRIU
			c.implemented(err, "CheckpointContainer")
		}},
		{"checkpoints of what is not there are refused", "a checkpoint would seem to be made", 0, func(c *CaseT) {
			path := filepath.Join(c.dataDir(), "checkpoint")
			_, err := c.rs.CheckpointContainer(c.ctx, &v1.CheckpointContainerRequest{ContainerId: unknownID, Location: path})
			c.rejected(err, "checkpoint of an unknown container")
			_, err = c.rs.CheckpointPod(c.ctx, &v1.CheckpointPodRequest{PodSandboxId: unknownID})
			c.rejected(err, "checkpoint of an unknown pod")
			_, err = c.rs.RestorePod(c.ctx, &v1.RestorePodRequest{})
			c.rejected(err, "restore without a configuration")
		}},
	}
}
