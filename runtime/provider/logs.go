package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

// ReadLog implements runtime.PodLogReader. A provider has one stream: it is written to
// stdout, or to stderr if only that is asked for.
func (r *Runtime) ReadLog(ctx context.Context, pod *corev1.Pod, container string, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	reader, ok := r.cfg.Provider.(LogReader)
	if !ok {
		return unsupported("reading logs")
	}
	if stdout == nil {
		stdout = stderr
	}
	return safe.Call(r.cfg.Logger, "read log", func() error {
		log, err := reader.GetContainerLogs(ctx, pod.Namespace, pod.Name, container, opts.DeepCopy())
		if err != nil {
			return fmt.Errorf("read log: %w", notFound(err))
		}
		if log == nil {
			return errors.New("read log: the provider returned no log")
		}
		stop := context.AfterFunc(ctx, func() { // a Read may block
			safe.Do(r.cfg.Logger, "close log", func() { _ = log.Close() })
		})
		if opts.Follow {
			_, err = stdout.Write(nil) // a server answers its client before the first line
		}
		if err == nil {
			_, err = io.Copy(stdout, log)
		}
		if stop() {
			_ = log.Close()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	})
}

// notFound makes an error of any provider for a missing pod a runtime.ErrNotFound.
func notFound(err error) error {
	if IsNotFound(err) && !errors.Is(err, runtime.ErrNotFound) {
		return fmt.Errorf("%w: %w", runtime.ErrNotFound, err)
	}
	return err
}

// Exec implements agent.Runtime. The output is cut at limit bytes.
func (r *Runtime) Exec(ctx context.Context, containerID string, command []string, timeout time.Duration, limit int) (output []byte, exitCode int, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, runtime.ErrDeadlineExceeded)
		defer cancel()
	}
	out := &limitedBuffer{limit: limit}
	err = r.run(ctx, containerID, command, podstream.Options{Stdout: out, Stderr: out})
	if ctx.Err() != nil {
		return out.bytes(), 0, context.Cause(ctx)
	}
	if exit, ok := errors.AsType[podstream.ExitError](err); ok {
		return out.bytes(), exit.Code, nil
	}
	return out.bytes(), 0, err
}

// run runs a command with streams.
func (r *Runtime) run(ctx context.Context, containerID string, command []string, streams podstream.Options) error {
	runner, ok := r.cfg.Provider.(CommandRunner)
	if !ok {
		return unsupported("exec")
	}
	return r.withPod(containerID, "run command", func(namespace, name, container string) error {
		return runner.RunInContainer(ctx, namespace, name, container, command, streams)
	})
}

// withPod calls f with the pod and the container that an id names.
func (r *Runtime) withPod(id, what string, f func(namespace, name, container string) error) error {
	uid, container := runtime.SplitObjectID(id)
	r.mu.Lock()
	e := r.pods[uid]
	r.mu.Unlock()
	if e == nil {
		return fmt.Errorf("%s: pod %s: %w", what, uid, runtime.ErrNotFound)
	}
	return safe.Call(r.cfg.Logger, what, func() error { return notFound(f(e.namespace, e.name, container)) })
}

// limitedBuffer discards what exceeds its limit. It is both streams of a command, which may
// write at the same time, also after the command was left behind.
type limitedBuffer struct {
	mu     sync.Mutex
	limit  int
	buffer bytes.Buffer
}

// Write implements io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buffer.Write(p[:min(len(p), max(0, b.limit-b.buffer.Len()))])
	return len(p), nil
}

func (b *limitedBuffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buffer.Bytes())
}
