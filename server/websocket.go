package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/sublet-dev/agent/internal/logattr"
)

// Runtimes serve the SPDY protocols and WebSocket up to version 4. Version 5, in which
// a client can end stdin alone, and SPDY inside a WebSocket, for port-forward, are
// converted here.
const (
	webSocketV5     = "v5.channel.k8s.io"
	spdyV4          = "v4.channel.k8s.io"
	tunnelProtocol  = "SPDY/3.1+portforward.k8s.io"
	spdyPortForward = "portforward.k8s.io"

	streamPingPeriod = 5 * time.Second
	stallPeriod      = 5 * time.Second
)

// FeatureWebSockets is the name under which a node declares that its server takes WebSockets of version 5, and of
// port-forward. An API server then passes those of its clients on as they are; without, it converts them to SPDY.
const FeatureWebSockets = "ExtendWebSocketsToKubelet"

// The channels of a WebSocket, by number.
const (
	channelStdin = iota
	channelStdout
	channelStderr
	channelError
	channelResize
	channelCount
)

// streamTypes are the names of the channels as SPDY streams.
var streamTypes = [channelCount]string{"stdin", "stdout", "stderr", "error", "resize"} //nolint:gochecknoglobals // read-only

// translate serves a WebSocket of version 5 with SPDY streams of the runtime. It
// connects to the runtime first, so that an error is an HTTP status.
func (s *Server) translate(w http.ResponseWriter, r *http.Request, target *url.URL, opts *corev1.PodAttachOptions) {
	upstream, err := s.dialSPDY(r.Context(), target)
	if err != nil {
		s.upstreamError(w, r, err)
		return
	}
	defer func() { _ = upstream.Close() }()
	stop := context.AfterFunc(r.Context(), func() { _ = upstream.Close() })
	defer stop()
	streams, err := createStreams(r.Context(), upstream, opts)
	if err != nil {
		s.upstreamError(w, r, err)
		return
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{webSocketV5: {Binary: true, Channels: channels(opts)}})
	// It would log each disconnected client as an error.
	_, client, err := conn.Open(w, r.WithContext(logr.NewContext(r.Context(), logr.Discard())))
	if err != nil {
		s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "upgrade to WebSocket failed", logattr.Err(err))
		return
	}
	defer func() { _ = conn.Close() }()
	// An empty message tells the client that the connection is established.
	first := channelError
	if opts.Stdout {
		first = channelStdout
	}
	_, _ = client[first].Write([]byte{})
	s.join(upstream, streams, client, client[first])
}

// join copies between the streams of the runtime and of the client until the runtime
// has ended those that it writes, or one side has closed the connection. Empty messages to
// probe show whether there is a client.
func (s *Server) join(upstream io.Closer, streams [channelCount]httpstream.Stream, client []io.ReadWriteCloser, probe io.Writer) {
	var input, output sync.WaitGroup
	if streams[channelStdin] != nil {
		stdin, done := &stallWriter{Writer: streams[channelStdin]}, make(chan struct{})
		// All channels of a client share its connection, which is not read while the runtime
		// accepts no stdin. So only a write shows then that the client is gone.
		go stdin.watch(done, s.stallPeriod, func() bool {
			_, err := probe.Write([]byte{})
			if err != nil {
				_ = upstream.Close()
			}
			return err == nil
		})
		input.Go(func() {
			_, _ = io.Copy(stdin, client[channelStdin])
			close(done)
			_ = streams[channelStdin].Close() // the end of stdin
			// A process that reads no stdin must not stop the other channels.
			_, _ = io.Copy(io.Discard, client[channelStdin])
		})
	}
	input.Go(func() {
		sizes := io.Discard
		if streams[channelResize] != nil {
			sizes = streams[channelResize]
		}
		// Also without a terminal this channel ends with the client's connection.
		_, _ = io.Copy(sizes, client[channelResize])
		_ = upstream.Close()
	})
	for _, n := range []int{channelStdout, channelStderr} {
		if streams[n] == nil {
			continue
		}
		output.Go(func() {
			if _, err := io.Copy(client[n], streams[n]); err != nil {
				_ = upstream.Close() // the client is gone
			}
		})
	}
	// The result comes last: a client that has it reads no more.
	result, _ := io.ReadAll(io.LimitReader(streams[channelError], maxBody))
	output.Wait()
	if len(result) == 0 { // for a client, no result is a success
		result, _ = json.Marshal(metav1.Status{ // it has strings and numbers only
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError, Message: "the connection to the runtime was lost; how the process ended is not known",
		})
	}
	_, _ = client[channelError].Write(result)
	for _, c := range client {
		_ = c.Close()
	}
	_ = upstream.Close()
	input.Wait()
}

