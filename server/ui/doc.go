// Package ui is a page that shows people a node: its pods and their states, for each pod a
// waterfall of what happened to it, usage and pressure of the node over the last hour, and
// why pods were evicted and images removed. It shows what a timeline.History has.
//
//	page, err := ui.New(ui.Config{NodeName: "node-1", History: history})
//	…
//	srv, err := server.New(server.Config{UI: page, ...})
//
// Guarantees:
//
//   - The page is one file in the program. It loads nothing from anywhere else, and its
//     Content-Security-Policy makes browsers enforce that.
//   - Names, reasons and messages are text: nothing that a pod brings becomes HTML. The
//     policy forbids that too.
//   - It changes nothing: all requests are GET, and none has an effect.
//   - Each browser costs one connection and no queue. One that is slow gets fewer
//     messages; one that accepts nothing for half a minute is disconnected.
//
// Who may see it is up to the server. It shows no environment variables, commands,
// credentials or logs.
package ui
