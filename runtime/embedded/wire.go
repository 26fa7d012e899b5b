package embedded

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What lists show of a sandbox or container changes seldom and is listed often,
// so it is kept as the bytes that a list carries as well: putting a list of
// thousands together is then copying.
type (
	// podItem is what lists show of a sandbox. It is replaced, never changed, so
	// that answers can hold on to it.
	podItem struct {
		*v1.PodSandbox
		wire []byte
	}
	// containerItem is what lists show of a container.
	containerItem struct {
		*v1.Container
		wire []byte
	}
)

func newPodItem(it *v1.PodSandbox) *podItem { return &podItem{it, encode(it)} }

func newContainerItem(it *v1.Container) *containerItem { return &containerItem{it, encode(it)} }

// encode is m as an element of the field numbered 1, which all lists of the CRI
// have their elements in.
func encode(m proto.Message) []byte {
	n := proto.Size(m)
	b := make([]byte, 0, protowire.SizeTag(1)+protowire.SizeBytes(n))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil { // a string that is not UTF-8: lists leave the item out as gRPC would refuse them
		return nil
	}
	return b
}

// onWire reports whether the answer to a call goes over a wire. A caller in the
// process needs the messages themselves.
func onWire(ctx context.Context) bool { return grpc.ServerTransportStreamFromContext(ctx) != nil }

// wholeLists are the lists of everything as they were last sent, nil where
// something has changed since: whoever lists over and over while little happens
// gets the same bytes. Runtime.mu guards them; the bytes are never written to.
type wholeLists struct {
	pods, containers []byte
	changes          uint64
}

// changed notes that lists are not what they were. The caller holds mu.
func (r *Runtime) changed() {
	r.listCache = wholeLists{changes: r.listCache.changes + 1}
}

// encoded returns the elements of a list: those kept for the whole list, if it is
// what is asked for and they are of now, or what list makes, which is kept then.
func (r *Runtime) encoded(kept *[]byte, all bool, list func() []byte) []byte {
	if !all {
		return list()
	}
	r.mu.Lock()
	b, before := *kept, r.listCache.changes
	r.mu.Unlock()
	if b != nil {
		return b
	}
	b = list()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listCache.changes == before {
		*kept = b
	}
	return b
}

// join puts encoded elements one after the other. It is never nil.
func join[I any](items []I, wire func(I) []byte) []byte {
	size := 0
	for _, it := range items {
		size += len(wire(it))
	}
	b := make([]byte, 0, size)
	for _, it := range items {
		b = append(b, wire(it)...)
	}
	return b
}

// answer is an answer with encoded elements.
func answer[M proto.Message](m M, elements []byte) M {
	m.ProtoReflect().SetUnknown(elements) // fields that a message does not know are sent as they are
	return m
}

// fill makes an answer out of encoded elements.
func fill[M proto.Message, I any](m M, items []I, wire func(I) []byte) M {
	return answer(m, join(items, wire))
}

func (p *podItem) bytes() []byte       { return p.wire }
func (c *containerItem) bytes() []byte { return c.wire }

// messages are the messages of items.
func messages[I, M any](items []I, message func(I) M) []M {
	out := make([]M, len(items))
	for i, it := range items {
		out[i] = message(it)
	}
	return out
}

func (p *podItem) message() *v1.PodSandbox      { return p.PodSandbox }
func (c *containerItem) message() *v1.Container { return c.Container }
