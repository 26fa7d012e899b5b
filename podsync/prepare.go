package podsync

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// revalidatePeriod is the time between checks of the directories of a pod for which nothing is
// planned, as most syncs change nothing. They are also checked before something is made in them.
const revalidatePeriod = 10 * time.Minute

// ErrNetworkNotReady is why a pod that needs a network of its own does not start yet.
var ErrNetworkNotReady = errors.New("network is not ready")

// prepare provides everything that the containers of the pod depend on, and the options for those
// that are made now, if any are. The reason names the step that failed.
func (s *Syncer) prepare(ctx context.Context, pod *corev1.Pod, st *podState, work bool) (opts runtime.RunOptions, reason string, err error) {
	var notReady error
	if s.cfg.NetworkReady != nil && !pod.Spec.HostNetwork {
		notReady = s.cfg.NetworkReady()
	}
	if notReady == nil || st.inRuntime { // what runs already counts for the cgroups above those of pods
		if reason, err = s.setUp(ctx, pod, st, &opts); err != nil {
			return opts, reason, err
		}
	}
	if notReady != nil {
		return opts, reasonNetwork, fmt.Errorf("%w: %w", ErrNetworkNotReady, notReady)
	}
	if opts.Volumes, err = s.mountVolumes(ctx, pod, st); err != nil {
		return opts, reasonVolume, err
	}
	if !work {
		return opts, "", nil
	}
	opts.NodeName, opts.HostIPs, opts.Allocatable, opts.Objects = s.cfg.Node.Name, s.cfg.Node.IPs(), s.cfg.Node.Allocatable, s.cfg.Objects
	if opts.Hostname, opts.ClusterDomain, err = hostname(pod, s.cfg.Node.ClusterDomain); err != nil {
		return opts, reasonSandbox, err
	}
	if opts.DNS, err = s.resolver(pod); err != nil {
		return opts, reasonDirectory, err
	}
	s.checkClusterDNS(ctx, pod, st)
	opts.DNS = s.limitDNS(ctx, pod, st, opts.DNS)
	if s.cfg.Volumes != nil {
		opts.SubPath = func(ctx context.Context, container string, _ int, mount corev1.VolumeMount) (string, error) {
			return s.cfg.Volumes.SubPath(ctx, pod.UID, container, opts.Volumes[mount.Name], mount.SubPath)
		}
	}
	s.setInjection(&opts, pod)
	s.setCPUQuota(&opts, pod)
	opts.PullSecrets = s.pullSecrets(ctx, pod, st)
	return opts, "", nil
}

// setUp provides the directories, the user namespace and the cgroup of a pod. Pods that are not in
// the runtime yet wait for a slot.
func (s *Syncer) setUp(ctx context.Context, pod *corev1.Pod, st *podState, opts *runtime.RunOptions) (reason string, err error) {
	if st.dirsCheckedAt.IsZero() && !st.inRuntime {
		defer s.setupSlots.acquire(ctx)()
	}
	if time.Since(st.dirsCheckedAt) >= revalidatePeriod {
		if opts.Dir, opts.LogDir, err = s.makeDirs(pod, st); err != nil {
			return reasonDirectory, err
		}
	}
	if s.cfg.UserNamespaces != nil && !podspec.UsesHostUsers(pod) {
		if opts.UIDMappings, opts.GIDMappings, err = s.cfg.UserNamespaces.Ensure(pod.UID); err != nil {
			return reasonUsers, fmt.Errorf("allocate user namespace: %w", err)
		}
	}
	if opts.CgroupParent, err = s.setLimits(ctx, pod, st); err != nil {
		return reasonCgroup, fmt.Errorf("create cgroup: %w", err)
	}
	return "", nil
}

func (s *Syncer) mountVolumes(ctx context.Context, pod *corev1.Pod, st *podState) (map[string]runtime.Volume, error) {
	if s.cfg.Volumes != nil {
		startTime := time.Now()
		volumes, err := s.cfg.Volumes.Mount(ctx, pod, s.cfg.Objects)
		s.volumesMounted(pod, st, len(volumes), startTime, err)
		if err == nil {
			return volumes, nil
		}
		err = fmt.Errorf("mount volumes: %w", err)
		if volumes == nil || !errors.Is(err, runtime.ErrNotUpdated) {
			return nil, err
		}
		if s.emitOnce(ctx, pod, st, reasonVolume, err) {
			s.cfg.Logger.Warn("volumes not updated", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
		}
		return volumes, nil
	}
	if n := len(pod.Spec.Volumes); n > 0 {
		return nil, fmt.Errorf("pod has %d volumes but no volume manager is configured", n)
	}
	return nil, nil
}

// pullSecrets returns the objects that spec.imagePullSecrets names. A missing one is
// left out, as the API requires: whether it is needed shows when the image is pulled.
func (s *Syncer) pullSecrets(ctx context.Context, pod *corev1.Pod, st *podState) []podspec.Object {
	var found []podspec.Object
	for _, ref := range pod.Spec.ImagePullSecrets {
		if s.cfg.Objects == nil {
			break
		}
		if ref.Name == "" { // valid, and common in manifests made from templates
			continue
		}
		o, err := s.cfg.Objects.Object(ctx, podspec.Ref{Kind: podspec.Secret, Namespace: pod.Namespace, Name: ref.Name})
		if err != nil {
			err = fmt.Errorf("get pull secret %s/%s: %w", pod.Namespace, ref.Name, err)
			if s.emitOnce(ctx, pod, st, reasonPullSecret, err) {
				s.cfg.Logger.Warn("image pull secret unavailable", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
			}
			continue
		}
		found = append(found, o)
	}
	return found
}

// makeDirs creates the directories of the pod for its data and its logs.
func (s *Syncer) makeDirs(pod *corev1.Pod, st *podState) (dir, logs string, err error) {
	if dir, err = podDir(s.cfg.PodsDir, pod.UID); err != nil {
		return "", "", err
	}
	if logs, err = logDir(s.cfg.LogsDir, pod); err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("create pod directory: %w", err)
	}
	if err := s.makeLogDir(logs, pod.UID, st.inRuntime); err != nil {
		return "", "", fmt.Errorf("create log directory: %w", err)
	}
	st.dirsCheckedAt = time.Now()
	return dir, logs, nil
}