// channels returns the direction of each channel, as seen from the server.
func channels(opts *corev1.PodAttachOptions) []wsstream.ChannelType {
	all := make([]wsstream.ChannelType, channelCount)
	all[channelError], all[channelResize] = wsstream.WriteChannel, wsstream.ReadChannel
	for n, requested := range map[int]bool{channelStdin: opts.Stdin, channelStdout: opts.Stdout, channelStderr: opts.Stderr} {
		switch {
		case !requested:
			all[n] = wsstream.IgnoreChannel
		case n == channelStdin:
			all[n] = wsstream.ReadChannel
		default:
			all[n] = wsstream.WriteChannel
		}
	}
	return all
}

// spdyConn is a SPDY connection to the runtime.
type spdyConn struct {
	httpstream.Connection
	conn io.Closer
}

// Close closes the connection before the streams: the frames that end these would wait
// behind stdin that the runtime does not accept.
func (c *spdyConn) Close() error {
	return errors.Join(c.conn.Close(), c.Connection.Close())
}

// bodyConn has the methods of a net.Conn that SPDY uses.
type bodyConn struct {
	net.Conn // nil
	body     io.ReadWriteCloser
}

func (c bodyConn) Read(b []byte) (int, error)  { return c.body.Read(b) }
func (c bodyConn) Write(b []byte) (int, error) { return c.body.Write(b) }
func (c bodyConn) Close() error                { return c.body.Close() }

// dialSPDY connects to the runtime's streaming server with version 4 of the protocol.
func (s *Server) dialSPDY(ctx context.Context, target *url.URL) (*spdyConn, error) {
	body, err := s.upgradeToSPDY(ctx, target, spdyV4)
	if err != nil {
		return nil, err
	}
	conn, err := spdy.NewClientConnectionWithPings(bodyConn{body: body}, streamPingPeriod)
	if err != nil {
		return nil, err // which has closed body
	}
	return &spdyConn{Connection: conn, conn: body}, nil
}

// upgradeToSPDY returns a connection to the runtime's streaming server after the handshake.
func (s *Server) upgradeToSPDY(ctx context.Context, target *url.URL, protocol string) (io.ReadWriteCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	request.Header.Set(httpstream.HeaderProtocolVersion, protocol)
	response, err := s.runtime.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	conn, ok := response.Body.(io.ReadWriteCloser)
	if !ok || response.StatusCode != http.StatusSwitchingProtocols {
		_ = response.Body.Close()
		return nil, fmt.Errorf("upgrade to SPDY: status %d", response.StatusCode)
	}
	return conn, nil
}

// createStreams creates those that the options ask for, that of the result first, unless ctx ends.
func createStreams(ctx context.Context, conn httpstream.Connection, opts *corev1.PodAttachOptions) (streams [channelCount]httpstream.Stream, err error) {
	for _, c := range []struct {
		channel   int
		requested bool
	}{{channelError, true}, {channelStdin, opts.Stdin}, {channelStdout, opts.Stdout}, {channelStderr, opts.Stderr}, {channelResize, opts.TTY}} {
		if !c.requested {
			continue
		}
		if streams[c.channel], err = createStream(ctx, conn, streamTypes[c.channel]); err != nil {
			return streams, fmt.Errorf("create stream %s: %w", streamTypes[c.channel], err)
		}
	}
	return streams, nil
}

// createStream creates one. The library waits for the answer of the runtime after the connection was closed, too.
func createStream(ctx context.Context, conn httpstream.Connection, streamType string) (httpstream.Stream, error) {
	type result struct {
		stream httpstream.Stream
		err    error
	}
	header := http.Header{}
	header.Set(corev1.StreamType, streamType)
	created := make(chan result, 1)
	go func() {
		stream, err := conn.CreateStream(header)
		created <- result{stream, err}
	}()
	select {
	case r := <-created:
		return r.stream, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// tunnel serves SPDY inside a WebSocket: after the handshakes it copies bytes.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request, target *url.URL) {
	upstream, err := s.upgradeToSPDY(r.Context(), target, spdyPortForward)
	if err != nil {
		s.upstreamError(w, r, err)
		return
	}
	defer func() { _ = upstream.Close() }()
	websocket.Server{
		Handshake: func(c *websocket.Config, r *http.Request) error {
			if !slices.Contains(c.Protocol, tunnelProtocol) {
				return fmt.Errorf("protocols %s: only %s is supported", strings.Join(c.Protocol, ", "), tunnelProtocol)
			}
			c.Protocol = []string{tunnelProtocol}
			return nil
		},
		Handler: func(client *websocket.Conn) {
			client.PayloadType = websocket.BinaryFrame
			done := make(chan struct{}, 2)
			for _, c := range [][2]io.ReadWriteCloser{{client, upstream}, {upstream, client}} {
				go func() {
					_, _ = io.Copy(c[0], c[1])
					done <- struct{}{}
				}()
			}
			select {
			case <-done:
			case <-r.Context().Done():
			}
			_ = upstream.Close()
			_ = client.Close()
		},
	}.ServeHTTP(w, r)
}
