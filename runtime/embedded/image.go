package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime/embedded/internal/reference"
)

// defaultSize is the size of an image without a record.
const defaultSize = 1 << 20

// Image is the record of an image, which has no files.
type Image struct {
	// Ref is the reference by which it is pulled. Required; Aliases are further names of
	// the same image.
	Ref     string
	Aliases []string
	// ID is the image id. Default: derived from Ref.
	ID string
	// Size is in bytes. Default: 1 MiB.
	Size uint64
	// User is the user of its containers: a number, a name, or user:group.
	User       string
	Entrypoint []string
	Cmd        []string
	Env        []string // NAME=value
	WorkingDir string
	StopSignal string // SIGTERM, SIGINT, …
	// Pinned images are reported as not to be garbage collected.
	Pinned bool
	// Preloaded images are on the node from the start.
	Preloaded bool
	// PullTime is the duration of a pull.
	PullTime time.Duration
	// PullError makes pulls fail with this text and PullCode: the first PullFailures of
	// them, or all if that is 0. Default of PullCode: Unknown.
	PullError    string
	PullCode     codes.Code
	PullFailures int

	refs []reference.Reference
}

// fill validates the record and returns it with defaults.
func (i Image) fill() (*Image, error) {
	for _, name := range append([]string{i.Ref}, i.Aliases...) {
		ref, err := reference.Parse(name)
		if err != nil {
			return nil, err
		}
		i.refs = append(i.refs, ref)
	}
	i.Ref = i.refs[0].String()
	if i.ID == "" {
		i.ID = hash("image " + i.refs[0].String())
	}
	if i.Size == 0 {
		i.Size = defaultSize
	}
	if i.PullError != "" && i.PullCode == codes.OK {
		i.PullCode = codes.Unknown
	}
	return &i, nil
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// digest returns the reference by digest for ref.
func (i *Image) digest(ref reference.Reference) string {
	if ref.Digest != "" {
		return ref.Repo + "@" + ref.Digest
	}
	return ref.Repo + "@" + hash("manifest "+i.ID)
}

// ref returns the reference by digest of the image.
func (i *Image) ref() string { return i.digest(i.refs[0]) }

// IsNamed reports whether ref is a name of the image: its Ref or one of its Aliases, in
// any form in which it can be pulled.
func (i *Image) IsNamed(ref string) bool {
	r, err := reference.Parse(ref)
	return err == nil && slices.Contains(i.refs, r)
}

// uid returns the numeric user of the image, 0 if it has a name or none.
func (i *Image) uid() int64 {
	u, _, _ := strings.Cut(i.User, ":")
	n, _ := strconv.ParseInt(u, 10, 64)
	return n
}

// imageStore has the records, and which images are on the node.
type imageStore struct {
	records map[string]*Image // by complete reference; read-only
	unknown Image             // record of images without one
	same    func(string) string

	mu       sync.Mutex         // guards the rest
	present  map[string]*stored // by ID
	names    map[string]string  // complete reference, by tag or digest, to ID
	attempts map[string]int     // pulls so far by image ID, for PullFailures
}

// stored is an image on the node, with the names by which it was pulled.
type stored struct {
	image *Image
	refs  []reference.Reference
	item  *v1.Image // replaced, never changed
}

func newImageStore(images []Image, unknown *Image, same func(string) string) (*imageStore, error) {
	st := &imageStore{
		same:    same,
		records: map[string]*Image{}, present: map[string]*stored{}, names: map[string]string{}, attempts: map[string]int{},
	}
	var errs []error
	if unknown != nil {
		st.unknown = *unknown
		st.unknown.Aliases, st.unknown.ID = nil, ""
	}
	for n, rec := range images {
		image, err := rec.fill()
		if err != nil {
			errs = append(errs, fmt.Errorf("image record %d: %w", n, err))
			continue
		}
		for _, ref := range image.refs {
			if _, duplicate := st.records[ref.String()]; duplicate {
				errs = append(errs, fmt.Errorf("image record %d: duplicate record of %s", n, ref))
			}
			st.records[ref.String()] = image
			if image.Preloaded {
				st.add(image, ref)
			}
		}
	}
	return st, errors.Join(errs...)
}

// record returns the record of ref, a default one if there is none.
func (st *imageStore) record(ref reference.Reference) (*Image, error) {
	if rec, ok := st.records[ref.String()]; ok {
		return rec, nil
	}
	image := st.unknown
	image.Ref = ref.String()
	if st.same != nil {
		image.ID = hash("image " + st.same(image.Ref))
	}
	return image.fill()
}

// add adds an image to the node under one name. The caller holds mu, or is New.
func (st *imageStore) add(image *Image, ref reference.Reference) {
	s, ok := st.present[image.ID]
	if !ok {
		s = &stored{image: image}
		st.present[image.ID] = s
	}
	if !slices.Contains(s.refs, ref) {
		s.refs = append(s.refs, ref)
	}
	s.item = &v1.Image{Id: image.ID, Size: image.Size, Pinned: image.Pinned, Spec: &v1.ImageSpec{Image: image.ID}}
	for _, r := range s.refs {
		byDigest := image.digest(r)
		st.names[byDigest] = image.ID
		if r.Tag != "" {
			tag := r.Repo + ":" + r.Tag
			st.names[tag], st.names[r.String()] = image.ID, image.ID
			s.item.RepoTags = append(s.item.RepoTags, tag)
		}
		if !slices.Contains(s.item.RepoDigests, byDigest) {
			s.item.RepoDigests = append(s.item.RepoDigests, byDigest)
		}
	}
	if user, _, _ := strings.Cut(image.User, ":"); user != "" {
		if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
			s.item.Uid = &v1.Int64Value{Value: uid}
		} else {
			s.item.Username = user
		}
	}
}

