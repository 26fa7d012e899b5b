// Package notify sends signals on channels of one slot. Such a channel wakes a loop
// that finds out itself what there is to do: signals sent before it receives are
// merged into one.
package notify

// Send puts a signal into ch, unless one is pending there. It does not block. ch must
// have a buffer of one: a signal to an unbuffered channel would be lost while its
// reader is busy.
func Send(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
