package kubeapi_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sublet-dev/agent/internal/kubelettest"
	"github.com/sublet-dev/agent/internal/kubetest"
)

const exchangesFile = "testdata/apiserver.jsonl"

// exchange is a line of exchangesFile.
type exchange struct {
	Do     string          `json:"do"`             // the method and the target of the request
	Type   string          `json:"type,omitempty"` // of the body; default: application/json
	Accept string          `json:"accept,omitempty"`
	Token  string          `json:"token,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"` // a string is sent as it is
	Save   string          `json:"save,omitempty"` // a name for what later requests call $rv(NAME) and $uid(NAME)
	Show   []string        `json:"show,omitempty"` // fields of the object in the answer
	Answer *answer         `json:"answer,omitempty"`
	Ours   *answer         `json:"ours,omitempty"` // if it is another one
	Why    string          `json:"why,omitempty"`  // it is
}

// answer is what clients rely on in an answer, and does not vary.
type answer struct {
	Code     int            `json:"code"`
	Type     string         `json:"type,omitempty"` // if it is not JSON
	Kind     string         `json:"kind,omitempty"` // if it is not Status
	Reason   string         `json:"reason,omitempty"`
	About    string         `json:"about,omitempty"`   // the kind and the name in the details of a Status
	Fields   []string       `json:"fields,omitempty"`  // that are wrong
	Columns  []string       `json:"columns,omitempty"` // of a table
	Names    []string       `json:"names,omitempty"`   // of the items of a list, or of the rows of a table
	More     bool           `json:"more,omitempty"`    // there is a continue token
	Events   []string       `json:"events,omitempty"`  // of a watch
	Shown    map[string]any `json:"shown,omitempty"`
	Warnings int            `json:"warnings,omitempty"`
}

// document is any object, Status, list, table or event of a watch.
type document struct {
	Kind              string                  `json:"kind"`
	Code              int                     `json:"code"`
	Reason            string                  `json:"reason"`
	Details           *metav1.StatusDetails   `json:"details"`
	Metadata          documentMeta            `json:"metadata"`
	Items             []document              `json:"items"`
	ColumnDefinitions []struct{ Name string } `json:"columnDefinitions"`
	Rows              []struct{ Cells []any } `json:"rows"`
	Type              string                  `json:"type"`
	Object            *document               `json:"object"`
}

type documentMeta struct {
	Name, Continue, ResourceVersion, UID string
	Annotations                          map[string]string
}

// player sends the requests of exchanges to a server.
type player struct {
	url    string
	client *http.Client
	token  string       // "": the client has a certificate
	others *http.Client // has none

	mu    sync.Mutex // guards saved
	saved map[string]documentMeta
}

// references are replaced in requests: what was saved, and long texts.
var references = regexp.MustCompile(`\$(rv|uid|long)\((\w+)\)`)

func (p *player) replace(text string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return references.ReplaceAllStringFunc(text, func(reference string) string {
		parts := references.FindStringSubmatch(reference)
		switch parts[1] {
		case "rv":
			return p.saved[parts[2]].ResourceVersion
		case "uid":
			return p.saved[parts[2]].UID
		}
		n, _ := strconv.Atoi(parts[2])
		return strings.Repeat("x", n)
	})
}

// play sends the request of an exchange and returns the answer.
func (p *player) play(t *testing.T, x *exchange) *answer {
	t.Helper()
	method, target, _ := strings.Cut(x.Do, " ")
	body := string(x.Body)
	if strings.HasPrefix(body, `"`) {
		require.NoError(t, json.Unmarshal(x.Body, &body))
	}
	r, err := http.NewRequestWithContext(t.Context(), method, p.url+p.replace(target), strings.NewReader(p.replace(body)))
	require.NoError(t, err)
	if body != "" {
		r.Header.Set("Content-Type", cmp.Or(x.Type, "application/json"))
	}
	if x.Accept != "" {
		r.Header.Set("Accept", x.Accept)
	}
	if token := cmp.Or(x.Token, p.token); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := p.client
	if x.Token != "" {
		client = p.others
	}
	response, err := client.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return p.read(t, x, response, raw)
}

// read returns what counts of an answer.
func (p *player) read(t *testing.T, x *exchange, response *http.Response, raw []byte) *answer {
	t.Helper()
	a := &answer{Code: response.StatusCode, Warnings: len(response.Header.Values("Warning"))}
	if mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); mediaType != "application/json" {
		a.Type = mediaType
		return a
	}
	for documents := json.NewDecoder(bytes.NewReader(raw)); ; {
		var d document
		err := documents.Decode(&d)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "%s", raw)
		if d.Object != nil {
			a.Events = append(a.Events, d.event())
			continue
		}
		d.addTo(a)
		if x.Save != "" {
			p.mu.Lock()
			p.saved[x.Save] = d.Metadata
			p.mu.Unlock()
		}
	}
	if len(x.Show) > 0 {
		var all any
		require.NoError(t, json.Unmarshal(raw, &all))
		a.Shown = map[string]any{}
		for _, field := range x.Show {
			a.Shown[field] = shown(all, field)
		}
	}
	return a
}

