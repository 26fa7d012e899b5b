package server

import (
	"bytes"
	"context"
	"log/slog"
	"strings"

	"github.com/sublet-dev/agent/internal/loglimit"
)

// errorLog is the ErrorLog of an http.Server. Handshakes that fail are what a client without any rights can cause
// as often as it likes, so their records are limited.
type errorLog struct {
	log        *slog.Logger
	handshakes loglimit.Limit
}

// Write implements io.Writer. It gets one record at a time.
func (l *errorLog) Write(p []byte) (int, error) {
	text := slog.String("err", string(bytes.TrimSuffix(p, []byte("\n"))))
	if strings.HasPrefix(text.Value.String(), "http: TLS handshake error ") {
		l.handshakes.Log(context.Background(), l.log, slog.LevelWarn, "TLS handshake failed", text) //nolint:forbidigo // a log.Logger has none
	} else {
		l.log.Warn("serving HTTP failed", text)
	}
	return len(p), nil
}
