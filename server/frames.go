package server

import (
	"encoding/binary"
	"io"
	"net"
)

// maxMessage is how much of a message of a WebSocket is in memory. Clients send some 32 KiB at a time, and may send 32 MiB.
const maxMessage = 48 << 10

// Parts of the header of a frame, RFC 6455.
const (
	controlFrame = 0x08 // bit of the first byte: no message
	frameMasked  = 0x80 // bit of the second byte
	frameLength  = 0x7f // of the second byte
	length16     = 126  // the length follows, in 16 bits
	length64     = 127  // in 64 bits
	maskSize     = 4
)

// frameSplitter is the connection of a WebSocket whose messages begin with the number of a channel. It divides those that
// are longer than maxMessage into several of the same channel: what serves a channel reads a complete message into memory.
type frameSplitter struct {
	net.Conn
	out     []byte // is read next
	pass    uint64 // bytes of the client that are read then
	left    uint64 // bytes of the message after that
	first   byte   // of the header of the message
	channel byte
	mask    [maskSize]byte // of the next byte of the message, and of those after it
}

// Read implements net.Conn.
func (c *frameSplitter) Read(b []byte) (n int, err error) {
	if len(c.out) == 0 && c.pass == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	if len(c.out) > 0 {
		n = copy(b, c.out)
		c.out = c.out[n:]
		return n, nil
	}
	if uint64(len(b)) > c.pass {
		b = b[:c.pass]
	}
	n, err = c.Conn.Read(b)
	c.pass -= uint64(n) //nolint:gosec // not negative
	return n, err
}

// next prepares a frame, or a further part of one.
func (c *frameSplitter) next() error {
	if c.left > 0 {
		c.part()
		return nil
	}
	header, length, err := c.header()
	if err != nil {
		return err
	}
	if header[0]&controlFrame != 0 || header[1]&frameMasked == 0 || length <= maxMessage {
		c.out, c.pass = header, length
		return nil
	}
	channel := make([]byte, 1)
	if _, err := io.ReadFull(c.Conn, channel); err != nil {
		return err
	}
	copy(c.mask[:], header[len(header)-maskSize:])
	c.first, c.channel, c.left = header[0], channel[0]^c.mask[0], length-1
	c.rotate(1)
	c.part()
	return nil
}

// header reads the header of a frame, which says how much follows.
func (c *frameSplitter) header() (header []byte, length uint64, err error) {
	const start = 2
	header = make([]byte, start, start+8+maskSize)
	if _, err := io.ReadFull(c.Conn, header); err != nil {
		return nil, 0, err
	}
	length = uint64(header[1] & frameLength)
	size := map[uint64]int{length16: 2, length64: 8}[length]
	mask := 0
	if header[1]&frameMasked != 0 {
		mask = maskSize
	}
	header = header[:start+size+mask]
	if _, err := io.ReadFull(c.Conn, header[start:]); err != nil {
		return nil, 0, err
	}
	switch size {
	case 2:
		length = uint64(binary.BigEndian.Uint16(header[start:]))
	case 8:
		length = binary.BigEndian.Uint64(header[start:])
	}
	return header, length, nil
}

// part makes the next part of a message a frame.
func (c *frameSplitter) part() {
	size := min(c.left, maxMessage-1)
	length := size + 1 // with the channel
	c.out = append(c.out[:0], c.first, frameMasked)
	if length < length16 {
		c.out[1] |= byte(length)
	} else {
		c.out[1] |= length16
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(length))
	}
	// What follows the channel keeps its mask.
	c.rotate(maskSize - 1)
	c.out = append(c.out, c.mask[:]...)
	c.out = append(c.out, c.channel^c.mask[0])
	c.rotate(1)
	c.pass, c.left = size, c.left-size
	c.rotate(int(size % maskSize))
}

// rotate moves the mask on by n bytes.
func (c *frameSplitter) rotate(n int) {
	mask := c.mask
	for i := range c.mask {
		c.mask[i] = mask[(i+n)%maskSize]
	}
}
