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
	"github.com/sublet-dev/agent/internal/monotonic"
)

// The records file has a header and one line per image. Each line begins with its
// checksum, so that the rest of a truncated or partly overwritten file is readable.
const (
	recordsHeader = "sublet image ages v1"
	maxStoreLine  = 4 << 10
	maxStoreSize  = 16 << 20
	maxStored     = 20_000
)

// ErrImageRecords is wrapped by errors of the records file.
var ErrImageRecords = errors.New("image records")

type storedImage struct {
	ID            string    `json:"id"`
	FirstDetected time.Time `json:"firstSeen"`
	LastUsed      time.Time `json:"lastUsed"`
}

// onWallClock returns the records with their times on the wall clock of now. That may have been set
// since they were noted, as on a machine without a battery that learns the time after its start: to
// the next process, an image would be as old as the difference.
func onWallClock(known map[string]ImageRecord, now time.Time) map[string]ImageRecord {
	out := make(map[string]ImageRecord, len(known))
	for id, k := range known {
		out[id] = ImageRecord{FirstDetected: monotonic.At(k.FirstDetected, now), LastUsed: monotonic.At(k.LastUsed, now)}
	}
	return out
}

// encode returns the content of the records file. Above maxStored, the most recently
// used images are left out, because starting their ages again matters least.
func encode(known map[string]ImageRecord) []byte {
	list := make([]storedImage, 0, len(known))
	for id, k := range known {
		list = append(list, storedImage{ID: id, FirstDetected: k.FirstDetected.UTC(), LastUsed: k.LastUsed.UTC()})
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
	out.WriteString(checksum(text) + " " + text + "\n")
}

func checksum(text string) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text))) }

// decode reads all valid records. The error reports what was lost; the returned records
// are valid in any case.
func decode(r io.Reader) (map[string]ImageRecord, error) {
	known := make(map[string]ImageRecord)
	scan := bufio.NewScanner(io.LimitReader(r, maxStoreSize))
	scan.Buffer(nil, maxStoreLine)
	if !scan.Scan() {
		return known, fmt.Errorf("%w: file is empty or not text", ErrImageRecords)
	}
	header, ok := verifyChecksum(scan.Text())
	count, hasPrefix := strings.CutPrefix(header, recordsHeader+" ")
	want, err := strconv.Atoi(count)
	if !ok || !hasPrefix || err != nil {
		return known, fmt.Errorf("%w: file has no valid header", ErrImageRecords)
	}
	bad := 0
	for scan.Scan() && len(known) < maxStored {
		var image storedImage
		text, ok := verifyChecksum(scan.Text())
		if !ok || json.Unmarshal([]byte(text), &image) != nil || image.ID == "" {
			bad++
			continue
		}
		known[image.ID] = ImageRecord{FirstDetected: image.FirstDetected, LastUsed: image.LastUsed}
	}
	if err := scan.Err(); err != nil {
		return known, fmt.Errorf("%w: read %d of %d: %w", ErrImageRecords, len(known), want, err)
	}
	if len(known) != want {
		return known, fmt.Errorf("%w: read %d of %d, %d lines are damaged", ErrImageRecords, len(known), want, bad)
	}
	return known, nil
}

func verifyChecksum(text string) (string, bool) {
	sum, rest, _ := strings.Cut(text, " ")
	return rest, sum == checksum(rest)
}

// load reads the records file. A missing file is empty. It removes the remains of an
// interrupted save.
func load(path string) (map[string]ImageRecord, error) {
	_ = atomicfile.RemovePartial(path) // reading the file reports the same errors
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
		// Set aside and not overwritten, because it may belong to another program.
		err = errors.Join(err, atomicfile.SetAside(path))
	}
	return known, err
}

// save replaces the file atomically.
func save(path string, known map[string]ImageRecord) error {
	if err := atomicfile.Write(path, encode(known)); err != nil {
		return fmt.Errorf("save %w: %w", ErrImageRecords, err)
	}
	return nil
}
