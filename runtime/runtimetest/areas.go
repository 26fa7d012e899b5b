package runtimetest

import "slices"

// area is a group of cases, by what of a runtime they are about.
type area struct {
	name  string
	cases []testCase
}

// areas returns all cases in groups. A case that is new goes into one of them.
func areas() []area {
	return []area{
		{"pods", slices.Concat(sandboxCases(), podFieldCases())},
		{"network", slices.Concat(networkCases(), hostPortCases())},
		{"containers", slices.Concat(createCases(), startCases(), endCases(), imageCommandCases())},
		{"isolation", slices.Concat(isolationCases(), confinementCases(), limitCases(), volumeCases(), nodeFeatureCases(), cdiCases())},
		{"stopping", stopCases()},
		{"lists", slices.Concat(listCases(), streamFilterCases())},
		{"commands", slices.Concat(execCases(), streamCases(), sessionCases())},
		{"logs", logCases()},
		{"events", eventCases()},
		{"images", slices.Concat(imageCases(), privateImageCases())},
		{"measurements and resources", slices.Concat(statsCases(), podStatsCases(), updateCases())},
		{"invalid calls", slices.Concat(refusalCases(), checkpointCases())},
		{"abandoned and concurrent calls", slices.Concat(cutCases(), raceCases())},
		{"restarts", restartCases()},
	}
}

// cases returns all cases.
func cases() []testCase {
	var all []testCase
	for _, a := range areas() {
		all = append(all, a.cases...)
	}
	return all
}

// areaNames returns the area of each case, by the case's name.
func areaNames() map[string]string {
	names := map[string]string{}
	for _, a := range areas() {
		for _, tc := range a.cases {
			names[tc.name] = a.name
		}
	}
	return names
}
