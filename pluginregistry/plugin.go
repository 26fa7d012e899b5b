package pluginregistry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/text"
)

// maxMessageBytes bounds what a plugin says about itself.
const maxMessageBytes = 64 << 10

// serve registers the plugin at a socket until that succeeds, and deregisters it when
// removed is done. At the end of run it returns and leaves the plugin registered.
func (r *Registry) serve(run, removed context.Context, path string) {
	log := r.cfg.Logger.With(slog.String("socket", path))
	ctx, cancel := context.WithCancel(run)
	defer context.AfterFunc(removed, cancel)()
	defer cancel()
	retry := time.NewTimer(0)
	defer retry.Stop()
	wait, lastErr := r.cfg.RetryPeriod, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
		p, err := r.register(ctx, path)
		if err == nil {
			log.Info("plugin registered", slog.String("type", p.Type), slog.String("plugin", p.Name))
			<-ctx.Done()
			if run.Err() == nil {
				r.withdraw(run, p)
				log.Info("plugin deregistered", slog.String("type", p.Type), slog.String("plugin", p.Name))
			}
			return
		}
		err = text.Error(err)
		if message := err.Error(); message != lastErr && ctx.Err() == nil {
			lastErr = message
			log.Warn("plugin registration failed", logattr.Err(err))
		}
		retry.Reset(wait)
		wait = min(2*wait, 10*r.cfg.RetryPeriod)
	}
}

// register asks the plugin what it is, and tells it the answer of the handler.
func (r *Registry) register(ctx context.Context, path string) (Plugin, error) {
	conn, err := Connect(path,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
	)
	if err != nil {
		return Plugin{}, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }() // each registration has its own
	client := api.NewRegistrationClient(conn)
	infoCtx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	info, err := client.GetInfo(infoCtx, &api.InfoRequest{})
	if err != nil {
		return Plugin{}, fmt.Errorf("plugin does not answer: %w", err)
	}
	p := Plugin{Socket: path, Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions()}
	if p.Endpoint == "" {
		p.Endpoint = path
	}
	rejection := r.offer(ctx, p)
	answer := &api.RegistrationStatus{PluginRegistered: rejection == nil}
	if rejection != nil {
		answer.Error = text.Error(rejection).Error()
	}
	notifyCtx, cancelNotify := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancelNotify()
	if _, err := client.NotifyRegistrationStatus(notifyCtx, answer); err != nil {
		if rejection == nil {
			r.withdraw(ctx, p)
		}
		return p, errors.Join(rejection, fmt.Errorf("plugin does not take its registration: %w", err))
	}
	return p, rejection
}

// offer passes a plugin to the handler of its type.
func (r *Registry) offer(ctx context.Context, p Plugin) error {
	h := r.cfg.Handlers[p.Type]
	switch {
	case h == nil:
		return fmt.Errorf("plugin type %q: not supported by this agent", p.Type)
	case p.Name == "":
		return errors.New("plugin name: required")
	case !filepath.IsAbs(p.Endpoint):
		return fmt.Errorf("plugin endpoint %q must be an absolute path", p.Endpoint)
	}
	return safe.Call(r.cfg.Logger, "plugin handler", func() error { return h.Register(ctx, p) })
}

// withdraw tells the handler that has accepted a plugin that it is gone.
func (r *Registry) withdraw(ctx context.Context, p Plugin) {
	safe.Do(r.cfg.Logger, "plugin handler", func() { r.cfg.Handlers[p.Type].Deregister(ctx, p) })
}