// event returns an event as a line.
func (d *document) event() string {
	text := d.Type + " " + d.Object.Kind
	switch {
	case d.Object.Kind == "Status":
		text += fmt.Sprint(" ", d.Object.Code, " ", d.Object.Reason)
	case len(d.Object.Rows) > 0:
		text += fmt.Sprint(" ", d.Object.Rows[0].Cells[0], " columns ", len(d.Object.ColumnDefinitions))
	case d.Object.Metadata.Name != "":
		text += " " + d.Object.Metadata.Name
	}
	if d.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] != "" {
		text += " initial events end"
	}
	return text
}

// addTo adds an object to an answer.
func (d *document) addTo(a *answer) {
	for _, c := range d.ColumnDefinitions {
		a.Columns = append(a.Columns, c.Name)
	}
	for _, row := range d.Rows {
		a.Names = append(a.Names, fmt.Sprint(row.Cells[0]))
	}
	for i := range d.Items {
		a.Names = append(a.Names, d.Items[i].Metadata.Name)
	}
	a.More = d.Metadata.Continue != ""
	if d.Kind != "Status" {
		a.Kind = d.Kind
		return
	}
	a.Reason = d.Reason
	if d.Details == nil {
		return
	}
	a.About = strings.Trim(d.Details.Kind+" "+d.Details.Name, " ")
	for _, c := range d.Details.Causes {
		if c.Field != "" {
			a.Fields = append(a.Fields, c.Field)
		}
	}
	slices.Sort(a.Fields)
	a.Fields = slices.Compact(a.Fields)
}

// shown returns the value of a field, which is a path of keys and indexes. After a question mark it is whether there is one.
func shown(of any, field string) any {
	field, isQuestion := strings.CutPrefix(field, "?")
	for part := range strings.SplitSeq(field, ".") {
		switch v := of.(type) {
		case map[string]any:
			of = v[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(v) {
				return nil
			}
			of = v[i]
		default:
			of = nil
		}
	}
	if isQuestion {
		return of != nil
	}
	return of
}

// isWatch reports whether the answer takes a while.
func (x *exchange) isWatch() bool { return strings.Contains(x.Do, "timeoutSeconds=") }

// startedEvent is in the namespace of the pods.
func startedEvent() *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "started"}, Reason: "Started", Type: corev1.EventTypeNormal,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "a", APIVersion: "v1"},
		Source:         corev1.EventSource{Component: "kubelet"}, FirstTimestamp: metav1.Time{Time: startTime()},
	}
}

// SV-8: requests get the answers of an API server of Kubernetes, but for the differences that the table gives a reason for.
func TestExchanges(t *testing.T) {
	e := newEnv(t, nil)
	e.events.Record(startedEvent())
	p := &player{url: e.url, client: e.http, others: e.http, token: "good", saved: map[string]documentMeta{}}
	kubelettest.RunCases(t, exchangesFile, func(t *testing.T, x exchange) {
		if x.isWatch() {
			t.Parallel()
		}
		want := cmp.Or(x.Ours, x.Answer)
		assert.Equal(t, x.Ours != nil, x.Why != "", "a difference has a reason")
		assert.JSONEq(t, jsonOf(t, want), jsonOf(t, p.play(t, &x)), x.Do)
	})
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	require.NoError(t, to.Encode(v))
	return text.String()
}

// The answers in the table are those of an API server. With SUBLET_WRITE_EXCHANGES they are written again, as for a new version, or after
// requests were added.
func TestExchanges_RealAPIServer(t *testing.T) {
	cluster := kubetest.Start(t)
	admin := cluster.Admin().CoreV1()
	_, err := admin.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.Events("shop").Create(t.Context(), startedEvent(), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.ConfigMaps("shop").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "conf"}, Data: map[string]string{"a": "b"}, BinaryData: map[string][]byte{"raw": {0xff}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := cluster.Config("admin", "system:masters")
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	others, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: cluster.CA()}})
	require.NoError(t, err)
	p := &player{url: config.Host, client: client, others: others, saved: map[string]documentMeta{}}
	var mu sync.Mutex
	answers, mustWrite := map[string]*answer{}, os.Getenv("SUBLET_WRITE_EXCHANGES") != ""
	t.Run("play", func(t *testing.T) {
		kubelettest.RunCases(t, exchangesFile, func(t *testing.T, x exchange) {
			if x.isWatch() {
				t.Parallel()
			}
			got := p.play(t, &x)
			mu.Lock()
			defer mu.Unlock()
			answers[path.Base(t.Name())] = got
			if !mustWrite {
				assert.JSONEq(t, jsonOf(t, x.Answer), jsonOf(t, got), x.Do)
			}
		})
	})
	if mustWrite {
		writeAnswers(t, answers)
	}
}

// writeAnswers writes the table again, with the answers of the tests of its lines.
func writeAnswers(t *testing.T, answers map[string]*answer) {
	t.Helper()
	text, err := os.ReadFile(exchangesFile)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, line := range lines {
		got := answers[fmt.Sprint("line_", i+1)]
		if got == nil {
			continue // a comment
		}
		var x exchange
		require.NoError(t, json.Unmarshal([]byte(line), &x))
		x.Answer = got
		lines[i] = strings.TrimSuffix(jsonOf(t, &x), "\n")
	}
	require.NoError(t, os.WriteFile(exchangesFile, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}
