package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podstream"
)

// command is one of the commands that connect to a running agent.
type command struct {
	usage  string
	define func(*flag.FlagSet, *commandFlags)
	run    func(c *client, ctx context.Context, args []string) error
}

// commands are named and used like kubectl's.
func commands() map[string]*command {
	container := func(fs *flag.FlagSet, f *commandFlags) {
		fs.StringVar(&f.container, "c", "", "container; default: the only one")
	}
	streams := func(fs *flag.FlagSet, f *commandFlags) {
		container(fs, f)
		fs.BoolVar(&f.stdin, "i", false, "pass standard input")
		fs.BoolVar(&f.tty, "t", false, "the process has a terminal")
		fs.BoolVar(&f.both, "it", false, "-i and -t")
	}
	grace := func(fs *flag.FlagSet, f *commandFlags) {
		fs.DurationVar(&f.gracePeriod, "grace-period", 0, "upper limit of the time to end; 0: that of the pod")
	}
	return map[string]*command{
		"get": {"get [POD]", func(fs *flag.FlagSet, f *commandFlags) {
			fs.StringVar(&f.output, "o", "", "json, yaml or wide; default: a table")
		}, (*client).get},
		"logs": {"logs POD", func(fs *flag.FlagSet, f *commandFlags) {
			container(fs, f)
			fs.BoolVar(&f.follow, "f", false, "follow the log until the container ends")
			fs.BoolVar(&f.previous, "p", false, "log of the previous container")
			fs.BoolVar(&f.timestamps, "timestamps", false, "begin each line with its time")
			fs.Int64Var(&f.tail, "tail", -1, "number of last lines; -1: all")
			fs.DurationVar(&f.since, "since", 0, "only lines that are not older")
			fs.StringVar(&f.sinceTime, "since-time", "", "only lines from this time on, RFC 3339")
			fs.Int64Var(&f.limit, "limit-bytes", 0, "maximum number of bytes; 0: all")
			fs.StringVar(&f.stream, "stream", "", "Stdout or Stderr; default: both")
		}, (*client).logs},
		"exec":         {"exec [-it] POD -- COMMAND [ARG...]", streams, (*client).exec},
		"attach":       {"attach [-i] POD", streams, (*client).attach},
		"port-forward": {"port-forward POD [LOCAL:]PORT", nil, (*client).portForward},
		"restart":      {"restart POD", container, (*client).restart},
		"evict":        {"evict POD", grace, (*client).evict},
		"drain":        {"drain", grace, (*client).drain},
	}
}

// commandFlags are the flags of all commands.
type commandFlags struct {
	rootDir, namespace, container, output string
	follow, previous, timestamps          bool
	stdin, tty, both                      bool
	tail, limit                           int64
	since, gracePeriod                    time.Duration
	sinceTime, stream                     string
}

// execute runs a command and returns the exit code of this process.
func execute(name string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := runCommand(ctx, name, args, os.Stdin, os.Stdout, os.Stderr)
	exit, isExit := errors.AsType[podstream.ExitError](err)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case isExit:
		return exit.Code
	}
	fmt.Fprintf(os.Stderr, "nodeagent %s: %v\n", name, err)
	return 1
}

func runCommand(ctx context.Context, name string, args []string, in io.Reader, out, errOut io.Writer) error {
	cmd := commands()[name]
	f := &commandFlags{}
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // execute prints errors
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "usage: nodeagent %s\n", cmd.usage)
		fs.PrintDefaults()
	}
	fs.StringVar(&f.rootDir, "root-dir", defaultRootDir, "that of the agent")
	fs.StringVar(&f.namespace, "n", "", "namespace; default: of get all, else \"default\"")
	if cmd.define != nil {
		cmd.define(fs, f)
	}
	positional, err := parseInterleaved(fs, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(errOut)
		fs.Usage()
		return err
	case err != nil:
		return fmt.Errorf("%w; see nodeagent %s -help", err, name)
	}
	f.stdin, f.tty = f.stdin || f.both, f.tty || f.both
	return cmd.run(newClient(f, in, out, errOut), ctx, positional)
}

