package embedded

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The list item of a sandbox or container changes rarely and is listed often, so it is
// also kept in its encoded form: building a list of thousands is copying bytes.
type (
	// podItem is the list item of a sandbox. It is replaced, never changed, so that
	// responses can refer to it.
	podItem struct {
		*v1.PodSandbox
		wire []byte
	}
	// containerItem is the list item of a container.
	containerItem struct {
		*v1.Container
		wire []byte
	}
)

func newPodItem(it *v1.PodSandbox) *podItem { return &podItem{it, encode(it)} }

func newContainerItem(it *v1.Container) *containerItem { return &containerItem{it, encode(it)} }

// encode returns m as an element of field 1, which has the elements in all lists of the
// CRI.
func encode(m proto.Message) []byte {
	n := proto.Size(m)
	b := make([]byte, 0, protowire.SizeTag(1)+protowire.SizeBytes(n))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil { // a string that is not UTF-8: gRPC would reject the list with it
		return nil
	}
	return b
}

// onWire reports whether the response is sent by gRPC. A direct caller needs the decoded
// messages.
func onWire(ctx context.Context) bool { return grpc.ServerTransportStreamFromContext(ctx) != nil }

// encodedLists are the unfiltered lists as they were last sent, nil if something has
// changed since. Runtime.mu guards them; the bytes are never written to.
type encodedLists struct {
	pods, containers []byte
	changes          uint64
}

// changed invalidates the cached lists. The caller holds mu.
func (r *Runtime) changed() {
	r.listCache = encodedLists{changes: r.listCache.changes + 1}
}

// encoded returns the elements of a list: the cached ones if all are requested and
// they are current, else those of list, which are then cached.
func (r *Runtime) encoded(cached *[]byte, all bool, list func() []byte) []byte {
	if !all {
		return list()
	}
	r.mu.Lock()
	b, version := *cached, r.listCache.changes
	r.mu.Unlock()
	if b != nil {
		return b
	}
	b = list()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listCache.changes == version {
		*cached = b
	}
	return b
}

// join concatenates encoded elements. It is never nil.
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

// answer returns m with encoded elements.
func answer[M proto.Message](m M, elements []byte) M {
	m.ProtoReflect().SetUnknown(elements) // unknown fields are sent unchanged
	return m
}

// fill returns m with the encoded items.
func fill[M proto.Message, I any](m M, items []I, wire func(I) []byte) M {
	return answer(m, join(items, wire))
}

func (p *podItem) bytes() []byte       { return p.wire }
func (c *containerItem) bytes() []byte { return c.wire }

// messages returns the messages of items.
func messages[I, M any](items []I, message func(I) M) []M {
	out := make([]M, len(items))
	for i, it := range items {
		out[i] = message(it)
	}
	return out
}

func (p *podItem) message() *v1.PodSandbox      { return p.PodSandbox }
func (c *containerItem) message() *v1.Container { return c.Container }
