package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKubeAPIFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-manifests", "/m", "-kube-api", "127.0.0.1:6443"},
		{"-kube-api", "localhost:6443", "-kube-api-writable"},
	} {
		f, err := parse(args, io.Discard)
		require.NoError(t, err, args)
		api := newKubeAPI(&f, f.logger(io.Discard))
		assert.Equal(t, f.kubeAPI.writable, api.store != nil)
		assert.Len(t, api.options(), map[bool]int{false: 1, true: 3}[f.kubeAPI.writable])
	}
	for message, args := range map[string][]string{
		"-kube-api-writable needs -kube-api":                 {"-manifests", "/m", "-kube-api-writable"},
		`-kube-api "6443": must be host:port`:                {"-manifests", "/m", "-kube-api", "6443"},
		`-kube-api "127.0.0.1:0": must be host:port`:         {"-manifests", "/m", "-kube-api", "127.0.0.1:0"},
		"other machines can reach this address":              {"-manifests", "/m", "-kube-api", "0.0.0.0:6443"},
		"no source of pods; give":                            {"-kube-api", "127.0.0.1:6443"},
		"-kube-api-writable: with -kubeconfig the pods are ": {"-kubeconfig", "/k", "-kube-api", "127.0.0.1:6443", "-kube-api-writable"},
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, message)
	}
	var none *kubeAPI
	assert.Empty(t, none.options())
	assert.Equal(t, logRecorder{}, none.recorder(logRecorder{}))
}
