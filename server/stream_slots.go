package server

import "sync"

// streamSlots bounds the requests that last. A namespace gets no more of the slots than it leaves free: those who may enter one
// pod, or read its log, must not keep all others from theirs. So one namespace has half of the slots at most, and each further
// one half of those that the others leave.
type streamSlots struct {
	limit int

	mu    sync.Mutex // guards all below
	taken int
	of    map[string]int // by namespace; "" is of requests for no pod
}

func newStreamSlots(limit int) *streamSlots {
	return &streamSlots{limit: limit, of: map[string]int{}}
}

// take takes a slot if one is free for a namespace.
func (s *streamSlots) take(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if free := s.limit - s.taken; free == 0 || s.of[namespace] > free {
		return false
	}
	s.taken++
	s.of[namespace]++
	return true
}

// release gives a slot of a namespace back.
func (s *streamSlots) release(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.of[namespace]--; s.of[namespace] == 0 {
		delete(s.of, namespace)
	}
}
