package podworkers_test

import (
	"testing"

	"github.com/sublet-dev/agent/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
