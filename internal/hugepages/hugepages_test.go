package hugepages_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/hugepages"
)

func TestSizes(t *testing.T) {
	root := fstest.MapFS{}
	for _, name := range []string{"hugepages-64kB", "hugepages-2048kB", "hugepages-1048576kB", "hugepages-0kB", "hugepages-xkB", "hugepages-9999999999999kB", "README"} {
		root["sys/kernel/mm/hugepages/"+name+"/nr_hugepages"] = &fstest.MapFile{}
	}
	sizes := hugepages.Sizes(root)
	assert.ElementsMatch(t, []int64{64 << 10, 2 << 20, 1 << 30}, sizes)
	for _, size := range sizes {
		assert.Contains(t, root, hugepages.Dir(size)+"/nr_hugepages")
	}
	assert.Empty(t, hugepages.Sizes(fstest.MapFS{}))
}

func TestName(t *testing.T) {
	for size, want := range map[int64]string{
		512: "512B", 1023: "1023B", 1024: "1KB", 1025: "1025B", 2048: "2KB", 1536: "1536B", 2 << 20: "2MB", 1 << 30: "1GB", 1 << 40: "1TB", 1 << 50: "1024TB", 0: "0B",
		64 << 10: "64KB", 512 << 20: "512MB", 16 << 30: "16GB",
	} {
		assert.Equal(t, want, hugepages.Name(size))
	}
}

func TestResourceName(t *testing.T) {
	for size, want := range map[int64]string{64 << 10: "hugepages-64Ki", 2 << 20: "hugepages-2Mi", 512 << 20: "hugepages-512Mi", 1 << 30: "hugepages-1Gi"} {
		assert.EqualValues(t, want, hugepages.ResourceName(size))
	}
}
