package runtimetest

import (
	"context"
	"os"
	"path"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// equipment gives the embedded runtime what it or this machine lacks, so that mutants can
// lack it one by one.
type equipment struct {
	grpc.ClientConnInterface
}

func newEquipment(to grpc.ClientConnInterface) *equipment {
	return &equipment{ClientConnInterface: to}
}

func (e *equipment) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	if r, ok := req.(*v1.CheckpointContainerRequest); ok {
		return e.checkpoint(ctx, r)
	}
	return e.ClientConnInterface.Invoke(ctx, method, req, resp, opts...)
}

// checkpoint makes a checkpoint of a container that is there.
func (e *equipment) checkpoint(ctx context.Context, r *v1.CheckpointContainerRequest) error {
	_, err := v1.NewRuntimeServiceClient(e.ClientConnInterface).ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: r.GetContainerId()})
	if err != nil {
		return err
	}
	return os.WriteFile(path.Clean(r.GetLocation()), []byte("checkpoint"), 0o600)
}

func mutantsOfCheckpoints() []mutant {
	const checkpoint = "a checkpoint leaves the container running"
	return []mutant{
		{
			defect: "a checkpoint ends the container", caseName: checkpoint, report: "state in the status is CONTAINER_EXITED",
			call: onCalls("CheckpointContainer", func(c rpcCall) error {
				id := c.req.(*v1.CheckpointContainerRequest).GetContainerId()
				_, err := v1.NewRuntimeServiceClient(c.conn).StopContainer(c.ctx, &v1.StopContainerRequest{ContainerId: id})
				if err != nil {
					return err
				}
				return c.next()
			}),
		},
		{
			defect: "a checkpoint is not written", caseName: checkpoint, report: "there is nothing at its location",
			call: doesNothing("CheckpointContainer"),
		},
		{
			defect: "a checkpoint of an unknown container succeeds", caseName: "checkpoints of what is not there are refused", report: "checkpoint of an unknown container: succeeded",
			call: losesErrors("CheckpointContainer"),
		},
	}
}
