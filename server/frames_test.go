package server_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"
)

// A command gets a long message while it is sent: what has not come yet keeps nothing of it in memory. SV-6
func TestExec_LongMessages(t *testing.T) {
	n := serveSecure(t)
	cfg, err := websocket.NewConfig("wss://"+n.addr+"/exec/default/web/app?command=cat&input=1&output=1", "https://"+n.addr)
	require.NoError(t, err)
	cfg.Protocol = []string{"v5.channel.k8s.io"}
	cfg.Header.Set("Authorization", "Bearer good")
	tlsConfig := n.tls()
	tlsConfig.ServerName = "127.0.0.1"
	conn := tls.Client(dial(t, n.addr), tlsConfig)
	client, err := websocket.NewClient(cfg, conn)
	require.NoError(t, err)
	const size = 30 << 20
	header := binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, 1+size)
	header = append(header, 0, 0, 0, 0, 0) // no mask, and the channel of stdin
	part := make([]byte, 1<<20)
	for i := range part {
		part[i] = byte(i)
	}
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	go func() {
		_, err := conn.Write(append(header, part...))
		assert.NoError(t, err)
	}()
	var got []byte
	for message := []byte(nil); len(got) < len(part)-64<<10; { // the rest may wait for more
		require.NoError(t, websocket.Message.Receive(client, &message))
		if len(message) > 0 && message[0] == 1 {
			got = append(got, message[1:]...)
		}
	}
	assert.True(t, bytes.HasPrefix(part, got))
}
