package runtimetest

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sampleReport has a case of each result, in two areas.
func sampleReport() Report {
	return Report{
		Runtime: "made-up", Version: "v1.2.3", StartTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 61.25,
		Cases: []CaseResult{
			{Area: "pods", Name: "a pod has an address", Result: Passed, Seconds: 0.5, Consequence: "it would be unreachable"},
			{
				Area: "pods", Name: "a pod ends", Result: Failed, Seconds: 1.25, Failures: []string{"state is <ready>\x1b[31m", "second", "third", "fourth", "fifth"},
				Consequence: "pods would stay",
			},
			{Area: "lists", Name: "a list is whole", Result: Deviation, Failures: []string{"one is missing"}, Consequence: "a pod would start twice", Reason: "it has a limit"},
			{Area: "lists", Name: "a list is large", Result: Skipped, Consequence: "none would start", Reason: "needs memory"},
		},
	}
}

func TestReport_WriteText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sampleReport().WriteText(&b))
	assert.Equal(t, `made-up v1.2.3: 4 cases in 1m1.3s

                                  passed  failed deviations  skipped
pods                                   1       1          0        0
lists                                  0       0          1        1
all                                    1       1          1        1

Skipped

  1: needs memory

Deviations, which are known

  lists: a list is whole
    Reason: it has a limit
    one is missing
    Consequence for a kubelet: a pod would start twice

Failures

  pods: a pod ends
    state is <ready>�[31m
    second
    third
    and 2 more
    Consequence for a kubelet: pods would stay
`, b.String(), "a runtime does not control the terminal")
}

func TestReport_WriteJSONFollowsTheSchema(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sampleReport().WriteJSON(&b))
	assert.Contains(t, b.String(), "\n  \"runtime\": \"made-up\"", "people read it, too")
	assert.Contains(t, b.String(), "state is <ready>")
	var document any
	require.NoError(t, json.Unmarshal(b.Bytes(), &document))
	schema := readSchema(t)
	assert.Empty(t, schema.violations("report", document))
	read, err := ReadReport(&b)
	require.NoError(t, err)
	assert.Equal(t, sampleReport(), read)

	for text, want := range map[string]string{"": "EOF", "{}": "no cases", `{"cases": [], "other": 1}`: "unknown field"} {
		r, err := ReadReport(strings.NewReader(text))
		assert.ErrorContains(t, err, want)
		assert.Equal(t, Report{}, r)
	}
	for field, value := range map[string]any{"runtime": 1, "cases": []any{map[string]any{"name": "a"}}, "seconds": "1", "more": true} {
		document.(map[string]any)[field] = value
		assert.NotEmpty(t, schema.violations("report", document), "the schema accepts anything as %s", field)
	}
}

func TestReport_WriteJUnitIsWhatServersRead(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sampleReport().WriteJUnit(&b))
	var read junitSuites
	d := xml.NewDecoder(&b)
	d.Strict = true
	require.NoError(t, d.Decode(&read), "control characters of a runtime make no invalid XML")
	_, err := d.Token()
	assert.ErrorIs(t, func() error {
		for err == nil {
			_, err = d.Token()
		}
		return err
	}(), io.EOF)

	assert.Equal(t, []any{"made-up v1.2.3", 4, 1, 2, "61.250"}, []any{read.Name, read.Tests, read.Failures, read.Skipped, read.Time})
	require.Len(t, read.Suites, 2)
	pods, lists := read.Suites[0], read.Suites[1]
	assert.Equal(t, []any{"pods", 2, 1, 0, 0, "1.750", "2026-01-02T03:04:05Z"}, []any{pods.Name, pods.Tests, pods.Failures, pods.Errors, pods.Skipped, pods.Time, pods.Timestamp})
	assert.Equal(t, []any{"lists", 2, 0, 2}, []any{lists.Name, lists.Tests, lists.Failures, lists.Skipped})
	assert.Equal(t, junitCase{Name: "a pod has an address", ClassName: "cri.pods", Time: "0.500"}, pods.Cases[0])
	require.NotNil(t, pods.Cases[1].Failure)
	assert.Equal(t, "Consequence for a kubelet: pods would stay", pods.Cases[1].Failure.Message)
	assert.Equal(t, "state is <ready>\uFFFD[31m\nsecond\nthird\nfourth\nfifth", pods.Cases[1].Failure.Text)
	require.NotNil(t, lists.Cases[0].Skipped)
	assert.Equal(t, junitMessage{Message: "known failure: it has a limit", Text: "one is missing"}, *lists.Cases[0].Skipped)
	assert.Equal(t, junitMessage{Message: "needs memory"}, *lists.Cases[1].Skipped)
}

