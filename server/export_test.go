package server

import "time"

// SetHeaderTimeout shortens the time that a client has to ask.
func (s *Server) SetHeaderTimeout(d time.Duration) { s.headerTimeout = d }
