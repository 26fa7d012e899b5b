//go:build !unix

package embedded

import "net"

// endListener closes a listener. No process gets copies of sockets here.
func endListener(lis net.Listener) {
	_ = lis.Close() // it is closed either way
}
