package server

import (
	"context"
	"net"
	"time"
)

// SetHeaderTimeout shortens the time that a client has to ask.
func (s *Server) SetHeaderTimeout(d time.Duration) { s.headerTimeout = d }

// SetStallPeriod shortens the time after which a client whose stdin is not read is checked.
func (s *Server) SetStallPeriod(d time.Duration) { s.stallPeriod = d }

// LimitConnections is the listener of a Server.
func LimitConnections(l net.Listener, limit int) net.Listener { return limitConnections(l, limit) }

// Keep lets a connection last, as a request does that a client may make.
func Keep(conn net.Conn) { keep(withConnection(context.Background(), conn), nil) }
