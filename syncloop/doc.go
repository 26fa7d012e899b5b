// Package syncloop is where the streams that can change a pod meet. One goroutine,
// the Loop, selects over them and hands each to a Handler; Pods is the Handler that
// admits pods and gives them to workers, and Housekeeper finds what nobody wants
// any more.
//
// What it promises:
//   - Never blocked: the loop waits for no pod, no runtime call and no admission
//     that asks others. Housekeeping and the runtime's health are looked after
//     beside it.
//   - Once: a pod is admitted or refused once. One that runs already is adopted.
//   - On time: pods are woken when they are due, from one timer for all.
//   - Patient: while the runtime is not ready nothing is handed on and nothing is
//     lost. It goes on as soon as the runtime is ready again.
//   - In doubt, left alone: what runs is ended only if the source that it came from
//     is known not to want it. What came from a source that is not there any more
//     is ended when all sources are known not to want it, and what names no source
//     never. Pods of others are kept out by the runtime: see runtime.OwnerSetter.
//
// Stopping the loop, or closing its configuration input, ends no pod.
package syncloop
