package logattr_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// hookError has the output of a command in its text.
type hookError struct{}

func (hookError) Error() string    { return "command failed: s3cret" }
func (hookError) Redacted() string { return "command failed" }

func Example() {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-1"}}
	logger.Info("pod sync failed", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(errors.New("no such image")))
	logger.Info("pod sync failed", logattr.Pod(pod), logattr.Err(fmt.Errorf("container main: %w", hookError{})))
	logger.Info("pod synced", logattr.PodName("default", "web"), logattr.Err(nil))
	// Output:
	// level=INFO msg="pod sync failed" pod=default/web podUID=uid-1 err="no such image"
	// level=INFO msg="pod sync failed" pod=default/web err="container main: command failed"
	// level=INFO msg="pod synced" pod=default/web
}
