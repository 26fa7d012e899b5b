// Package lazycri has a CRI client that connects late. Components are built before
// anything on the node is touched, and the owner id that the client needs is only known
// once the root directory is locked.
package lazycri

import (
	"errors"
	"io"

	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// Runtime is a cri.Client, with all its capabilities, from Connect on. Its other methods
// must not be called before.
type Runtime struct {
	*cri.Client
	connect func(*Runtime) (disconnect func() error, err error)
}

// New returns the client of the runtime at endpoint. imageEndpoint is that of the image
// service, or "" if it is the same. cfg is called by Connect.
func New(endpoint, imageEndpoint string, cfg func() cri.Config) *Runtime {
	return &Runtime{connect: func(r *Runtime) (func() error, error) {
		c := cfg()
		conn, err := cri.Dial(endpoint)
		if err != nil {
			return nil, err
		}
		opened := []io.Closer{conn}
		if imageEndpoint != "" {
			images, err := cri.Dial(imageEndpoint)
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			c.ImageConn = images
			opened = append(opened, images)
		}
		r.Client, err = cri.New(conn, c)
		return closeAll(opened...), err
	}}
}

// NewEmbedded returns the client of an embedded runtime, which Connect creates and
// disconnect closes. cfg is called by Connect.
func NewEmbedded(rt embedded.Config, cfg func() cri.Config) *Runtime {
	return &Runtime{connect: func(r *Runtime) (func() error, error) {
		inside, err := embedded.New(rt)
		if err != nil {
			return nil, err
		}
		conn, err := inside.Dial()
		if err != nil {
			return nil, errors.Join(err, inside.Close())
		}
		r.Client, err = cri.New(conn, cfg())
		return closeAll(conn, inside), err
	}}
}

// Connect makes the client. It does not wait for the runtime to answer. If disconnect is
// not nil, it must be called in the end, even after an error.
func (r *Runtime) Connect() (disconnect func() error, err error) { return r.connect(r) }

func closeAll(all ...io.Closer) func() error {
	return func() error {
		var errs []error
		for _, c := range all {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
}
