package podstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
)

// errorTimeout bounds the wait for the reason why a connection to a port ended.
const errorTimeout = time.Second

// Forwarder connects to ports of a pod by one connection to its streaming server. Its
// methods can be called concurrently.
type Forwarder struct {
	conn     httpstream.Connection
	requests atomic.Int64
}

// PortForward connects to a server. The caller closes the Forwarder.
func (c *Client) PortForward(ctx context.Context, u *url.URL) (*Forwarder, error) {
	conn, err := c.connect(ctx, u, portforward.ProtocolV1Name)
	if err != nil {
		return nil, err
	}
	return &Forwarder{conn: conn}, nil
}

// Close closes all connections.
func (f *Forwarder) Close() error { return f.conn.Close() }

// Done is closed when the connection to the server is lost or closed.
func (f *Forwarder) Done() <-chan bool { return f.conn.CloseChan() }

// Dial connects to a port of the pod. That nothing listens there is the error of a Read or,
// if the server has said so by then, of Dial.
func (f *Forwarder) Dial(port uint16) (*Conn, error) {
	headers := func(kind string, id int64) http.Header {
		return http.Header{
			portforward.StreamType: {kind}, portforward.PortHeader: {strconv.Itoa(int(port))},
			portforward.PortForwardRequestIDHeader: {strconv.FormatInt(id, 10)},
		}
	}
	id := f.requests.Add(1)
	failure, err := f.conn.CreateStream(headers(portforward.StreamTypeError, id))
	if err != nil {
		return nil, fmt.Errorf("open stream to port %d: %w", port, err)
	}
	_ = failure.Close() // only the server writes to it
	c := &Conn{f: f, failure: failure, port: port, failed: make(chan struct{})}
	go func() {
		defer close(c.failed)
		if b, _ := io.ReadAll(io.LimitReader(failure, maxStatus)); len(b) > 0 {
			c.err = fmt.Errorf("forward port %d: %s", port, b)
		}
	}()
	c.data, err = f.conn.CreateStream(headers(portforward.StreamTypeData, id))
	if err == nil {
		return c, nil
	}
	// The server may have closed the stream while it was opened: it has a reason then.
	err = c.reason(fmt.Errorf("open stream to port %d: %w", port, err))
	_ = failure.Reset()
	f.conn.RemoveStreams(failure)
	return nil, err
}

// Conn is a connection to a port.
type Conn struct {
	f             *Forwarder
	data, failure httpstream.Stream
	port          uint16
	failed        chan struct{} // closed when err is final
	err           error
}

// Read reads what the pod sends. At the end it returns io.EOF or why the server has closed
// the connection.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.data.Read(b)
	if n > 0 || err == nil {
		return n, nil
	}
	return 0, c.reason(err)
}

// reason returns why the server has closed the connection, or err if it does not say so soon.
func (c *Conn) reason(err error) error {
	t := time.NewTimer(errorTimeout)
	defer t.Stop()
	select {
	case <-c.failed:
		if c.err != nil {
			return c.err
		}
	case <-t.C:
	}
	return err
}

// Write sends to the pod.
func (c *Conn) Write(b []byte) (int, error) { return c.data.Write(b) }

// CloseWrite tells the pod that nothing more comes.
func (c *Conn) CloseWrite() error { return c.data.Close() }

// Close closes the connection in both directions.
func (c *Conn) Close() error {
	err := errors.Join(c.data.Reset(), c.failure.Reset())
	c.f.conn.RemoveStreams(c.data, c.failure)
	return err
}

// Serve forwards the connections of a listener, which it closes, to a port of the pod
// until ctx is done or the connection to the server is lost. It calls failed, if not nil,
// with the error of a connection; others go on.
func (f *Forwarder) Serve(ctx context.Context, listener net.Listener, port uint16, failed func(error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-f.Done():
		}
		_ = listener.Close()
	})
	for {
		client, err := listener.Accept()
		if err != nil {
			select {
			case <-f.Done():
				return errors.New("the connection to the pod was lost")
			case <-ctx.Done():
				return nil
			default:
				return fmt.Errorf("accept connection: %w", err)
			}
		}
		wg.Go(func() {
			if err := f.forward(ctx, client, port); err != nil && failed != nil && ctx.Err() == nil {
				failed(err)
			}
		})
	}
}

// dialContext is Dial that returns early when ctx ends. A connection that comes later is closed.
func (f *Forwarder) dialContext(ctx context.Context, port uint16) (*Conn, error) {
	type result struct {
		conn *Conn
		err  error
	}
	dialed := make(chan result, 1)
	go func() {
		conn, err := f.Dial(port)
		dialed <- result{conn, err}
	}()
	select {
	case r := <-dialed:
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-dialed; r.err == nil {
				_ = r.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// forward connects one client to a port.
func (f *Forwarder) forward(ctx context.Context, client net.Conn, port uint16) error {
	defer func() { _ = client.Close() }()
	pod, err := f.dialContext(ctx, port)
	if err != nil {
		return err
	}
	defer func() { _ = pod.Close() }()
	defer context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = pod.Close()
	})()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.Copy(pod, client); err == nil {
			_ = pod.CloseWrite()
		} else {
			_ = pod.Close() // a client that is gone reads nothing more
		}
	}()
	_, err = io.Copy(client, pod)
	_ = client.Close() // which ends the other direction
	<-sent
	return err
}
