package cri

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

func (t *applyRun) translator() *translate.Translator {
	return &translate.Translator{
		Node: t.c.cfg.Node.translated(), Features: t.c.features.Load(), Pod: t.pod, Options: t.m, Owner: t.c.owner(),
	}
}

// containerConfig gathers what a container needs from outside its spec and
// translates it.
func (t *applyRun) containerConfig(ctx context.Context, spec *corev1.Container, a runtime.Action, image *v1.Image) (*v1.ContainerConfig, error) {
	// The name becomes part of paths below.
	if errs := validation.IsDNS1123Label(spec.Name); len(errs) > 0 {
		return nil, fmt.Errorf("container name %q: %s: %w", spec.Name, strings.Join(errs, "; "), runtime.ErrInvalid)
	}
	tr := t.translator()
	in := translate.ContainerInput{Spec: spec, Action: a, Image: image, Attempt: t.attempt(a)}
	var err error
	if in.Env, err = tr.Environment(ctx, spec, t.podIPs()); err != nil {
		return nil, err
	}
	if t.m.Inject != nil {
		if in.Injection, err = t.m.Inject(ctx, spec); err != nil {
			return nil, err
		}
	}
	in.Env = translate.InjectEnvironment(in.Env, in.Injection)
	imageIDs, err := t.volumeImages(ctx, spec)
	if err != nil {
		return nil, err
	}
	if in.Mounts, err = tr.Mounts(ctx, spec, in.Env, imageIDs); err != nil {
		return nil, err
	}
	in.Mounts = append(in.Mounts, tr.InjectedMounts(in.Injection)...)
	if err := t.ownMounts(&in); err != nil {
		return nil, err
	}
	if in.TargetID, err = t.target(ctx, spec.Name); err != nil {
		return nil, err
	}
	return tr.Container(in)
}

// ownMounts adds the files that the agent itself gives a container.
func (t *applyRun) ownMounts(in *translate.ContainerInput) error {
	hosts, err := t.hostsMount(in.Spec)
	if err != nil {
		return err
	}
	if hosts != nil {
		in.Mounts = append(in.Mounts, hosts)
	}
	message, err := t.messageMount(in.Spec, in.Attempt)
	if err != nil {
		return err
	}
	if message != nil {
		in.Mounts = append(in.Mounts, message)
	}
	return nil
}

// maxMessageFiles is of how many attempts of a container the message files are
// kept.
const maxMessageFiles = 10

// messageMount makes the file for the termination message and mounts it.
func (t *applyRun) messageMount(spec *corev1.Container, attempt uint32) (*v1.Mount, error) {
	if t.m.Dir == "" || spec.TerminationMessagePath == "" {
		return nil, nil
	}
	dir := filepath.Join(t.m.Dir, runtime.MessagesDir, spec.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("create directory of the termination message: %w", err)
	}
	file := filepath.Join(dir, strconv.FormatUint(uint64(attempt), 10))
	if attempt > 0 {
		// Of one that has ended only the end is ever read.
		if err := keepTail(filepath.Join(dir, strconv.FormatUint(uint64(attempt-1), 10)), messageLimit); err != nil {
			t.c.cfg.Logger.Debug("truncating termination message failed", logattr.Pod(t.pod), logattr.PodUID(t.pod.UID),
				slog.String("containerName", spec.Name), logattr.Err(err))
		}
	}
	if attempt >= maxMessageFiles {
		// A container that restarts indefinitely does not keep a file per attempt.
		_ = os.Remove(filepath.Join(dir, strconv.FormatUint(uint64(attempt-maxMessageFiles), 10)))
	}
	if err := writeShared(file, nil, 0o666); err != nil {
		return nil, fmt.Errorf("create termination message file: %w", err)
	}
	return &v1.Mount{
		ContainerPath: translate.AbsolutePath(spec.TerminationMessagePath), HostPath: file, SelinuxRelabel: t.c.cfg.Node.SELinux,
		UidMappings: t.translator().MountIDs(t.m.UIDMappings), GidMappings: t.translator().MountIDs(t.m.GIDMappings),
	}, nil
}

// maxAttempt is above any restart count, and leaves room to count on.
const maxAttempt = 1 << 30

// attempt is the restart count that a container starts with. A runtime without a
// previous container may have lost its state; then the names of the logs count. RT-13
func (t *applyRun) attempt(a runtime.Action) uint32 {
	if a.Attempt > 0 || t.m.LogDir == "" {
		return a.Attempt
	}
	entries, err := os.ReadDir(filepath.Join(t.m.LogDir, a.Container))
	if err != nil {
		return a.Attempt
	}
	next := a.Attempt
	for _, e := range entries {
		name, _, ok := strings.Cut(e.Name(), ".log")
		// Others can write there too: a number near the maximum would soon overflow.
		if n, err := strconv.ParseUint(name, 10, 32); ok && err == nil && n < maxAttempt {
			next = max(next, uint32(n)+1)
		}
	}
	return next
}

// target returns the id of the container whose processes an ephemeral
// container wants to see, or "".
func (t *applyRun) target(ctx context.Context, name string) (string, error) {
	want := ""
	for i := range t.pod.Spec.EphemeralContainers {
		if e := &t.pod.Spec.EphemeralContainers[i]; e.Name == name {
			want = e.TargetContainerName
		}
	}
	if want == "" {
		return "", nil
	}
	observed, err := t.c.Pod(ctx, t.pod.UID)
	if err != nil {
		return "", err
	}
	if ct := observed.LatestContainer(want); ct != nil && ct.State == runtime.Running {
		return ct.ID, nil
	}
	return "", fmt.Errorf("targetContainerName %q: no such container runs: %w", want, runtime.ErrNotReady)
}

// volumeImages fetches the images of the container's image volumes and returns
// their ids by the volumes' names.
func (t *applyRun) volumeImages(ctx context.Context, spec *corev1.Container) (map[string]string, error) {
	ids := make(map[string]string)
	for _, vm := range spec.VolumeMounts {
		volume, ok := t.m.Volumes[vm.Name]
		if !ok || volume.Image == "" || ids[vm.Name] != "" {
			continue
		}
		if err := t.translator().CheckImageVolumes(vm.Name); err != nil {
			return nil, err // before the image is fetched for nothing
		}
		image, err := t.image(ctx, spec.Name, neededImage{ref: volume.Image, policy: t.volumePolicy(vm.Name)})
		if err != nil {
			return nil, fmt.Errorf("volume %q: %w", vm.Name, err)
		}
		ids[vm.Name] = image.GetId()
	}
	return ids, nil
}

func (t *applyRun) volumePolicy(name string) corev1.PullPolicy {
	for i := range t.pod.Spec.Volumes {
		if v := &t.pod.Spec.Volumes[i]; v.Name == name && v.Image != nil && v.Image.PullPolicy != "" {
			return v.Image.PullPolicy
		}
	}
	return corev1.PullIfNotPresent
}
