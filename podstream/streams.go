package podstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// maxStatus bounds the status that a server sends.
const maxStatus = 1 << 20

// streams are those of one process. The ones that are not used are nil.
type streams struct {
	status, stdin, stdout, stderr, resize httpstream.Stream
}

func openStreams(conn httpstream.Connection, o Options) (s streams, err error) {
	open := func(kind string, isUsed bool, to *httpstream.Stream) {
		if isUsed && err == nil {
			*to, err = conn.CreateStream(http.Header{corev1.StreamType: {kind}})
		}
	}
	open(corev1.StreamTypeError, true, &s.status)
	open(corev1.StreamTypeStdin, o.Stdin != nil, &s.stdin)
	open(corev1.StreamTypeStdout, o.Stdout != nil, &s.stdout)
	open(corev1.StreamTypeStderr, o.Stderr != nil && !o.TTY, &s.stderr)
	open(corev1.StreamTypeResize, o.TTY, &s.resize)
	if err != nil {
		return s, fmt.Errorf("open stream: %w", err)
	}
	return s, nil
}

// sendSizes sends sizes until there are no more or ctx is done.
func sendSizes(ctx context.Context, to io.WriteCloser, sizes <-chan TerminalSize) {
	defer func() { _ = to.Close() }()
	encoder := json.NewEncoder(to)
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok || encoder.Encode(size) != nil {
				return
			}
		}
	}
}

// readStatus returns how the process has ended, or an error if that is not known.
func readStatus(from io.Reader) (status, err error) {
	b, err := io.ReadAll(io.LimitReader(from, maxStatus))
	if err == nil && len(b) == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("the connection was closed before the process has ended: %w", err)
	}
	var st metav1.Status
	if err := json.Unmarshal(b, &st); err != nil {
		return nil, fmt.Errorf("decode status of the process: %w", err)
	}
	if st.Status == metav1.StatusSuccess {
		return nil, nil
	}
	if st.Reason == remotecommand.NonZeroExitCodeReason && st.Details != nil {
		for _, cause := range st.Details.Causes {
			if cause.Type != remotecommand.ExitCodeCauseType {
				continue
			}
			if code, err := strconv.Atoi(cause.Message); err == nil {
				return ExitError{code}, nil
			}
		}
	}
	return errors.New(st.Message), nil
}
