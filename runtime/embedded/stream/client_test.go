package stream_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// wants are the streams that a client opens.
type wants struct{ in, out, err, tty bool }

// result is all that came back: status is Success, or Failure and the exit code.
type result struct{ out, err, status string }

type dialFunc func(t *testing.T, url string, w wants, input string, size *remotecommand.TerminalSize) result

// clients speak the two wire protocols. kubectl and crictl do the same.
func clients() map[string]dialFunc {
	return map[string]dialFunc{"spdy": dialSPDY, "websocket": dialWebSocket}
}

func readStatus(t *testing.T, b []byte) string {
	var st struct {
		Status  string
		Details struct{ Causes []struct{ Message string } }
	}
	require.NoError(t, json.Unmarshal(b, &st), "status %q", b)
	for _, c := range st.Details.Causes {
		st.Status += " " + c.Message
	}
	return st.Status
}

// upgrade turns a URL into a SPDY connection.
func upgrade(t *testing.T, url, protocol string) httpstream.Connection {
	rt, err := spdy.NewRoundTripper(nil)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	require.NoError(t, err)
	req.Header.Set("X-Stream-Protocol-Version", protocol)
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	conn, err := rt.NewConnection(resp)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// session is an open SPDY exec or attach.
type session struct {
	conn                            httpstream.Connection
	in, out, errOut, status, resize httpstream.Stream
}

func openSPDY(t *testing.T, url string, w wants) *session {
	s := &session{conn: upgrade(t, url, "v4.channel.k8s.io")}
	open := func(kind string, enabled bool) httpstream.Stream {
		if !enabled {
			return nil
		}
		st, err := s.conn.CreateStream(http.Header{"streamType": {kind}})
		require.NoError(t, err)
		return st
	}
	s.status = open("error", true)
	s.in, s.out, s.errOut, s.resize = open("stdin", w.in), open("stdout", w.out), open("stderr", w.err), open("resize", w.tty)
	return s
}

func dialSPDY(t *testing.T, url string, w wants, input string, size *remotecommand.TerminalSize) result {
	s := openSPDY(t, url, w)
	if size != nil {
		require.NoError(t, json.NewEncoder(s.resize).Encode(size))
	}
	if w.in {
		_, err := io.WriteString(s.in, input)
		require.NoError(t, err)
		_ = s.in.Close() // a command that has read enough may have ended, and the stream with it
	}
	read := func(st httpstream.Stream) string {
		if st == nil {
			return ""
		}
		b, err := io.ReadAll(st)
		require.NoError(t, err)
		return string(b)
	}
	st, err := io.ReadAll(s.status)
	require.NoError(t, err)
	return result{out: read(s.out), err: read(s.errOut), status: readStatus(t, st)}
}

func openWebSocket(t *testing.T, url string, _ wants) *websocket.Conn {
	cfg, err := websocket.NewConfig(strings.Replace(url, "http://", "ws://", 1), "http://localhost")
	require.NoError(t, err)
	cfg.Protocol = []string{"v4.channel.k8s.io"}
	c, err := websocket.DialConfig(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func dialWebSocket(t *testing.T, url string, w wants, input string, size *remotecommand.TerminalSize) result {
	c := openWebSocket(t, url, w)
	send := func(channel byte, data string) {
		require.NoError(t, websocket.Message.Send(c, append([]byte{channel}, data...)))
	}
	if size != nil {
		b, err := json.Marshal(size)
		require.NoError(t, err)
		send(4, string(b))
	}
	if w.in {
		send(0, input)
	}
	var res result
	for res.status == "" {
		var msg []byte
		require.NoError(t, websocket.Message.Receive(c, &msg))
		switch data := string(msg[1:]); {
		case data == "":
		case msg[0] == 1:
			res.out += data
		case msg[0] == 2:
			res.err += data
		case msg[0] == 3:
			res.status = readStatus(t, msg[1:])
		}
	}
	return res
}
