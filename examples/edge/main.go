// Command edge is an edge appliance: it runs the pods that its server assigns to this node, also without the server, and reports them.
//
//	edge -server https://fleet.example/nodes/edge-1 -token-file /etc/edge/token -runtime unix:///run/containerd/containerd.sock
//
// Below that URL the server has two resources. GET pods returns manifests, and 304 for their ETag. PUT statuses/<pod UID> takes a pod
// with its status, DELETE removes it. SIGTERM stops the agent; its pods keep running and the next agent adopts them, as after kill -9.
// With -drain they are terminated first. Host processes and simulated pods end with the agent.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/pageout"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
)

type flags struct {
	server, tokenFile, rootDir, nodeName, runtime, cgroupRoot string
	period                                                    time.Duration
	drain                                                     bool
}

func main() {
	var f flags
	host, _ := os.Hostname()
	flag.StringVar(&f.server, "server", "", "URL of this node on the server: https, or http on 127.0.0.1")
	flag.StringVar(&f.tokenFile, "token-file", "/etc/edge/token", "file with the bearer token, read for each request")
	flag.DurationVar(&f.period, "period", 20*time.Second, "between requests for pods")
	flag.StringVar(&f.rootDir, "root-dir", "/var/lib/edge", "directory of this program, with the identity of its pods")
	flag.StringVar(&f.nodeName, "node-name", host, "name of this node")
	flag.StringVar(&f.runtime, "runtime", "simulated", "simulated; host, for processes of this machine; or a CRI socket, unix:///path")
	flag.StringVar(&f.cgroupRoot, "cgroup-root", "/", "cgroup below which pods of a CRI socket are created; empty: the runtime's choice")
	flag.BoolVar(&f.drain, "drain", false, "terminate the pods at SIGTERM")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f, http.DefaultTransport, log); err != nil {
		log.Error("agent failed", slog.Any("err", err))
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags, transport http.RoundTripper, log *slog.Logger) error {
	if u, err := url.Parse(f.server); err != nil || u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "127.0.0.1") {
		return errors.New("-server: must be https://host/path; a token is sent in plain text to http://127.0.0.1 only")
	}
	srv := &server{f, http.Client{Transport: transport, Timeout: 10 * time.Second}}
	isCRI := strings.HasPrefix(f.runtime, "unix:")
	opts := []agent.Option{
		agent.WithNodeName(f.nodeName), agent.WithRootDir(f.rootDir), agent.WithLogger(log),
		agent.WithNode(node.Config{CgroupRoot: f.cgroupRoot, DisableCgroups: f.cgroupRoot == "" || !isCRI}),
		agent.WithSource("server", podsource.Cached(srv, filepath.Join(f.rootDir, "sources", "server"))),
		agent.WithStatusSink(srv),
		agent.WithRunner("pageout", func(*agent.Components) (agent.Runner, error) { // a quarter of the memory while there is little to do
			return pageout.New(pageout.Config{Logger: log})
		}),
	}
	if f.drain || !isCRI {
		opts = append(opts, agent.WithConfig(podworkers.DrainConfig{Timeout: 25 * time.Second}))
	}
	switch {
	case isCRI: // eviction and collection keep the disk from filling up
		opts = append(opts, agent.WithRuntimeEndpoint(f.runtime), agent.WithConfig(eviction.Config{}),
			agent.WithConfig(imagegc.Config{}))
	case f.runtime == "host":
		// Processes that outlive a killed agent are found by this directory. It is not in f.rootDir, which other users cannot enter.
		executor := hostprocess.New(hostprocess.Config{Root: f.rootDir + "-containers", Logger: log})
		rt, err := embedded.New(embedded.Config{Logger: log, Executor: executor})
		if err != nil {
			return err
		}
		defer rt.Close()
		conn, err := rt.Dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		opts = append(opts, agent.WithRuntimeFunc(func(c *agent.Components) (agent.Runtime, error) {
			return cri.New(conn, cri.Config{Logger: c.Logger, Recorder: c.Recorder})
		}))
	case f.runtime == "simulated":
		opts = append(opts, agent.WithSimulatedRuntime())
	default:
		return fmt.Errorf("-runtime %q: must be simulated, host or unix:///path", f.runtime)
	}
	a, err := agent.New(opts...)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// server is the server of this node: a podsource.Source, a status.Sink and a status.Deleter. The agent repeats what a sink fails to do.
type server struct {
	flags
	client http.Client
}

// Watch implements podsource.Source. A failure changes no pod. Before the first valid response the Set is Incomplete: pods that run are
// left alone, and podsource.Cached starts those of its file.
func (s *server) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	last, etag := podsource.Set{Incomplete: true}, ""
	for {
		set, tag, err := s.fetch(ctx, last, etag)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is not a failure
		}
		if err == nil {
			last, etag = set, tag
		} else {
			set = last
			set.Errors = []podsource.SourceError{{Location: "server", Err: err}}
		}
		deliver(set)
		select {
		case <-ctx.Done():
		case <-time.After(max(s.period, 100*time.Millisecond)):
		}
	}
}

// fetch returns the pods of this node and their ETag. They are the last ones if the server has not modified them.
func (s *server) fetch(ctx context.Context, last podsource.Set, etag string) (podsource.Set, string, error) {
	resp, body, err := s.do(ctx, http.MethodGet, "pods", etag, nil)
	if err != nil {
		return last, "", fmt.Errorf("%w: %w", podsource.ErrUnavailable, err)
	}
	if resp.StatusCode == http.StatusNotModified {
		return last, etag, nil
	}
	pods, objects, err := podspec.Decode(body, podspec.DecodeOptions{})
	set := podsource.Set{Objects: objects}
	for _, pod := range pods {
		set.Pods = append(set.Pods, podsource.Manifest{Pod: pod, Origin: s.server})
	}
	return set, resp.Header.Get("ETag"), err
}

// SetStatus implements status.Sink.
func (s *server) SetStatus(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	meta := metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: pod.Labels}
	body, err := json.Marshal(&corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: meta, Status: st})
	if err == nil {
		_, _, err = s.do(ctx, http.MethodPut, "statuses/"+string(pod.UID), "", body)
	}
	return err
}

// DeleteStatus implements status.Deleter. It is called for a pod that has finished and that the server does not assign any more.
func (s *server) DeleteStatus(ctx context.Context, pod *corev1.Pod) error {
	_, _, err := s.do(ctx, http.MethodDelete, "statuses/"+string(pod.UID), "", nil)
	return err
}

// do sends one request and returns the response with its body. One that is too large is cut off, for podspec.Decode to reject.
func (s *server) do(ctx context.Context, method, path, etag string, body []byte) (*http.Response, []byte, error) {
	token, err := os.ReadFile(s.tokenFile)
	req, errReq := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.server, "/")+"/"+path, bytes.NewReader(body))
	if err = errors.Join(err, errReq); err != nil {
		return nil, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if etag != "" {
		req.Header.Set("If-None-Match", etag)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	isDone := resp.StatusCode/100 == 2 || method == http.MethodDelete && resp.StatusCode == http.StatusNotFound
	if !isDone && (etag == "" || resp.StatusCode != http.StatusNotModified) {
		return nil, nil, fmt.Errorf("server responded %s", resp.Status)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, podsource.DefaultMaxBytes+1))
	return resp, body, err
}
