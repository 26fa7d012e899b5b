package podstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// protocol is the version of the channel protocol in which exit codes are structured.
const protocol = "v4.channel.k8s.io"

// Client connects to streaming servers. The zero value connects through the network.
type Client struct {
	// DialContext connects to the server. Default: that of net/http
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	TLS         *tls.Config // of URLs with https; default: that of net/http
	Header      http.Header // of requests, such as Authorization; default: none
}

// connection is a connection with streams.
type connection struct {
	httpstream.Connection
	disconnect context.CancelFunc // closes what carries it
	closed     <-chan struct{}    // by disconnect
}

// Close disconnects at once. To close the streams first could wait for a server that does
// not read.
func (c *connection) Close() error {
	c.disconnect()
	_ = c.Connection.Close() // its frames are not sent
	return nil
}

// CreateStream opens a stream. Close ends it, although the library would wait on for the
// answer of the server, which it does in the background then.
func (c *connection) CreateStream(headers http.Header) (httpstream.Stream, error) {
	var s httpstream.Stream
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		s, err = c.Connection.CreateStream(headers)
	}()
	select {
	case <-opened:
		return s, err
	case <-c.closed:
		return nil, net.ErrClosed
	}
}

// connect upgrades a request to a connection with streams. The end of ctx ends it only
// until it has returned. An error is the cause of ctx if that is done.
func (c *Client) connect(ctx context.Context, u *url.URL, protocol string) (*connection, error) {
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, disconnect)
	conn, err := c.upgrade(ctx, connected, u, protocol)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		disconnect()
		return nil, err
	}
	return &connection{conn, disconnect, connected.Done()}, nil
}

// upgrade dials and upgrades. What it has dialed is closed when connected is done.
func (c *Client) upgrade(ctx, connected context.Context, u *url.URL, protocol string) (httpstream.Connection, error) {
	dial := c.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	config := c.TLS
	if config == nil {
		config = new(tls.Config) // the library verifies no certificate if there is none
	}
	rt, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: &http.Transport{
		TLSClientConfig: config,
		DialContext: func(ctx context.Context, protocol, address string) (net.Conn, error) {
			conn, err := dial(ctx, protocol, address)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(connected, func() { _ = conn.Close() }) // it is lost either way
			return conn, connected.Err()
		},
	}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), http.NoBody)
	if err != nil {
		return nil, errors.New("invalid URL of a streaming server") // which may be a secret
	}
	maps.Copy(req.Header, c.Header)
	req.Header.Set(httpstream.HeaderProtocolVersion, protocol)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("connect to the streaming server: %w", withoutURL(err))
	}
	conn, err := rt.NewConnection(resp)
	if err != nil {
		// The body has the error of the server. NewConnection has read and closed it.
		return nil, fmt.Errorf("connect to the streaming server: %w", err)
	}
	return conn, nil
}

// withoutURL removes the URL, which may be a secret, from an error.
func withoutURL(err error) error {
	if with, ok := errors.AsType[*url.Error](err); ok {
		return with.Err
	}
	return err
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct{ Width, Height uint16 }

// Options say which streams of a process are used. They must be those for which the URL
// was made.
type Options struct {
	// Stdin is read until it ends, and then closed for the process; nil: none. A Read that
	// blocks when the process has ended is not interrupted.
	Stdin io.Reader
	// Stdout and Stderr get the output; nil: none. With TTY there is no Stderr.
	Stdout, Stderr io.Writer
	TTY            bool
	// Resize sends the size of the terminal, and each new one. Default: none
	Resize <-chan TerminalSize
}

// ExitError is the error for a command that ends with another exit code than 0.
type ExitError struct{ Code int }

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("command terminated with exit code %d", e.Code) }

// Stream connects the streams of a command or, for attach, a process. It returns nil when
// that has ended with exit code 0, an ExitError for another one, and the cause of ctx when
// ctx is done, which disconnects.
func (c *Client) Stream(ctx context.Context, u *url.URL, o Options) error {
	conn, err := c.connect(ctx, u, protocol)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = stream(ctx, conn, o)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func stream(ctx context.Context, conn httpstream.Connection, o Options) error {
	s, err := openStreams(conn, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.resize != nil {
		go sendSizes(ctx, s.resize, o.Resize)
	}
	if s.stdin != nil {
		go func() {
			_, _ = io.Copy(s.stdin, o.Stdin) // a process that has ended reads no more
			_ = s.stdin.Close()
		}()
	}
	copied := make(chan error, 2)
	outputs := 0
	receive := func(to io.Writer, from io.Reader) {
		outputs++
		go func() {
			_, err := io.Copy(to, from)
			if err != nil {
				_ = conn.Close() // the output cannot be written
			}
			copied <- err
		}()
	}
	if s.stdout != nil {
		receive(o.Stdout, s.stdout)
	}
	if s.stderr != nil {
		receive(o.Stderr, s.stderr)
	}
	status, statusErr := readStatus(s.status)
	var errs []error
	for range outputs {
		errs = append(errs, <-copied)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("copy output: %w", err)
	}
	if statusErr != nil {
		return statusErr
	}
	return status
}
