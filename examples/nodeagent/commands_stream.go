package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/sublet-dev/agent/podstream"
)

// streamQuery asks for the streams of the flags, by the names that the API server uses.
func (c *client) streamQuery() (url.Values, podstream.Options) {
	q, o := url.Values{"output": {"1"}}, podstream.Options{Stdout: c.out, TTY: c.tty}
	if c.stdin {
		q.Set("input", "1")
		o.Stdin = c.in
	}
	if c.tty {
		q.Set("tty", "1")
	} else {
		q.Set("error", "1")
		o.Stderr = c.errOut
	}
	return q, o
}

func (c *client) exec(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("pod and command required: nodeagent exec POD -- COMMAND")
	}
	pod, container, err := c.target(ctx, args[:1])
	if err != nil {
		return err
	}
	q, o := c.streamQuery()
	q["command"] = args[1:]
	return c.connect(ctx, c.url(q, "exec", c.ns(), pod, container), o)
}

func (c *client) attach(ctx context.Context, args []string) error {
	pod, container, err := c.target(ctx, args)
	if err != nil {
		return err
	}
	q, o := c.streamQuery()
	return c.connect(ctx, c.url(q, "attach", c.ns(), pod, container), o)
}

// connect connects streams; with a terminal and input, that of this process passes all keys on. Without input its own
// keys, such as Ctrl-C, must work.
func (c *client) connect(ctx context.Context, u *url.URL, o podstream.Options) error {
	if o.TTY && o.Stdin != nil {
		sizes, restore := rawTerminal(ctx, c.in)
		defer restore()
		o.Resize = sizes
	}
	return c.streams.Stream(ctx, u, o)
}

func (c *client) portForward(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("pod and port required: nodeagent port-forward POD [LOCAL:]PORT")
	}
	local, remote, ok := strings.Cut(args[1], ":")
	if !ok {
		remote = local
	}
	port, err := strconv.ParseUint(remote, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("invalid port %q", args[1])
	}
	f, err := c.streams.PortForward(ctx, c.url(nil, "portForward", c.ns(), args[0]))
	if err != nil {
		return err
	}
	defer f.Close()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", local))
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "Forwarding from %s -> %d\n", listener.Addr(), port)
	return f.Serve(ctx, listener, uint16(port), func(err error) { fmt.Fprintf(c.errOut, "%v\n", err) })
}
