package prom_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/prom"
)

func TestRegisterProblems_CountsByKindAndSource(t *testing.T) {
	var sourceErrors []podsource.SourceError
	var inspectionErrors []pleg.InspectionError
	rejected := 0
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterProblems(reg, prom.Problems{
		SourceErrors:     func() []podsource.SourceError { return sourceErrors },
		InspectionErrors: func() []pleg.InspectionError { return inspectionErrors },
		RejectedPods:     func() int { return rejected },
	}))
	assert.Equal(t, []string{
		`sublet_problems{kind="inspection",source=""} 0`,
		`sublet_problems{kind="rejected",source=""} 0`,
	}, series(t, reg, "sublet_problems"))

	sourceErrors = []podsource.SourceError{{Source: "file"}, {Source: "http"}, {Source: "file"}}
	inspectionErrors = make([]pleg.InspectionError, 3)
	rejected = 4
	assert.Equal(t, []string{
		`sublet_problems{kind="inspection",source=""} 3`,
		`sublet_problems{kind="rejected",source=""} 4`,
		`sublet_problems{kind="source",source="file"} 2`,
		`sublet_problems{kind="source",source="http"} 1`,
	}, series(t, reg, "sublet_problems"))

	sourceErrors = sourceErrors[1:2]
	assert.NotContains(t, scrape(t, reg), `source="file"`, "a resolved error leaves no series")
}

func TestRegisterProblems_Arguments(t *testing.T) {
	require.Error(t, prom.RegisterProblems(nil, prom.Problems{}))
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterProblems(reg, prom.Problems{}))
	assert.Empty(t, series(t, reg, "sublet_problems"), "no query, no series")
	require.Error(t, prom.RegisterProblems(reg, prom.Problems{}), "registered twice")
}
