package embedded

import (
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkContainer validates what no executor can run.
func checkContainer(cfg *v1.ContainerConfig) error {
	sc := cfg.GetLinux().GetSecurityContext()
	switch {
	case cfg.GetMetadata().GetName() == "":
		return status.Error(codes.InvalidArgument, "create container: config.metadata.name is empty")
	case cfg.GetImage().GetImage() == "":
		return status.Error(codes.InvalidArgument, "create container: config.image is empty")
	case slices.ContainsFunc(cfg.GetMounts(), func(m *v1.Mount) bool { return m.GetImage().GetImage() != "" && !m.GetReadonly() }):
		return status.Error(codes.InvalidArgument, "create container: image mounts must be read-only")
	case cfg.GetLogPath() != "" && !filepath.IsLocal(cfg.GetLogPath()):
		return status.Errorf(codes.InvalidArgument, "create container: log_path %q is outside the log directory", cfg.GetLogPath())
	case sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil && sc.GetRunAsUsername() == "":
		return status.Error(codes.InvalidArgument, "create container: run_as_group without run_as_user or run_as_username")
	case sc.GetRunAsUser() != nil && sc.GetRunAsUsername() != "":
		return status.Error(codes.InvalidArgument, "create container: both run_as_user and run_as_username")
	}
	return nil
}
