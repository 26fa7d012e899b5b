package server

import "time"

// SetHeaderTimeout shortens the time that a client has to ask.
func (s *Server) SetHeaderTimeout(d time.Duration) { s.headerTimeout = d }

// SetStallPeriod shortens the time after which a client whose stdin is not read is checked.
func (s *Server) SetStallPeriod(d time.Duration) { s.stallPeriod = d }
