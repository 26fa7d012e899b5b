package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func checkpointCases() []testCase {
	return []testCase{
		{"a checkpoint leaves the container running", "kubectl checkpoint would end the application", 0, func(c *CaseT) {
			id, path := c.pod("p").start("c", longRunTime), filepath.Join(c.dataDir(), "checkpoint.tar")
			_, err := c.rs.CheckpointContainer(c.ctx, &v1.CheckpointContainerRequest{ContainerId: id, Location: path, Timeout: 60})
			c.state(id, running) // after a failure, too
			if hasNoCheckpoints(err) {
				c.skipped(fmt.Sprintf("no checkpoint can be made here: %s", status.Convert(err).Message()))
			}
			c.ok(err, "CheckpointContainer")
			file, err := os.Stat(path)
			c.check(err == nil && file.Size() > 0, "CheckpointContainer succeeded, but there is nothing at its location: %v", err)
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

// hasNoCheckpoints reports whether a runtime refuses a checkpoint because it makes none here. What it lacks,
// or does not enable, it says in the text of an error of unknown kind.
func hasNoCheckpoints(err error) bool {
	if status.Code(err) == codes.Unimplemented {
		return true
	}
	text := strings.ToLower(status.Convert(err).Message())
	for _, reason := range []string{
		"criu support is disabled", "criu binary not found", "requires at least criu", // containerd
		"checkpoint/restore support not available", // CRI-O
	} {
		if strings.Contains(text, reason) {
			return true
		}
	}
	return false
}
