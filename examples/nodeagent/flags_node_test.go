package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestPodLimit(t *testing.T) {
	four := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	assert.Equal(t, 110, podLimit(110, 0, four))
	assert.Equal(t, 40, podLimit(110, 10, four))
	assert.Equal(t, 20, podLimit(20, 10, four))
}
