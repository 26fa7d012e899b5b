package server

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readConn is a connection that is only read.
type readConn struct {
	net.Conn
	io.Reader
}

func (c readConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// encodeFrame returns a frame of a client.
func encodeFrame(first byte, mask [maskSize]byte, payload []byte) []byte {
	b := []byte{first, frameMasked}
	switch n := len(payload); {
	case n < length16:
		b[1] |= byte(n)
	case n < 1<<16:
		b[1] |= length16
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	default:
		b[1] |= length64
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i%maskSize])
	}
	return b
}

// decodeFrame returns the first byte and the payload of a frame.
func decodeFrame(r io.Reader) (first byte, payload []byte, err error) {
	start := make([]byte, 2)
	if _, err := io.ReadFull(r, start); err != nil {
		return 0, nil, err
	}
	n := uint64(start[1] & frameLength)
	long := map[uint64]int{length16: 2, length64: 8}[n]
	b := make([]byte, 8)
	if _, err := io.ReadFull(r, b[8-long:]); err != nil {
		return 0, nil, err
	}
	if long > 0 {
		n = binary.BigEndian.Uint64(b)
	}
	mask, payload := make([]byte, maskSize), make([]byte, n)
	if _, err := io.ReadFull(r, mask); err != nil {
		return 0, nil, err
	}
	_, err = io.ReadFull(r, payload)
	for i := range payload {
		payload[i] ^= mask[i%maskSize]
	}
	return start[0], payload, err
}

// Each channel gets what was sent on it, in messages of a bounded size. Short messages, and those of the protocol, are as they were.
func TestFrameSplitter(t *testing.T) {
	const text, binaryMessage, ping, final = 1, 2, 9, 0x80
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	lengths := []int{0, 1, 2, 125, 126, 127, maxMessage - 1, maxMessage, maxMessage + 1, 2*maxMessage - 1, 2 * maxMessage, 2*maxMessage + 1, 1<<16 - 1, 1 << 16, 3*maxMessage + 100, 1 << 20}
	for range 200 {
		type message struct {
			first   byte
			payload []byte
		}
		var sent []message
		var wire []byte
		for range 1 + random.IntN(4) {
			m := message{first: []byte{text, final | text, final | binaryMessage, final | ping}[random.IntN(4)]}
			m.payload = make([]byte, lengths[random.IntN(len(lengths))])
			if m.first == final|ping {
				m.payload = m.payload[:min(len(m.payload), 125)]
			}
			for i := range m.payload {
				m.payload[i] = byte(random.Uint32())
			}
			var mask [maskSize]byte
			binary.BigEndian.PutUint32(mask[:], random.Uint32())
			sent = append(sent, m)
			wire = append(wire, encodeFrame(m.first, mask, m.payload)...)
		}
		from := io.Reader(bytes.NewReader(wire))
		if random.IntN(2) == 0 {
			from = iotest.HalfReader(from)
		}
		splitter := &frameSplitter{Conn: readConn{Reader: from}}
		for _, m := range sent {
			var payload []byte
			for len(payload) < max(len(m.payload), 1) {
				first, part, err := decodeFrame(splitter)
				require.NoError(t, err)
				require.Equal(t, m.first, first)
				require.LessOrEqual(t, len(part), maxMessage)
				if len(m.payload) == 0 {
					require.Empty(t, part)
					break
				}
				if len(payload) > 0 {
					require.Equal(t, m.payload[0], part[0], "the channel")
					part = part[1:]
				}
				require.NotEmpty(t, part)
				payload = append(payload, part...)
			}
			assert.True(t, bytes.Equal(m.payload, payload))
		}
		_, _, err := decodeFrame(splitter)
		require.ErrorIs(t, err, io.EOF)
	}
}