// get returns an image on the node by ID, by digits of the ID, or by any name. The
// caller holds mu.
func (st *imageStore) get(name string) *stored {
	if s, ok := st.present[name]; ok {
		return s
	}
	if ref, err := reference.Parse(name); err == nil {
		if s, ok := st.present[st.names[ref.String()]]; ok {
			return s
		}
	}
	digits := strings.TrimPrefix(name, "sha256:")
	if len(digits) < 6 {
		return nil
	}
	if s, ok := lookup(st.present, "sha256:"+digits); ok {
		return s
	}
	return nil
}

// find returns the record of an image that is on the node.
func (st *imageStore) find(name string) (*Image, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if s := st.get(name); s != nil {
		return s.image, true
	}
	return nil, false
}

// statusMounts returns mounts for a status: those of images with the image's ID.
func (st *imageStore) statusMounts(mounts []*v1.Mount) []*v1.Mount {
	var out []*v1.Mount // nil while they are the same
	for i, m := range mounts {
		image, ok := st.find(m.GetImage().GetImage())
		if !ok {
			continue
		}
		if out == nil {
			out = slices.Clone(mounts)
		}
		if copied, ok := proto.Clone(m).(*v1.Mount); ok {
			copied.Image.ImageRef = image.ID
			out[i] = copied
		}
	}
	if out == nil {
		return mounts
	}
	return out
}

