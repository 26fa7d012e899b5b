package cri

import "sync"

// maxIDs is far more containers or sandboxes than a node has at a time.
const maxIDs = 1 << 14

// idSet remembers for which containers or sandboxes something is done, so that it is not done
// again. The zero value is empty.
type idSet struct {
	mu  sync.Mutex
	ids map[string]struct{}
}

func (s *idSet) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.ids[id]
	return ok
}

// add forgets another one if there are too many, which others have removed.
func (s *idSet) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = make(map[string]struct{})
	}
	for other := range s.ids {
		if len(s.ids) < maxIDs {
			break
		}
		delete(s.ids, other)
	}
	s.ids[id] = struct{}{}
}

func (s *idSet) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}