// fullDisk fails after a number of bytes.
type fullDisk int

func (w *fullDisk) Write(p []byte) (int, error) {
	if int(*w) < len(p) {
		return 0, io.ErrShortWrite
	}
	*w -= fullDisk(len(p))
	return len(p), nil
}

func TestReport_WritesReportErrors(t *testing.T) {
	var complete bytes.Buffer
	require.NoError(t, sampleReport().WriteJUnit(&complete))
	assert.Contains(t, complete.String(), "\n  <testsuite name", "people read it, too")
	for name, write := range map[string]func(io.Writer) error{
		"text": sampleReport().WriteText, "JSON": sampleReport().WriteJSON, "JUnit": sampleReport().WriteJUnit,
	} {
		rooms := []fullDisk{0, 50}
		if name == "JUnit" {
			rooms = append(rooms, fullDisk(complete.Len()-1))
		}
		for _, room := range rooms {
			assert.ErrorIs(t, write(&room), io.ErrShortWrite, name)
		}
	}
}

func TestReport_WriteTextNamesOnlyWhatThereIs(t *testing.T) {
	r := sampleReport()
	r.Cases = r.Cases[:1]
	r.Cases[0].Name = "a\ttab"
	var b bytes.Buffer
	require.NoError(t, r.WriteText(&b))
	for _, heading := range []string{"Skipped", "Deviations", "Failures"} {
		assert.NotContains(t, b.String(), heading)
	}
	assert.Equal(t, "a\ttab\n�", printable("a\ttab\n\x00"))
}

func TestAreas_HaveEachCase(t *testing.T) {
	assert.Len(t, areaNames(), len(Cases()))
	sum := 0
	for _, a := range areas() {
		assert.NotEmpty(t, a.cases, a.name)
		sum += len(a.cases)
	}
	assert.Equal(t, len(Cases()), sum)
}

// schema is what the test needs of a JSON schema.
type schema struct {
	Type       string            `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	Enum       []string          `json:"enum"`
	Additional *bool             `json:"additionalProperties"`
}

func readSchema(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile("../../docs/harness-report.schema.json")
	require.NoError(t, err)
	var s schema
	require.NoError(t, json.Unmarshal(text, &s))
	return s
}

// violations names what of a document the schema forbids.
func (s schema) violations(path string, document any) (found []string) {
	switch value := document.(type) {
	case map[string]any:
		if s.Type != "object" {
			return []string{path + ": object"}
		}
		for _, name := range s.Required {
			if _, ok := value[name]; !ok {
				found = append(found, path+": no "+name)
			}
		}
		for name, child := range value {
			of, ok := s.Properties[name]
			if !ok && s.Additional != nil && !*s.Additional {
				found = append(found, path+": additional "+name)
				continue
			}
			found = append(found, of.violations(path+"."+name, child)...)
		}
	case []any:
		if s.Type != "array" {
			return []string{path + ": array"}
		}
		for _, item := range value {
			found = append(found, s.Items.violations(path+"[]", item)...)
		}
	case string:
		if s.Type != "string" || len(s.Enum) > 0 && !strings.Contains(" "+strings.Join(s.Enum, " ")+" ", " "+value+" ") {
			found = append(found, path+": "+value)
		}
	case float64:
		if s.Type != "number" {
			found = append(found, path+": number")
		}
	default:
		found = append(found, path+": unexpected type")
	}
	return found
}
