package eviction_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/needtest"
	"github.com/sublet-dev/agent/runtime"
)

type usage struct{}

func (usage) Usage(context.Context, time.Time) (runtime.NodeUsage, error) {
	return runtime.NodeUsage{}, nil
}

func TestConfig_Needs(t *testing.T) {
	assert.Equal(t, []string{
		"figures of the image file system (runtime.ImageFSReporter)", "figures of containers (runtime.ContainerStatsReporter)",
	}, needtest.Names(eviction.Config{}.Needs()))
	assert.Empty(t, needtest.Names(eviction.Config{Usage: usage{}}.Needs()), "of a provider of its own")
}

func TestConfig_Reservation(t *testing.T) {
	capacity := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	kept := eviction.Config{}.Reservation(capacity)
	assert.Equal(t, "100Mi", kept.Memory().String(), "the default threshold")
	assert.Empty(t, eviction.Config{Thresholds: []eviction.Threshold{}}.Reservation(capacity))
}
