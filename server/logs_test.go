package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/server"
)

const logPath = "/containerLogs/default/web/app"

// The query parameters of kubectl logs, through the API server. SV-2
func TestContainerLogs_Options(t *testing.T) {
	since := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	n := serveSecure(t)
	c := n.client(t)
	for query, want := range map[string]corev1.PodLogOptions{
		"":                                {},
		"?follow=true":                    {Follow: true},
		"?follow=false&previous=1":        {Previous: true},
		"?follow":                         {Follow: true},
		"?timestamps=true&follow=0":       {Timestamps: true},
		"?tailLines=0":                    {TailLines: new(int64(0))},
		"?tailLines=7&limitBytes=1":       {TailLines: new(int64(7)), LimitBytes: new(int64(1))},
		"?tail=3":                         {TailLines: new(int64(3))},
		"?tail=all&tailLines=5":           {},
		"?sinceSeconds=60":                {SinceSeconds: new(int64(60))},
		"?sinceTime=2026-01-02T03:04:05Z": {SinceTime: &since},
		"?stream=Stdout":                  {Stream: new("Stdout")},
		"?stream=Stderr&limitBytes=9":     {Stream: new("Stderr"), LimitBytes: new(int64(9))},
		"?unknown=1":                      {},
	} {
		var got corev1.PodLogOptions
		n.log = func(_ context.Context, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
			got = *opts
			assert.Equal(t, *opts.Stream == "Stderr", stdout == nil)
			assert.Equal(t, *opts.Stream == "Stdout", stderr == nil)
			return nil
		}
		status, header, body := n.do(t, c, http.MethodGet, logPath+query, "good")
		require.Equal(t, http.StatusOK, status, body)
		assert.Equal(t, "text/plain", header.Get("Content-Type"))
		assert.Empty(t, body)
		want.Container = "app"
		if want.Stream == nil {
			want.Stream = new("All")
		}
		assert.Equal(t, want, got, query)
	}
}

// SV-14
func TestContainerLogs_RejectsInvalidRequests(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	for path, want := range map[string]int{
		logPath + "?tailLines=x":                                   400,
		logPath + "?sinceTime=now":                                 400,
		logPath + "?tailLines=-1":                                  422,
		logPath + "?limitBytes=0":                                  422,
		logPath + "?sinceSeconds=0":                                422,
		logPath + "?sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z": 422,
		logPath + "?stream=Both":                                   422,
		logPath + "?stream=Stdout&tailLines=1":                     422,
		"/containerLogs/default/web/other":                         404,
		"/containerLogs/default/other/app":                         404,
		"/containerLogs/other/web/app":                             404,
		"/containerLogs/default/web":                               404,
	} {
		status, _, body := n.do(t, c, http.MethodGet, path, "good")
		assert.Equal(t, want, status, "%s: %s", path, body)
	}
	for _, container := range []string{"init", "debug"} {
		status, _, _ := n.do(t, c, http.MethodGet, "/containerLogs/default/web/"+container, "good")
		assert.Equal(t, http.StatusOK, status, container)
	}
	status, _, _ := n.do(t, c, http.MethodPost, logPath, "good")
	assert.Equal(t, http.StatusMethodNotAllowed, status)
}

// SV-14
func TestContainerLogs_Errors(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	n.log = func(context.Context, *corev1.PodLogOptions, io.Writer, io.Writer) error {
		return errors.New("container is waiting to start: ContainerCreating")
	}
	status, _, body := n.do(t, c, http.MethodGet, logPath, "good")
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Equal(t, "container is waiting to start: ContainerCreating\n", body)
	// kubectl shows the text of 400, and of 404 only that the API server did not find it.
	n.log = func(context.Context, *corev1.PodLogOptions, io.Writer, io.Writer) error {
		return fmt.Errorf("previous container %q: %w", "app", runtime.ErrNotFound)
	}
	status, _, body = n.do(t, c, http.MethodGet, logPath, "good")
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Equal(t, "previous container \"app\": not found\n", body)
	n.log = func(context.Context, *corev1.PodLogOptions, io.Writer, io.Writer) error {
		return runtime.ErrUnavailable
	}
	status, _, _ = n.do(t, c, http.MethodGet, logPath, "good")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	n.log = func(_ context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		_, err := io.WriteString(stdout, "one\n")
		return errors.Join(err, errors.New("file was removed"))
	}
	status, _, body = n.do(t, c, http.MethodGet, logPath, "good")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "one\nfile was removed", body)
}

// A line that is followed arrives at once, after the time in which other requests must
// be complete, and a client that goes away ends the reader. SV-2
func TestContainerLogs_Follow(t *testing.T) {
	n := newFakeNode(t)
	lines, ended := make(chan string), make(chan error, 1)
	n.log = func(ctx context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		if _, err := stdout.Write(nil); err != nil { // the client is answered before the first line
			return err
		}
		for {
			select {
			case line := <-lines:
				if _, err := io.WriteString(stdout, line); err != nil {
					return err
				}
			case <-ctx.Done():
				ended <- ctx.Err()
				return ctx.Err()
			}
		}
	}
	s := serveSecure(t, func(cfg *server.Config) { cfg.Logs = n })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.addr+logPath+"?follow=true", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer good")
	resp, err := s.client(t).Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	lines <- "first\n"
	for _, want := range []string{"first\n", "second\n", "third\n"} {
		got := make([]byte, len(want))
		_, err = io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		if want != "third\n" {
			lines <- map[string]string{"first\n": "second\n", "second\n": "third\n"}[want]
		}
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
