package runtimetest

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// The elements of a JUnit report, as servers of continuous integration read them.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Cases     []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		ClassName string        `xml:"classname,attr"`
		Time      string        `xml:"time,attr"`
		Failure   *junitMessage `xml:"failure,omitempty"`
		Skipped   *junitMessage `xml:"skipped,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the report as JUnit XML, with a suite for each area. A deviation counts
// as skipped.
func (r Report) WriteJUnit(w io.Writer) error {
	all := junitSuites{
		Name: strings.TrimSpace(r.Runtime + " " + r.Version), Tests: len(r.Cases), Failures: r.Count(Failed),
		Skipped: r.Count(Skipped) + r.Count(Deviation), Time: seconds(r.Seconds),
	}
	for _, name := range r.Areas() {
		of := Report{Cases: r.inArea(name)}
		s := junitSuite{
			Name: name, Tests: len(of.Cases), Failures: of.Count(Failed), Skipped: of.Count(Skipped) + of.Count(Deviation),
			Timestamp: r.StartTime.UTC().Format(time.RFC3339),
		}
		var sum float64
		for _, c := range of.Cases {
			sum += c.Seconds
			s.Cases = append(s.Cases, c.junit())
		}
		s.Time = seconds(sum)
		all.Suites = append(all.Suites, s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func (c CaseResult) junit() junitCase {
	out := junitCase{Name: c.Name, ClassName: "cri." + strings.ReplaceAll(c.Area, " ", "_"), Time: seconds(c.Seconds)}
	text := strings.Join(c.Failures, "\n")
	switch c.Result {
	case Failed:
		out.Failure = &junitMessage{
			Message: "Consequence for a kubelet: " + c.Consequence, Type: "failure", Text: text,
		}
	case Deviation:
		out.Skipped = &junitMessage{Message: "known failure: " + c.Reason, Text: text}
	case Skipped:
		out.Skipped = &junitMessage{Message: c.Reason}
	case Passed:
	}
	return out
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }
