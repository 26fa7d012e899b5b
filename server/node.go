package server

import (
	"context"
	"io"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The server consumes a node through these interfaces. A nil one is a capability that
// the node does not have: its paths respond with 404 or 405, like those of a kubelet in
// which they are disabled. Pods are those of Config.Pods and are read-only. All methods
// are called concurrently and end with ctx, which ends with the client's connection.
// The HTTP status of an error follows the errors of package runtime that it wraps:
// ErrNotFound is 404, ErrUnsupported 501, and all others are 500 unless a path says
// otherwise.
type (
	// LogReader reads the logs of containers.
	LogReader interface {
		// ReadLog writes the log of opts.Container to stdout and stderr, one of which may
		// be nil. It returns when the log is complete; with opts.Follow, when the
		// container has terminated. An error before the first write is a response with
		// status 400, as the kubelet's. A write of no bytes answers a client that follows a
		// log in which nothing is written yet.
		ReadLog(ctx context.Context, pod *corev1.Pod, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error
	}

	// Streamer prepares streams in the runtime. Each method returns a URL of the
	// runtime's streaming server, which the server connects to once, at once. Clients
	// never see the URL.
	Streamer interface {
		ExecURL(ctx context.Context, pod *corev1.Pod, opts *corev1.PodExecOptions) (*url.URL, error)
		AttachURL(ctx context.Context, pod *corev1.Pod, opts *corev1.PodAttachOptions) (*url.URL, error)
		PortForwardURL(ctx context.Context, pod *corev1.Pod, opts *corev1.PodPortForwardOptions) (*url.URL, error)
	}

	// CommandRunner runs commands to completion, for /run.
	CommandRunner interface {
		// RunCommand returns what the command wrote to stdout and stderr. The output of
		// a command that fails is returned with the error.
		RunCommand(ctx context.Context, pod *corev1.Pod, container string, command []string) ([]byte, error)
	}

	// Checkpointer writes checkpoints of containers, for /checkpoint.
	Checkpointer interface {
		// Checkpoint returns the path of the archive. A timeout of 0 is the runtime's default.
		Checkpoint(ctx context.Context, pod *corev1.Pod, container string, timeout time.Duration) (path string, err error)
	}
)