// pull adds an image to the node after the delay and failures of its record.
func (st *imageStore) pull(ctx context.Context, name string) (string, error) {
	ref, err := reference.Parse(name)
	if err != nil {
		return "", status.Error(codes.InvalidArgument, err.Error())
	}
	image, err := st.record(ref)
	if err != nil {
		return "", status.Error(codes.InvalidArgument, err.Error())
	}
	if image.PullTime > 0 {
		if err := sleep.For(ctx, image.PullTime); err != nil {
			return "", err
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if image.PullError != "" {
		st.attempts[image.ID]++
		if image.PullFailures == 0 || st.attempts[image.ID] <= image.PullFailures {
			return "", status.Error(image.PullCode, image.PullError)
		}
	}
	st.add(image, ref)
	return image.ID, nil
}

// remove removes the image with all its names from the node.
func (st *imageStore) remove(name string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.get(name)
	if s == nil {
		return
	}
	delete(st.present, s.image.ID)
	for n, id := range st.names {
		if id == s.image.ID {
			delete(st.names, n)
		}
	}
}

// list returns the images on the node that match filter, ordered by ID.
func (st *imageStore) list(filter *v1.ImageFilter) []*v1.Image {
	st.mu.Lock()
	defer st.mu.Unlock()
	if name := filter.GetImage().GetImage(); name != "" {
		if s := st.get(name); s != nil {
			return []*v1.Image{s.item}
		}
		return nil
	}
	items := make([]*v1.Image, 0, len(st.present))
	for _, s := range st.present {
		items = append(items, s.item)
	}
	slices.SortFunc(items, func(a, b *v1.Image) int { return strings.Compare(a.GetId(), b.GetId()) })
	return items
}

// PullImage implements the CRI.
func (r *Runtime) PullImage(ctx context.Context, req *v1.PullImageRequest) (*v1.PullImageResponse, error) {
	if p, ok := capability.Of[PullPreparer](r.cfg.Executor); ok {
		if err := p.Pull(ctx, req.GetImage().GetImage(), req.GetSandboxConfig()); err != nil {
			return nil, statusError("pull image "+req.GetImage().GetImage(), err)
		}
	}
	id, err := r.images.pull(ctx, req.GetImage().GetImage())
	if err != nil {
		return nil, statusError("pull image "+req.GetImage().GetImage(), err)
	}
	return &v1.PullImageResponse{ImageRef: id}, nil
}

// ListImages implements the CRI.
func (r *Runtime) ListImages(_ context.Context, req *v1.ListImagesRequest) (*v1.ListImagesResponse, error) {
	return &v1.ListImagesResponse{Images: r.images.list(req.GetFilter())}, nil
}

// StreamImages implements the CRI.
func (r *Runtime) StreamImages(req *v1.StreamImagesRequest, to grpc.ServerStreamingServer[v1.StreamImagesResponse]) error {
	return inBatches(r.images.list(req.GetFilter()), func(part []*v1.Image) error {
		return to.Send(&v1.StreamImagesResponse{Images: part})
	})
}

// ImageStatus implements the CRI: an unknown image is not an error.
func (r *Runtime) ImageStatus(_ context.Context, req *v1.ImageStatusRequest) (*v1.ImageStatusResponse, error) {
	name := req.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "image status: image is empty")
	}
	found := r.images.list(&v1.ImageFilter{Image: req.GetImage()})
	if len(found) == 0 {
		return &v1.ImageStatusResponse{}, nil
	}
	resp := &v1.ImageStatusResponse{Image: found[0]}
	if rec, ok := r.images.find(name); ok && req.GetVerbose() {
		resp.Info = info(map[string]any{"imageSpec": map[string]any{"config": map[string]any{
			"Entrypoint": rec.Entrypoint, "Cmd": rec.Cmd, "User": rec.User, "WorkingDir": rec.WorkingDir, "StopSignal": rec.StopSignal,
		}}})
	}
	return resp, nil
}

// RemoveImage implements the CRI. Removing an unknown image is not an error; one in use
// may be removed, since containers keep their record.
func (r *Runtime) RemoveImage(_ context.Context, req *v1.RemoveImageRequest) (*v1.RemoveImageResponse, error) {
	if req.GetImage().GetImage() == "" {
		return nil, status.Error(codes.InvalidArgument, "remove image: image is empty")
	}
	r.images.remove(req.GetImage().GetImage())
	return &v1.RemoveImageResponse{}, nil
}

// ImageFsInfo implements the CRI: the sum of the records' sizes.
func (r *Runtime) ImageFsInfo(context.Context, *v1.ImageFsInfoRequest) (*v1.ImageFsInfoResponse, error) {
	var used, inodes uint64
	for _, i := range r.images.list(nil) {
		used += i.GetSize()
		inodes++
	}
	fs := func(used, inodes uint64) []*v1.FilesystemUsage {
		return []*v1.FilesystemUsage{{
			Timestamp: time.Now().UnixNano(), FsId: &v1.FilesystemIdentifier{Mountpoint: r.cfg.ImageDir},
			UsedBytes: &v1.UInt64Value{Value: used}, InodesUsed: &v1.UInt64Value{Value: inodes},
		}}
	}
	return &v1.ImageFsInfoResponse{ImageFilesystems: fs(used, inodes), ContainerFilesystems: fs(used, inodes)}, nil
}
