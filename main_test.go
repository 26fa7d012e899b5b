package agent_test

import (
	"testing"

	"github.com/sublet-dev/agent/internal/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }
