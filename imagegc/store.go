package imagegc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/atomicfile"
)

// The file of ages: a heading, then one line an image. Each line begins with its
// checksum, so that of a file that was cut or written over in part the rest is
// still good.
const (
	recordsHeader = "sublet image ages v1"
	maxStoreLine  = 4 << 10
	maxStoreSize  = 16 << 20
	maxStored     = 20_000
)

// ErrImageRecords is wrapped by what is wrong with a file of ages.
var ErrImageRecords = errors.New("ages of images")

type storedImage struct {
	ID        string    `json:"id"`
	FirstSeen time.Time `json:"firstSeen"`
	LastUsed  time.Time `json:"lastUsed"`
}

// encode writes ages in the form of the file. Of more than the file may hold,
// those used last are left out: they are the ones that lose least.
func encode(known map[string]ImageRecord) []byte {
	list := make([]storedImage, 0, len(known))
	for id, k := range known {
		list = append(list, storedImage{ID: id, FirstSeen: k.FirstDetected.UTC(), LastUsed: k.LastUsed.UTC()})
	}
	slices.SortFunc(list, func(a, b storedImage) int {
		if byUse := a.LastUsed.Compare(b.LastUsed); byUse != 0 {
			return byUse
		}
		return strings.Compare(a.ID, b.ID)
	})
	list = list[:min(len(list), maxStored)]
	var out bytes.Buffer
	encodeRecord(&out, recordsHeader+" "+strconv.Itoa(len(list)))
	for _, image := range list {
		text, err := json.Marshal(image)
		if err == nil && len(text) < maxStoreLine-16 {
			encodeRecord(&out, string(text))
		}
	}
	return out.Bytes()
}

func encodeRecord(out *bytes.Buffer, text string) {
	fmt.Fprintf(out, "%08x %s\n", crc32.ChecksumIEEE([]byte(text)), text)
}

// decode reads what it can. The error tells what was lost; what was read is good
// all the same.
func decode(r io.Reader) (map[string]ImageRecord, error) {
	known := make(map[string]ImageRecord)
	scan := bufio.NewScanner(io.LimitReader(r, maxStoreSize))
	scan.Buffer(nil, maxStoreLine)
	if !scan.Scan() {
		return known, fmt.Errorf("%w: the file is empty or no text", ErrImageRecords)
	}
	heading, ok := verifyChecksum(scan.Text())
	count, number := strings.CutPrefix(heading, recordsHeader+" ")
	want, err := strconv.Atoi(count)
	if !ok || !number || err != nil {
		return known, fmt.Errorf("%w: the file has no heading of ours", ErrImageRecords)
	}
	bad := 0
	for scan.Scan() && len(known) < maxStored {
		var image storedImage
		text, ok := verifyChecksum(scan.Text())
		if !ok || json.Unmarshal([]byte(text), &image) != nil || image.ID == "" {
			bad++
			continue
		}
		known[image.ID] = ImageRecord{FirstDetected: image.FirstSeen, LastUsed: image.LastUsed}
	}
	if err := scan.Err(); err != nil {
		return known, fmt.Errorf("%w: %d of %d could be read: %w", ErrImageRecords, len(known), want, err)
	}
	if len(known) != want {
		return known, fmt.Errorf("%w: %d of %d could be read, %d lines are damaged", ErrImageRecords, len(known), want, bad)
	}
	return known, nil
}

func verifyChecksum(text string) (string, bool) {
	sum, rest, ok := strings.Cut(text, " ")
	if !ok || len(sum) != 8 {
		return "", false
	}
	n, err := strconv.ParseUint(sum, 16, 32)
	return rest, err == nil && uint32(n) == crc32.ChecksumIEEE([]byte(rest))
}

// load reads the file. One that is not there is empty. What a save left that did
// not come to its end goes.
func load(path string) (map[string]ImageRecord, error) {
	_ = atomicfile.RemovePartial(path) // what there is to tell of it, reading the file itself tells
	f, err := os.Open(path)            //nolint:gosec // the path is the configuration's
	if errors.Is(err, fs.ErrNotExist) {
		return make(map[string]ImageRecord), nil
	}
	if err != nil {
		return make(map[string]ImageRecord), fmt.Errorf("%w: %w", ErrImageRecords, err)
	}
	defer func() { _ = f.Close() }()
	known, err := decode(f)
	if err != nil {
		// Set aside rather than written over: it may be somebody else's.
		err = errors.Join(err, atomicfile.SetAside(path))
	}
	return known, err
}

// save puts a new file in place of the old: whole, or not at all.
func save(path string, known map[string]ImageRecord) error {
	if err := atomicfile.Write(path, encode(known)); err != nil {
		return fmt.Errorf("save %w: %w", ErrImageRecords, err)
	}
	return nil
}
