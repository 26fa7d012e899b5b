package ui_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/sublet-dev/agent/server/ui"
	"github.com/sublet-dev/agent/timeline"
)

// A Page is the UI of a server.Config, or a handler of a server of the program's own.
func Example() {
	page, err := ui.New(ui.Config{NodeName: "node-1", History: timeline.New(timeline.Config{})})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/node/", http.StripPrefix("/node", page))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/node/", http.NoBody))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}
