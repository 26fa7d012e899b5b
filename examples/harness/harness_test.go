// Package harness is the test of a runtime's author: it runs the whole conformance
// suite against the CRI endpoint in CRI_ENDPOINT.
//
//	CRI_ENDPOINT=unix:///run/containerd/containerd.sock go test -v ./examples/harness
//
// The other environment variables are listed at options.
package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

func TestMyRuntime(t *testing.T) {
	endpoint := os.Getenv("CRI_ENDPOINT")
	if endpoint == "" {
		t.Skip("set CRI_ENDPOINT=unix:///path.sock to test a runtime")
	}
	opts, err := options(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.TestRuntime(t, func(t testing.TB) *grpc.ClientConn {
		cc, err := grpc.NewClient(endpoint,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}, opts...)
}

// options are the options of the suite as the environment sets them:
//
//   - CRI_IMAGE, CRI_SECOND_IMAGE: image references (runtimetest.Image, SecondImage).
//   - CRI_CGROUP_PARENT: parent of the cgroups of the pods.
//   - CRI_LOG_ROOT: a directory that the runtime has at the same path (LogRoot).
//   - CRI_RESTART: a shell command that restarts the runtime and returns when it
//     serves again, as "systemctl restart my-runtime" (Restart).
//   - CRI_WITHOUT: what the runtime does not have, separated by commas: processes,
//     isolation, limits (WithoutProcesses, WithoutIsolation, WithoutResourceLimits).
//   - CRI_KNOWN_FAILURES, CRI_KNOWN_FLAKES: files with a line "case: reason" for each
//     case that the runtime fails always, or at times (KnownFailures, KnownFlakes).
//     Empty lines and lines that begin with # are ignored.
func options(getenv func(string) string) ([]runtimetest.Option, error) {
	// The known failures of released runtimes; a runtime of your own has none.
	opts := []runtimetest.Option{runtimetest.KnownRuntimes()}
	for name, option := range map[string]func(string) runtimetest.Option{
		"CRI_IMAGE": runtimetest.Image, "CRI_SECOND_IMAGE": runtimetest.SecondImage, "CRI_LOG_ROOT": runtimetest.LogRoot,
		"CRI_CGROUP_PARENT": cgroupParent, "CRI_RESTART": restartBy,
	} {
		if value := getenv(name); value != "" {
			opts = append(opts, option(value))
		}
	}
	var errs []error
	for name, option := range map[string]func(map[string]string) runtimetest.Option{
		"CRI_KNOWN_FAILURES": runtimetest.KnownFailures, "CRI_KNOWN_FLAKES": runtimetest.KnownFlakes,
	} {
		if path := getenv(name); path != "" {
			reasons, err := readReasons(path)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
			opts = append(opts, option(reasons))
		}
	}
	without := map[string]func() runtimetest.Option{
		"processes": runtimetest.WithoutProcesses, "isolation": runtimetest.WithoutIsolation, "limits": runtimetest.WithoutResourceLimits,
	}
	for _, name := range strings.FieldsFunc(getenv("CRI_WITHOUT"), func(r rune) bool { return r == ',' || r == ' ' }) {
		option, ok := without[name]
		if !ok {
			errs = append(errs, fmt.Errorf("CRI_WITHOUT: invalid value %q; use processes, isolation, limits", name))
			continue
		}
		opts = append(opts, option())
	}
	return opts, errors.Join(errs...)
}

// cgroupParent makes the cgroups of all pods below one, each with the pod's UID.
func cgroupParent(parent string) runtimetest.Option {
	return runtimetest.EditPod(func(pod *v1.PodSandboxConfig) {
		pod.Linux.CgroupParent = parent + "/" + pod.GetMetadata().GetUid()
	})
}

// restartBy restarts the runtime by a shell command.
func restartBy(command string) runtimetest.Option {
	return runtimetest.Restart(func(ctx context.Context) error {
		if out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
			return fmt.Errorf("CRI_RESTART: %w: %s", err, out)
		}
		return nil
	})
}

// readReasons reads a list of cases and reasons.
func readReasons(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	reasons := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("%s: invalid line %q; write \"case: reason\"", path, line)
		}
		reasons[name] = reason
	}
	return reasons, lines.Err()
}
