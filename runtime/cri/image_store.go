package cri

import (
	"context"
	"errors"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// Images lists the images on the node.
func (c *Client) Images(ctx context.Context) ([]runtime.Image, error) {
	images, err := c.listImages(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Image, 0, len(images))
	for _, im := range images {
		out = append(out, runtime.Image{
			ID: im.GetId(), Tags: im.GetRepoTags(), Digests: im.GetRepoDigests(),
			Bytes: im.GetSize(), Pinned: im.GetPinned(),
		})
	}
	return out, nil
}

// ImagesInUse returns the names and ids of the images that containers were made
// from, including exited ones and those of other owners: images are shared.
func (c *Client) ImagesInUse(ctx context.Context) ([]string, error) {
	containers, err := c.listContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, 2*len(containers))
	for _, ct := range containers {
		spec := ct.GetImage()
		for _, ref := range []string{ct.GetImageId(), ct.GetImageRef(), spec.GetImage(), spec.GetUserSpecifiedImage()} {
			if ref != "" {
				out = append(out, ref)
			}
		}
	}
	return out, nil
}

func (c *Client) listImages(ctx context.Context) ([]*v1.Image, error) {
	if !c.noImageStream.Load() {
		all, err := collect(ctx, c, "StreamImages", &c.noImageStream, c.is.StreamImages,
			&v1.StreamImagesRequest{}, (*v1.StreamImagesResponse).GetImages)
		if !errors.Is(err, runtime.ErrUnsupported) {
			return all, err
		}
	}
	resp, err := do(ctx, c, "ListImages", "", c.cfg.Timeout, c.is.ListImages, &v1.ListImagesRequest{})
	return resp.GetImages(), err
}

// RemoveImage removes one image by its id or a reference. An image that is not
// there is no error.
func (c *Client) RemoveImage(ctx context.Context, id string) error {
	_, err := do(ctx, c, "RemoveImage", id, c.cfg.Timeout, c.is.RemoveImage,
		&v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: id}})
	return ignoreMissing(err)
}

// ImageFS measures the file systems that hold images, then those that hold
// containers' writable layers where the runtime tells them apart.
func (c *Client) ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error) {
	resp, err := do(ctx, c, "ImageFsInfo", "", c.cfg.Timeout, c.is.ImageFsInfo, &v1.ImageFsInfoRequest{})
	if err != nil {
		return nil, nil, err
	}
	return translate.FSUsages(resp.GetImageFilesystems()), translate.FSUsages(resp.GetContainerFilesystems()), nil
}

// imageStatus returns the image that ref names, or nil when it is not there.
func (c *Client) imageStatus(ctx context.Context, ref, handler string) (*v1.Image, error) {
	resp, err := do(ctx, c, "ImageStatus", ref, c.cfg.Timeout, c.is.ImageStatus,
		&v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref, RuntimeHandler: handler}})
	if err != nil {
		return nil, ignoreMissing(err)
	}
	return resp.GetImage(), nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, runtime.ErrNotFound) {
		return nil
	}
	return err
}