// parseInterleaved parses flags before and after other arguments, as kubectl does. What
// follows "--" are arguments.
func parseInterleaved(fs *flag.FlagSet, args []string) (positional []string, err error) {
	for len(args) > 0 {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		rest := fs.Args()
		if used := len(args) - len(rest); used > 0 && args[used-1] == "--" || len(rest) == 0 {
			return append(positional, rest...), nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
	return positional, nil
}

// client connects to the socket of an agent.
type client struct {
	*commandFlags
	in          io.Reader
	out, errOut io.Writer
	http        *http.Client
	streams     *podstream.Client
}

func newClient(f *commandFlags, in io.Reader, out, errOut io.Writer) *client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socketPath(f.rootDir))
		if err != nil {
			return nil, fmt.Errorf("%w; is the agent running, with this -root-dir, as this user?", err)
		}
		return conn, nil
	}
	return &client{
		commandFlags: f, in: in, out: out, errOut: errOut,
		http: &http.Client{Transport: &http.Transport{DialContext: dial}}, streams: &podstream.Client{DialContext: dial},
	}
}

// url returns the URL of a path, whose elements are escaped.
func (c *client) url(query url.Values, elements ...string) *url.URL {
	u := &url.URL{Scheme: "http", Host: "localhost", RawQuery: query.Encode()}
	return u.JoinPath(elements...)
}

// do sends a request and returns the body of a successful response.
func (c *client) do(ctx context.Context, method string, u *url.URL) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if with, ok := errors.AsType[*url.Error](err); ok {
		err = with.Err
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return resp.Body, nil
}

func (c *client) ns() string {
	if c.namespace == "" {
		return "default"
	}
	return c.namespace
}

// pods returns the pods of the agent.
func (c *client) pods(ctx context.Context) ([]corev1.Pod, error) {
	body, err := c.do(ctx, http.MethodGet, c.url(nil, "pods"))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var list corev1.PodList
	err = json.NewDecoder(body).Decode(&list)
	return list.Items, err
}

// target returns the pod that is named, and its container.
func (c *client) target(ctx context.Context, args []string) (pod, container string, err error) {
	if len(args) == 0 {
		return "", "", errors.New("pod required; nodeagent get lists them")
	}
	if c.container != "" {
		return args[0], c.container, nil
	}
	pods, err := c.pods(ctx)
	if err != nil {
		return "", "", err
	}
	for i := range pods {
		if pods[i].Name == args[0] && pods[i].Namespace == c.ns() {
			container, err := containerOf(&pods[i])
			return args[0], container, err
		}
	}
	return "", "", fmt.Errorf("pod %s/%s not found; nodeagent get lists the pods, and -n gives a namespace", c.ns(), args[0])
}

func (c *client) logs(ctx context.Context, args []string) error {
	pod, container, err := c.target(ctx, args)
	if err != nil {
		return err
	}
	q := url.Values{}
	set := func(name, value string, given bool) {
		if given {
			q.Set(name, value)
		}
	}
	set("follow", "true", c.follow)
	set("previous", "true", c.previous)
	set("timestamps", "true", c.timestamps)
	set("tailLines", strconv.FormatInt(c.tail, 10), c.tail >= 0)
	set("sinceSeconds", strconv.FormatInt(int64((c.since+time.Second-1)/time.Second), 10), c.since > 0)
	set("sinceTime", c.sinceTime, c.sinceTime != "")
	set("limitBytes", strconv.FormatInt(c.limit, 10), c.limit > 0)
	set("stream", c.stream, c.stream != "")
	body, err := c.do(ctx, http.MethodGet, c.url(q, "containerLogs", c.ns(), pod, container))
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(c.out, body)
	return err
}

func (c *client) restart(ctx context.Context, args []string) error {
	q := url.Values{}
	if c.container != "" {
		q.Set("container", c.container)
	}
	return c.change(ctx, "restart", "restarted", q, args)
}

func (c *client) evict(ctx context.Context, args []string) error {
	return c.change(ctx, "evict", "evicted", url.Values{"gracePeriod": {c.gracePeriod.String()}}, args)
}

func (c *client) change(ctx context.Context, verb, past string, q url.Values, args []string) error {
	if len(args) != 1 {
		return errors.New("one pod required; nodeagent get lists them")
	}
	body, err := c.do(ctx, http.MethodPost, c.url(q, verb, c.ns(), args[0]))
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "pod %s/%s %s\n", c.ns(), args[0], past)
	return body.Close()
}

func (c *client) drain(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return errors.New("drain takes no pod; evict does")
	}
	body, err := c.do(ctx, http.MethodPost, c.url(url.Values{"gracePeriod": {c.gracePeriod.String()}}, "drain"))
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, "node drained")
	return body.Close()
}
